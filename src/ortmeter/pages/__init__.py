"""Names of the pages that are not a :class:`~ortmeter.study.Study` yet."""

from ortmeter.args import Param
from ortmeter.evidence import fact, judge
from ortmeter.study import writer
from ortmeter.study.records import SCHEMA, Record, load, load_records, record, replay
from ortmeter.study.rendering import Conclusion, beliefs, fold, save_tables, show, table
from ortmeter.study.writer import Answer, enumerate_items, group_claims, group_effects

__all__ = [
    "SCHEMA",
    "Answer",
    "Bar",
    "Conclusion",
    "Param",
    "Record",
    "beliefs",
    "enumerate_items",
    "fact",
    "fold",
    "group_claims",
    "group_effects",
    "judge",
    "load",
    "load_records",
    "record",
    "replay",
    "save_tables",
    "show",
    "table",
]


def Bar(  # noqa: N802 - the name that these pages have for it
    label: str, value: float, low: float | None = None, high: float | None = None
) -> writer.Bar:
    """Make a bar of an answer.

    Examples
    --------
    >>> Bar("one", 2.0).label
    'one'
    """
    return writer.Bar(value, low, high, label=label)
