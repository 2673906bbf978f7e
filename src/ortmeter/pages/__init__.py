"""Helpers to write a page: parameters, claims, conclusions, tables and records.

A record is a JSON file with the raw samples and the environment of a page, from which its tables,
plots and sentences can be computed again on another machine.
"""

from ortmeter.args import Param
from ortmeter.pages.records import SCHEMA, Record, load, load_records, record, replay
from ortmeter.pages.rendering import Conclusion, beliefs, fold, save_tables, show, table
from ortmeter.timing.claims import (
    Answer,
    Bar,
    enumerate_items,
    fact,
    group_claims,
    group_effects,
    judge,
)

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
