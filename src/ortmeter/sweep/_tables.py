"""Tables of the report of a sweep."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.sweep._cells import MACHINE, Cell, make_coordinates, varying_options
from ortmeter.sweep.comparison import Comparison
from ortmeter.sweep.outcome import Outcome
from ortmeter.timing import Measurement, speedup

__all__ = ["failure_table", "legend", "median_interval", "result_table", "spread_table"]

_MS = 1e3
_BASELINE = {"speedup": 1.0, "low": 1.0, "high": 1.0, "verdict": "baseline"}
_NO_RESULT = "(no result)"
_CONSTANTS = ("page", "group", MACHINE)
_RESULTS = ["median (ms)", "low (ms)", "high (ms)", "speedup", "low", "high", "verdict"]


def result_table(
    cells: Sequence[Cell], comparisons: Sequence[Comparison], outcomes: Sequence[Outcome]
) -> pd.DataFrame:
    """Make one row per place of the grid and candidate, and one per task without a record.

    Parameters
    ----------
    cells : sequence of Cell
        What was measured.
    comparisons : sequence of Comparison
        What it says.
    outcomes : sequence of Outcome
        Where the tasks that failed or did not run are.

    Returns
    -------
    DataFrame
        Index: the coordinates and the candidate. Columns: the median and its interval, the
        speedup over the baseline and its interval, the verdict.
    """
    compared = {(*_key(c), c.candidate): _verdict(c) for c in comparisons}
    compared |= {(*_key(c), c.baseline): _BASELINE for c in comparisons}
    rows = [
        {
            **_place(cell),
            "candidate": name,
            **_latency(cell.samples(name)),
            **compared.get((*_key(cell), name), {}),
        }
        for cell in cells
        for name in cell.candidates
    ]
    varying = varying_options(outcome.task for outcome in outcomes)
    rows += [_row_of_failure(outcome, varying) for outcome in outcomes if outcome.record is None]
    return _readable(rows, _RESULTS)


def spread_table(comparisons: Iterable[Comparison]) -> pd.DataFrame:
    """Make one row per comparison that has several runs.

    Parameters
    ----------
    comparisons : iterable of Comparison
        What was measured.

    Returns
    -------
    DataFrame
        Index: the coordinates and the candidate. Columns: the speedup of each run, the standard
        deviation from run to run and what the samples of one run promise, in percent, the ratio of
        these two, what becomes of the verdict.
    """
    rows = [
        {
            **_place(c),
            "candidate": c.candidate,
            **{f"run {run}": _digits(s.ratio) for run, s in c.runs.items()},
            "between runs (%)": _percent(c.between),
            "within a run (%)": _percent(c.within),
            "between / within": _digits(c.excess, 2),
            "verdict": c.stability,
        }
        for c in comparisons
        if c.between is not None and c.excess is not None
    ]
    runs = dict.fromkeys(name for row in rows for name in row if name.startswith("run "))
    measures = ["between runs (%)", "within a run (%)", "between / within", "verdict"]
    return _readable(rows, [*runs, *measures])


def failure_table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Make one row per task that failed or did not run.

    Parameters
    ----------
    outcomes : iterable of Outcome
        All of them.

    Returns
    -------
    DataFrame
        Index: the task. Columns ``machine``, ``state`` and ``reason``.
    """
    rows = [
        {"task": str(o.task), "machine": o.machine, "state": o.state, "reason": o.error}
        for o in outcomes
        if o.record is None
    ]
    return pd.DataFrame(rows, columns=["task", "machine", "state", "reason"]).set_index("task")


def legend(places: Iterable[Cell | Comparison]) -> str:
    """Say what is the same everywhere, for the caption of a table or of a plot.

    Parameters
    ----------
    places : iterable of Cell or Comparison
        What the table or the plot shows.
    """
    return ", ".join(filter(None, _shared([_place(place) for place in places]).values()))


def median_interval(measured: Measurement) -> tuple[float, float]:
    """Interval of a median, by the bootstrap that :func:`~ortmeter.timing.speedup` applies.

    Parameters
    ----------
    measured : Measurement
        Samples.

    Returns
    -------
    tuple of float
        Bounds, in seconds.
    """
    second = Measurement("one second", np.ones_like(measured.seconds))
    found = speedup(second, measured)
    return 1 / found.high, 1 / found.low


def _key(place: Cell | Comparison) -> tuple[Any, ...]:
    return (place.page, place.group, *place.coordinates.items())


def _place(place: Cell | Comparison) -> dict[str, Any]:
    return {"page": place.page, "group": place.group, **place.coordinates}


def _row_of_failure(outcome: Outcome, varying: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    place = make_coordinates(outcome.task, outcome.machine, varying)
    why = f"{outcome.state}: {outcome.error}" if outcome.error else outcome.state
    verdict = f"{why} (run {outcome.task.run})"
    return {"page": outcome.task.page, **place, "candidate": _NO_RESULT, "verdict": verdict}


def _latency(measured: Measurement) -> dict[str, float]:
    values = (measured.median, *median_interval(measured))
    return dict(zip(_RESULTS, (_digits(value * _MS) for value in values), strict=False))


def _verdict(comparison: Comparison) -> dict[str, Any]:
    s = comparison.overall
    numbers = {"speedup": s.ratio, "low": s.low, "high": s.high}
    rounded = {name: _digits(value) for name, value in numbers.items()}
    return {**rounded, "verdict": s.verdict if s.is_claim else "no difference"}


def _shared(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Find which of page, group and machine are the same everywhere; a row may have none."""
    values = {name: {row[name] for row in rows if row.get(name)} for name in _CONSTANTS}
    return {name: str(*found) for name, found in values.items() if len(found) <= 1}


def _readable(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Index rows by what distinguishes them; what all of them share becomes the legend."""
    shared = _shared(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    index = [n for n in names if n not in {*columns, *shared, "candidate"}] + ["candidate"]
    table = pd.DataFrame(rows, columns=list(columns))
    for rank, name in enumerate(index):
        # Objects: a row without a value must not turn sizes into floats.
        values = pd.Series([row.get(name, "") for row in rows], dtype=object, name=name)
        table.insert(rank, name, values)
    legend = ", ".join(filter(None, shared.values()))
    return table.set_index(index).rename_axis(columns=legend or None)


def _digits(value: float, count: int = 4) -> float:
    return float(f"{value:.{count}g}")


def _percent(deviation: float) -> float:
    """Write a deviation of a logarithm as a percentage."""
    return _digits(100 * float(np.expm1(deviation)), 2)
