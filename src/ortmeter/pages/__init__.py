"""For people who write pages: parameters, claims, conclusions, tables, and records.

A record is a JSON file with what the conclusions of a page are computed from, raw samples included,
and the environment it was measured in. A page built elsewhere computes its tables, plots and
sentences again from it.
"""

from ortmeter.args import Param
from ortmeter.pages.records import SCHEMA, Record, load, load_records, record, replay
from ortmeter.pages.rendering import Conclusion, fold, save_tables, show, table
from ortmeter.timing.claims import Answer, Bar, fact, group_claims, group_effects, judge

__all__ = [
    "SCHEMA",
    "Answer",
    "Bar",
    "Conclusion",
    "Param",
    "Record",
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
