"""What people can read: tables with units in the header, graphs that are not too large."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

#: Larger graphs take too long to lay out, and cannot be read.
MAX_DRAWN = 300

_UNITS: Mapping[str, str] = {
    "median": "median (µs)",
    "q1": "q1 (µs)",
    "q3": "q3 (µs)",
    "mean_baseline": "baseline (µs)",
    "mean_candidate": "candidate (µs)",
    "gflop_per_s": "GFLOP/s",
    "gb_per_s": "GB/s",
}


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Prepare a table of a profile or of errors for reading."""
    first, *others = table.columns
    shown = {_UNITS.get(name, name): _plain(table[name]) for name in others}
    return pd.DataFrame({first: table[first].astype(object), **shown}).set_index(first)


def _plain(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Forget categories and nullable types, which print their missing values in their own way."""
    return column.astype(float) if column.dtype.kind == "f" else column.astype(object)
