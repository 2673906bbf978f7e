"""Aggregate the events of a profile: by operator, by node, by run."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["NODE", "by_iteration", "by_operator", "first_rows", "memory", "node_times", "number"]

_Codes: TypeAlias = npt.NDArray[np.int64]

#: Columns that tell a node from another.
NODE = ["name", "op", "domain", "node_index", "provider", "parent"]
_OPERATOR = ["op", "domain", "provider"]
_MEASURES = {"median": 0.5, "q1": 0.25, "q3": 0.75}


def by_operator(events: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Sum the time of each operator, see :meth:`~ortmeter.profiling.Profile.by_operator`.

    Parameters
    ----------
    events : pandas.DataFrame
        Kernels of the complete runs.
    runs : pandas.DataFrame
        What :func:`by_iteration` returned.
    """
    codes = number(events, _OPERATOR)
    table = first_rows(events, codes)[_OPERATOR]
    table["nodes"] = pd.Series(number(events, NODE)).groupby(codes).nunique()
    table = table.join(_times(events, codes, runs))
    return table.sort_values("total", ascending=False, kind="stable", ignore_index=True)


def node_times(events: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, _Codes]:
    """Sum the time of each node.

    Parameters
    ----------
    events, runs : pandas.DataFrame
        As in :func:`by_operator`.

    Returns
    -------
    table : pandas.DataFrame
        Columns of :meth:`~ortmeter.profiling.Profile.by_node` up to ``inclusive``.
    codes : array of int64, shape (events,)
        Row of each event.
    """
    codes = number(events, NODE)
    table = first_rows(events, codes)[[*NODE, "signature"]].join(_times(events, codes, runs))
    table["inclusive"] = _per_run(events, codes, runs, "duration").groupby(level=0).median()
    return table, codes


def by_iteration(events: pd.DataFrame, runs: pd.DataFrame, warmup: int) -> pd.DataFrame:
    """Describe each run, see :meth:`~ortmeter.profiling.Profile.by_iteration`.

    Parameters
    ----------
    events : pandas.DataFrame
        Kernels of the complete runs.
    runs : pandas.DataFrame
        Columns ``iteration``, ``start``, ``duration`` of these runs, in order.
    warmup : int
        First runs that are not steady; the last run always is.
    """
    rank = runs["iteration"].searchsorted(events["iteration"])
    duration = runs["duration"].to_numpy()
    covered = np.minimum(_covered(events, rank, len(runs)), duration)
    return pd.DataFrame(
        {
            "iteration": runs["iteration"].to_numpy(),
            "start": runs["start"].to_numpy(),
            "duration": duration,
            "kernels": np.bincount(rank, minlength=len(runs)),
            "kernel_time": _sum(rank, events["self_duration"], len(runs)),
            "covered": covered,
            "unexplained": 1 - covered / np.maximum(duration, 1),
            "steady": np.arange(len(runs)) >= min(warmup, len(runs) - 1),
        }
    )


def memory(events: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Describe the memory of each node, see :meth:`~ortmeter.profiling.Profile.memory`.

    Parameters
    ----------
    events, runs : pandas.DataFrame
        As in :func:`by_operator`.
    """
    codes = number(events, NODE)
    table = first_rows(events, codes)[["name", "op", "parent"]]
    nodes = events.groupby(codes)
    largest = ["parameter_size", "activation_size", "output_size", "in_use", "in_use_peak"]
    table = table.join(nodes[[*largest, "arena_held"]].max())
    steady = _is_steady(events, runs)
    table["in_use_delta"] = events[steady].groupby(codes[steady])["in_use_delta"].median()
    first = events["iteration"].to_numpy() == runs["iteration"].iloc[0]
    growth = events[first].groupby(codes[first])[["in_use_delta", "arena_held_delta"]]
    return table.join(growth.sum(min_count=1).add_prefix("first_"))


def number(events: pd.DataFrame, columns: Sequence[str]) -> _Codes:
    """Number the distinct rows of some columns in the order in which they come.

    Parameters
    ----------
    events : pandas.DataFrame
        Events.
    columns : sequence of str
        Columns of categories or of integers.

    Returns
    -------
    array of int64, shape (events,)
        Number of each row, from 0; missing values are equal.
    """
    total = np.zeros(len(events), np.int64)
    for name in columns:
        column = events[name]
        codes = (
            column.cat.codes.to_numpy()
            if isinstance(column.dtype, pd.CategoricalDtype)
            else pd.factorize(column)[0]
        ).astype(np.int64) + 1
        # Renumbered at each step: the product of the counts would overflow.
        total, _ = pd.factorize(total * (codes.max(initial=0) + 1) + codes)
    return total.astype(np.int64)


def first_rows(events: pd.DataFrame, codes: _Codes) -> pd.DataFrame:
    """First event of each number, whose index is the number.

    Parameters
    ----------
    events : pandas.DataFrame
        Events.
    codes : array of int64, shape (events,)
        What :func:`number` returned.
    """
    _, position = np.unique(codes, return_index=True)
    return events.iloc[position].reset_index(drop=True)


def _times(events: pd.DataFrame, codes: _Codes, runs: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the time of each number, in µs, over the steady runs."""
    count = int(codes.max(initial=-1)) + 1
    steady = _is_steady(events, runs)
    first = events["iteration"].to_numpy() == runs["iteration"].iloc[0]
    total = _sum(codes[steady], events["self_duration"][steady], count)
    number_of_runs = int(runs["steady"].sum())
    per_run = _per_run(events, codes, runs, "self_duration").groupby(level=0)
    index = pd.RangeIndex(count)
    return pd.DataFrame(
        {
            "calls": np.bincount(codes[steady], minlength=count) / number_of_runs,
            **{
                name: per_run.quantile(level).reindex(index).astype("float64")
                for name, level in _MEASURES.items()
            },
            "mean": total / number_of_runs,
            "total": total,
            "first": pd.Series(events["self_duration"].to_numpy()[first])
            .groupby(codes[first])
            .sum()
            .reindex(index)
            .astype("float64"),
            "share": total / max(total.sum(), 1),
        },
        index=index,
    )


def _per_run(
    events: pd.DataFrame, codes: _Codes, runs: pd.DataFrame, column: str
) -> "pd.Series[float]":
    """Sum a column over each number and each steady run."""
    steady = _is_steady(events, runs)
    chosen = events[column][steady]
    return chosen.groupby([codes[steady], events["iteration"].to_numpy()[steady]]).sum()


def _is_steady(events: pd.DataFrame, runs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return np.isin(events["iteration"].to_numpy(), runs["iteration"].to_numpy()[runs["steady"]])


def _sum(codes: _Codes, values: "pd.Series[int]", count: int) -> npt.NDArray[np.int64]:
    # Microseconds are exact in float64 up to 285 years.
    return np.bincount(codes, values.to_numpy(), minlength=count).astype(np.int64)


def _covered(events: pd.DataFrame, rank: _Codes, count: int) -> npt.NDArray[np.int64]:
    """Time of each run during which a kernel runs, once even when several do."""
    start, duration = events["start"].to_numpy(), events["duration"].to_numpy()
    if not len(start):
        return np.zeros(count, np.int64)
    # One run after the other on the same axis.
    span = (start + duration).max() - start.min() + 1
    begin = start - start.min() + rank * span
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], (begin + duration)[order]
    before = np.maximum.accumulate(np.concatenate([[0], end[:-1]]))
    added = np.maximum(end - np.maximum(begin, before), 0)
    return np.bincount(rank[order], added, minlength=count).astype(np.int64)
