"""Run a model in float64: its outputs, its operations, the range of its results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import exact_feeds, to_float64
from ortmeter.operators.costs import node_cost
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["Reference", "run_float64"]


@dataclass(frozen=True)
class Reference:
    """What a model computes in float64.

    Parameters
    ----------
    outputs : list of array
        Outputs, in the order of the model.
    flop : float
        Operations, as :func:`~ortmeter.operators.costs.node_cost` counts them; 0 for operators that
        it does not know.
    ranges : mapping of str to (str, float)
        By name of a result, the operator that makes it, ``input`` for inputs, and its largest
        absolute value; in the order of the run.
    """

    outputs: list[np.ndarray]
    flop: float
    ranges: Mapping[str, tuple[str, float]]


def run_float64(model: ModelLike, feeds: Mapping[str, Any]) -> Reference:
    """Run a model in float64, node by node.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs, in the types of the model.

    Returns
    -------
    Reference
        Outputs, operations and ranges.

    Raises
    ------
    ModelError, FeedError
        The model cannot be read, or the feeds are not its inputs.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Mul(X, X) }'''
    >>> found = run_float64(text, {"X": np.float32([3, 4])})
    >>> found.outputs[0].tolist(), found.flop, found.ranges["Y"]
    ([9.0, 16.0], 2.0, ('Mul', 16.0))
    """
    flop = 0.0
    ranges: dict[str, tuple[str, float]] = {}

    def watch(node: onnx.NodeProto, given: list[Any], made: list[Any]) -> None:
        nonlocal flop
        read, written = (
            [None if a is None else np.asarray(a) for a in side] for side in (given, made)
        )
        # Operations do not depend on the types.
        types = (["f64"] * len(side) for side in (read, written))
        cost = node_cost(node, _shapes(read), _shapes(written), *types)
        flop += cost.flop if cost else 0.0
        for name, value in zip(node.output, written, strict=False):
            _note(ranges, name, node.op_type, value)

    for name, value in feeds.items():
        _note(ranges, name, "input", np.asarray(value))
    proto = load_model(model)
    double = to_float64(proto)
    outputs = Evaluator(double, callback=watch).run(None, exact_feeds(proto, double, feeds))
    return Reference([np.asarray(output) for output in outputs], flop, ranges)


def _shapes(arrays: list[Any]) -> list[tuple[int, ...] | None]:
    return [None if array is None else array.shape for array in arrays]


def _note(
    ranges: dict[str, tuple[str, float]], name: str, operator: str, value: np.ndarray | None
) -> None:
    if value is not None and value.dtype.kind == "f" and value.size:
        ranges[name] = (operator, float(np.abs(value).max()))
