"""Names of the pages that are not a :class:`~ortmeter.study.Study` yet."""

from ortmeter.args import Param
from ortmeter.evidence import fact, judge
from ortmeter.study.records import SCHEMA, Record, load, load_records, record, replay
from ortmeter.study.rendering import Conclusion, beliefs, fold, save_tables, show, table
from ortmeter.study.writer import Answer, Bar, enumerate_items, group_claims, group_effects

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
