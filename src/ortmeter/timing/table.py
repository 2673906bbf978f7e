"""Measurements as a frame."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ortmeter.timing.measurement import Measurement

__all__ = ["in_milliseconds", "to_frame"]

_MS = 1e3


def to_frame(results: Mapping[Any, Mapping[str, Measurement]], key: str) -> pd.DataFrame:
    """Make one row per key and candidate.

    Parameters
    ----------
    results : mapping of mappings
        For each value of *key* (a size, a type), what :func:`~ortmeter.timing.measure` returned.
    key : str
        Name of that column.

    Returns
    -------
    pandas.DataFrame
        Columns *key*, ``candidate``, ``median``, ``q1``, ``q3`` (seconds), ``gflop_per_s``,
        ``gb_per_s`` (missing when the work is unknown), ``repeat``, ``number``, ``processes``,
        ``first_call`` (seconds).

    Examples
    --------
    >>> results = {8: {"copy": Measurement("copy", [[1e-3, 2e-3, 3e-3]])}}
    >>> to_frame(results, "size")[["size", "candidate", "median"]].values.tolist()
    [[8, 'copy', 0.002]]
    """
    return pd.DataFrame(
        [{key: value, **_row(m)} for value, group in results.items() for m in group.values()]
    )


def _row(m: Measurement) -> dict[str, Any]:
    q1, q3 = m.quartiles
    return {
        "candidate": m.name,
        "median": m.median,
        "q1": q1,
        "q3": q3,
        "gflop_per_s": m.gflop_per_s,
        "gb_per_s": m.gb_per_s,
        "repeat": m.repeat,
        "number": m.number,
        "processes": m.processes,
        "first_call": m.warmup[0] if m.warmup else None,
    }


def in_milliseconds(frame: pd.DataFrame, index: Iterable[str]) -> pd.DataFrame:
    """Prepare a frame of :func:`to_frame` for reading: milliseconds, units in the header.

    Parameters
    ----------
    frame : pandas.DataFrame
        Latencies in seconds.
    index : iterable of str
        Columns to use as index.

    Returns
    -------
    pandas.DataFrame
        Columns with their unit; those without a value are left out. Four significant digits.
    """
    names = {
        "median": "median (ms)",
        "q1": "q1 (ms)",
        "q3": "q3 (ms)",
        "gflop_per_s": "GFLOP/s",
        "gb_per_s": "GB/s",
        "first_call": "first call (ms)",
    }
    seconds = ["median", "q1", "q3", "first_call"]
    table = frame.assign(**{name: frame[name] * _MS for name in seconds})
    shown = table.dropna(axis="columns", how="all").rename(columns=names)
    for name in set(names.values()) & set(shown.columns):
        shown[name] = [float(f"{value:.4g}") for value in shown[name]]
    return shown.set_index(list(index))
