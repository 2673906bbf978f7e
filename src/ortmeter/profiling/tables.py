"""Aggregate the kernels of the complete runs: by operator, by node, by run."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.operators.costs import node_cost
from ortmeter.profiling.graph import GraphNode, find_nodes, find_origins

Ints: TypeAlias = npt.NDArray[np.int64]
_Shape: TypeAlias = tuple[int, ...]

#: Columns that tell a node from another.
NODE = ["name", "op", "domain", "node_index", "provider", "parent"]
#: Columns of types and of shapes, and of bytes.
TENSORS = ("input_types", "input_shapes", "output_types", "output_shapes")
SIZES = (
    *("parameter_size", "activation_size", "output_size"),
    *("in_use", "in_use_peak", "arena_held"),
)
CPU = "CPUExecutionProvider"
_OPERATOR = ["op", "domain", "provider"]
_MEASURES = {"median": 0.5, "q1": 0.25, "q3": 0.75}
_FLOP_PER_US_TO_GFLOP_PER_S = 1e-3


def by_operator(events: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Sum the time of each operator."""
    codes = number(events, _OPERATOR)
    table = first_rows(events, codes)[_OPERATOR]
    table["nodes"] = pd.Series(number(events, NODE)).groupby(codes).nunique()
    table = table.join(_times(events, codes, runs))
    return table.sort_values("median", ascending=False, kind="stable", ignore_index=True)


def by_node(
    events: pd.DataFrame,
    runs: pd.DataFrame,
    *,
    model: onnx.ModelProto | None,
    original: onnx.ModelProto | None,
) -> pd.DataFrame:
    """Sum the time of each node, with what the graph tells about it."""
    codes = number(events, NODE)
    table = first_rows(events, codes)[[*NODE, "signature"]].join(_times(events, codes, runs))
    steady = _is_steady(events, runs)
    table["inclusive"] = _per_run(events, codes, steady, "duration").groupby(level=0).median()
    matched = [None] * len(table) if model is None else find_nodes(table, model)
    known = find_origins(model, original) if model and original else {}
    table["origin"] = [known.get(node.node.name, ()) if node else () for node in matched]
    work = _work(events[steady], codes[steady], matched) / int(runs["steady"].sum())
    # The time of a kernel of a device is that of its launch.
    timed = (table["median"] > 0) & (table["provider"] == CPU)
    per_us = work / table["median"].where(timed).to_numpy()
    table["flop"], table["bytes"] = work
    table["gflop_per_s"], table["gb_per_s"] = per_us * _FLOP_PER_US_TO_GFLOP_PER_S
    return table


def by_iteration(events: pd.DataFrame, runs: pd.DataFrame, warmup: int) -> pd.DataFrame:
    """Describe each run; the last one is always steady."""
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


def memory(events: pd.DataFrame) -> pd.DataFrame:
    """Describe the memory of each node."""
    codes = number(events, NODE)
    largest = events.groupby(codes)[[*SIZES]].max()
    return first_rows(events, codes)[["name", "op", "parent"]].join(largest)


def number(events: pd.DataFrame, columns: Sequence[str]) -> Ints:
    """Number the distinct rows of some columns in the order in which they come."""
    groups = events.groupby(list(columns), observed=True, dropna=False, sort=False)
    return groups.ngroup().to_numpy().astype(np.int64)


def first_rows(events: pd.DataFrame, codes: Ints) -> pd.DataFrame:
    """First event of each number, whose index is the number."""
    _, position = np.unique(codes, return_index=True)
    return events.iloc[position].reset_index(drop=True)


def _times(events: pd.DataFrame, codes: Ints, runs: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the time of each number, in µs, over the steady runs."""
    index = pd.RangeIndex(int(codes.max(initial=-1)) + 1)
    steady, runs_of = _is_steady(events, runs), events["iteration"].to_numpy()
    first = np.isin(runs_of, runs["iteration"].to_numpy()[:1])
    time, count = events["self_duration"], int(runs["steady"].sum())
    total = _sum(codes[steady], time[steady], len(index))
    per_run = _per_run(events, codes, steady, "self_duration").groupby(level=0)
    columns = {
        "calls": np.bincount(codes[steady], minlength=len(index)) / count,
        **{name: per_run.quantile(level) for name, level in _MEASURES.items()},
        "mean": total / count,
        "total": total,
        "first": time[first].groupby(codes[first]).sum(),
    }
    table = pd.DataFrame(columns, index=index)
    table = table.astype(dict.fromkeys((*_MEASURES, "first"), "float64"))
    # Shares of medians: in a sum, a run that the machine interrupted would count.
    medians = table["median"].fillna(0)
    return table.assign(share=medians / max(medians.sum(), 1))


def _per_run(
    events: pd.DataFrame, codes: Ints, steady: npt.NDArray[np.bool_], column: str
) -> "pd.Series[float]":
    """Sum a column over each number and each steady run."""
    chosen = events[column][steady]
    return chosen.groupby([codes[steady], events["iteration"].to_numpy()[steady]]).sum()


def _is_steady(events: pd.DataFrame, runs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return np.isin(events["iteration"].to_numpy(), runs["iteration"].to_numpy()[runs["steady"]])


def _sum(codes: Ints, values: "pd.Series[int]", count: int) -> Ints:
    # Microseconds are exact in float64 up to 285 years.
    return np.bincount(codes, values.to_numpy(), minlength=count).astype(np.int64)


def _covered(events: pd.DataFrame, rank: Ints, count: int) -> Ints:
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


def _work(
    events: pd.DataFrame, codes: Ints, nodes: Sequence[GraphNode | None]
) -> npt.NDArray[np.float64]:
    """Operations and bytes of each node over all these events, of shape (2, nodes)."""
    total = np.full((2, len(nodes)), np.nan)
    # Executions of a node on the same types and shapes cost the same.
    events = events.assign(node=codes)
    kinds = number(events, ["node", "signature"])
    first = first_rows(events, kinds)
    total[:, first["node"]] = 0
    rows = zip(first["node"], first.itertuples(), np.bincount(kinds), strict=True)
    for rank, row, count in rows:
        node = nodes[rank]
        cost = None if node is None else _cost_of_row(node, row)
        total[:, rank] += np.nan if cost is None else np.multiply(cost, count)
    return total


def _cost_of_row(held: GraphNode, row: Any) -> tuple[float, float] | None:
    """Cost of one execution, None when the recorded tensors are not those of the node."""
    node = held.node
    inputs = _place(row.input_types, row.input_shapes, node.input, held.initializers)
    outputs = _place(row.output_types, row.output_shapes, node.output, {})
    if inputs is None or outputs is None:
        return None
    (input_types, input_shapes), (output_types, output_shapes) = inputs, outputs
    return node_cost(node, input_shapes, output_shapes, input_types, output_types)


def _place(
    types: Sequence[str] | None,
    shapes: Sequence[_Shape] | None,
    names: Sequence[str],
    initializers: Mapping[str, onnx.TensorProto],
) -> tuple[tuple[str | None, ...], tuple[_Shape | None, ...]] | None:
    """Find the recorded type and shape of each tensor of a node.

    The profile lists the tensors that are there: neither the optional ones that are absent, nor the
    weights that ONNX Runtime packed in a layout of its own, which the graph still describes.
    """
    if types is None or shapes is None:
        return None
    recorded = list(zip(types, shapes, strict=True))
    missing = sum(map(bool, names)) - len(recorded)
    placed: list[tuple[str | None, _Shape | None]] = []
    for name in names:
        known = _described(initializers[name]) if name in initializers else None
        if not name:
            placed.append((None, None))
        elif known and missing and (not recorded or recorded[0] != known):
            placed.append(known)
            missing -= 1
        elif recorded:
            placed.append(recorded.pop(0))
        else:
            return None
    if recorded:
        return None
    return tuple(kind for kind, _ in placed), tuple(shape for _, shape in placed)


def _described(tensor: onnx.TensorProto) -> tuple[str, _Shape]:
    return short_name(tensor.data_type), tuple(tensor.dims)
