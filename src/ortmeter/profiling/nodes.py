"""Aggregate the events of a profile by node, with what the graph tells about each one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.profiling.correlation import CostFunction, GraphNode, find_nodes
from ortmeter.profiling.provenance import origins
from ortmeter.profiling.summary import first_rows, node_times, number

__all__ = ["by_node"]

_Shape: TypeAlias = tuple[int, ...]
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
        found = None if node is None else _cost_of_row(cost, node, row)
        total[:, rank] += np.nan if found is None else np.multiply(found, count)
    return total


def _cost_of_row(cost: CostFunction, found: GraphNode, row: Any) -> tuple[float, float] | None:
    """Cost of one execution, None when the recorded tensors are not those of the node."""
    node = found.node
    inputs = _place(row.input_types, row.input_shapes, node.input, found.initializers)
    outputs = _place(row.output_types, row.output_shapes, node.output, {})
    if inputs is None or outputs is None:
        return None
    (input_types, input_shapes), (output_types, output_shapes) = inputs, outputs
    return cost(node, input_shapes, output_shapes, input_types, output_types)


def _place(
    types: Sequence[str] | None,
    shapes: Sequence[_Shape] | None,
    names: Sequence[str],
    initializers: Mapping[str, onnx.TensorProto],
) -> tuple[tuple[str | None, ...], tuple[_Shape | None, ...]] | None:
    """Give each tensor of a node its recorded type and shape.

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
