"""Keep what a page measured: its tables for the reader, a record for other builds.

A record is a JSON file with what the conclusions of a page are computed from, raw samples included,
and the environment it was measured in. A page built elsewhere computes its tables, plots and
sentences again from it.
"""

from ortmeter.pages.record import Record, load, load_records, machine_name, record
from ortmeter.pages.replay import Replay, replay
from ortmeter.pages.schema import SCHEMA
from ortmeter.pages.tables import SavedTables, save_tables
from ortmeter.pages.values import decode, encode

__all__ = [
    "SCHEMA",
    "Record",
    "Replay",
    "SavedTables",
    "decode",
    "encode",
    "load",
    "load_records",
    "machine_name",
    "record",
    "replay",
    "save_tables",
]
