"""Aggregate the events of a profile by node, with what the graph tells about each one."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import pandas as pd

from ortmeter.profiling.correlation import CostFunction, GraphNode, find_nodes
from ortmeter.profiling.provenance import origins
from ortmeter.profiling.summary import first_rows, node_times, number

__all__ = ["by_node"]

_T = TypeVar("_T")
_TENSORS = ("input_shapes", "output_shapes", "input_types", "output_types")
_FLOP_PER_US_TO_GFLOP_PER_S = 1e-3


def by_node(
    events: pd.DataFrame,
    runs: pd.DataFrame,
    *,
    model: onnx.ModelProto | None,
    original: onnx.ModelProto | None,
    cost: CostFunction | None,
) -> pd.DataFrame:
    """Sum the time of each node, see :meth:`~ortmeter.profiling.Profile.by_node`.

    Parameters
    ----------
    events : pandas.DataFrame
        Kernels of the complete runs.
    runs : pandas.DataFrame
        What :func:`~ortmeter.profiling.summary.by_iteration` returned.
    model, original : onnx.ModelProto, optional
        Graph that ran, model before optimization.
    cost : callable, optional
        Cost of one execution of a node.
    """
    table, codes = node_times(events, runs)
    found = [None] * len(table) if model is None else find_nodes(table, model)
    sizes = [None if node is None else node.initializer_size for node in found]
    table["initializer_size"] = pd.array(sizes, dtype="Int64")
    known = origins(model, original) if model and original else {}
    table["origin"] = [known.get(node.node.name, ()) if node else () for node in found]
    steady = np.isin(events["iteration"], runs["iteration"][runs["steady"]])
    work = _work(events[steady], codes[steady], found, cost) / int(runs["steady"].sum())
    per_us = work / table["median"].where(table["median"] > 0).to_numpy()
    table["flop"], table["bytes"] = work
    table["gflop_per_s"], table["gb_per_s"] = per_us * _FLOP_PER_US_TO_GFLOP_PER_S
    return table


def _work(
    events: pd.DataFrame,
    codes: npt.NDArray[np.int64],
    nodes: Sequence[GraphNode | None],
    cost: CostFunction | None,
) -> npt.NDArray[np.float64]:
    """Operations and bytes of each node over all these events, of shape (2, nodes)."""
    total = np.full((2, len(nodes)), np.nan)
    if cost is None:
        return total
    # Executions of a node on the same types and shapes cost the same.
    kinds = number(events.assign(node=codes), ["node", "signature"])
    counts = np.bincount(kinds)
    first = first_rows(events.assign(node=codes), kinds)
    total[:, first["node"]] = 0
    for rank, row, count in zip(first["node"], first.itertuples(), counts, strict=True):
        node = nodes[rank]
        found = None if node is None else _cost_of_row(cost, node.node, row)
        total[:, rank] += np.nan if found is None else np.multiply(found, count)
    return total


def _cost_of_row(cost: CostFunction, node: onnx.NodeProto, row: Any) -> tuple[float, float] | None:
    """Cost of one execution, None when the recorded tensors are not those of the node."""
    tensors = [
        _place(getattr(row, name), node.input if name.startswith("input") else node.output)
        for name in _TENSORS
    ]
    if any(found is None for found in tensors):
        return None
    return cost(node, *tensors)  # type: ignore[arg-type]


def _place(values: tuple[_T, ...] | None, names: Sequence[str]) -> tuple[_T | None, ...] | None:
    """Put None where an optional tensor is absent: the profile only lists those that are there."""
    if values is None or len(values) == len(names):
        return values
    if len(values) != sum(map(bool, names)):
        return None
    present = iter(values)
    return tuple(next(present) if name else None for name in names)
