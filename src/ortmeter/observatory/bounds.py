"""How far from its exact result an operator may be: bounds derived from the roundings it needs.

A sum of products is bounded without knowing its operator: with the magnitudes of its operands, the
operator returns the sum of the magnitudes of its terms, and with ones, their number (Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002, section 3.1).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ortmeter.discrepancy.bounds import layer_norm_error_bound
from ortmeter.dtypes import float_info, numpy_dtype, unit_roundoff
from ortmeter.evaluator.node import dense_array
from ortmeter.observatory.reference import reference

__all__ = ["error_bounds", "weight_bounds"]

_Arrays = Mapping[str, np.ndarray]

_ACCUMULATOR = "float32"
_SCALINGS = 4  # roundings beside those of a sum: alpha, beta, the inverse of a number of terms

# They move elements, choose one, or compute without rounding.
_EXACT = (
    *("Abs", "Ceil", "Clip", "Dropout", "Floor", "Identity", "Mod", "Neg", "Relu", "Round", "Sign"),
    *("ThresholdedRelu", "Where", "Max", "Min", "Compress", "Concat", "ConstantOfShape", "Expand"),
    *(
        "DepthToSpace",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "OneHot",
        "Pad",
        "Reshape",
    ),
    *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Tile"),
    *(
        "Squeeze",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "GlobalMaxPool",
        "Hardmax",
        "MaxPool",
    ),
    *("MaxUnpool", "NhwcMaxPool", "ReduceMax", "ReduceMin", "TopK"),
)
_QUANTIZED = ("Quantize", "QLinear", "QGemm")


class _Run(NamedTuple):
    """An operator, what it read, and what it should return."""

    model: onnx.ModelProto
    node: onnx.NodeProto
    options: Mapping[str, Any]
    operands: _Arrays
    exact: np.ndarray
    dtype: np.dtype[Any]

    @property
    def inputs(self) -> list[np.ndarray]:
        """The operands in their order."""
        return [self.operands[name] for name in self.node.input if name]


def error_bounds(
    model: onnx.ModelProto, feeds: _Arrays, expected: _Arrays
) -> dict[str, np.ndarray]:
    """Bound the error of each output of a model of one operator, element by element.

    Parameters
    ----------
    model : onnx.ModelProto
        One node, or several that do not round.
    feeds : mapping of str to array
        Inputs.
    expected : mapping of str to array
        Exact outputs.

    Returns
    -------
    dict of str to numpy.ndarray
        In the unit of the output: zero where nothing is rounded, one for an integer that a scale
        quantizes, unless it cannot be another one. Empty when no bound is known, or when float64 is
        the type of the output, which the reference has too. Results of 16 bits are computed in
        float32 and rounded once.

    Examples
    --------
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] X) => (float[2] Y) { Y = Mul(X, X) }'''
    >>> model, x = onnx.parser.parse_model(text), np.float32([1, 3])
    >>> (error_bounds(model, {"X": x}, {"Y": np.float64([1, 9])})["Y"] / 2.0**-24).round(4).tolist()
    [1.0, 8.0]
    """
    nodes = model.graph.node
    kinds = {o.name: numpy_dtype(o.type.tensor_type.elem_type) for o in model.graph.output}
    if _rounds_nothing(nodes, kinds.values()):
        return {name: np.zeros(np.shape(array)) for name, array in expected.items()}
    if len(nodes) != 1 or not expected:
        return {}
    (node,) = nodes
    operands = dict(feeds) | {t.name: dense_array(t) for t in model.graph.initializer}
    name, rule = node.output[0], _RULES.get(node.op_type)
    run = _Run(model, node, attributes(node), operands, expected[name], kinds[name])
    if _is_quantized(node):
        integers = [one for one, kind in kinds.items() if kind.kind in "iu"]
        return {one: _off_by_one(run, expected[one]) for one in integers}
    if rule is None or kinds[name] not in {np.dtype(np.float32), np.dtype(np.float16)}:
        return {}
    found = rule(run)
    return {} if found is None else {name: found}


def weight_bounds(
    model: onnx.ModelProto,
    feeds: _Arrays,
    expected: _Arrays,
    relative: float,
    *,
    seed: int = 0,
) -> dict[str, float]:
    """Bound the errors of a network by what its outputs change by when its weights move.

    A product of *K* terms is the exact product of operands that move by *K* roundings at most.

    Parameters
    ----------
    model : onnx.ModelProto
        Its weights are the initializers of two dimensions or more.
    feeds : mapping of str to array
        Inputs.
    expected : mapping of str to array
        Exact outputs.
    relative : float
        By how much each weight moves, up or down at random, relative to its value.
    seed : int
        Seed of the directions.

    Returns
    -------
    dict of str to float
        Largest change of each output, in its unit.

    Examples
    --------
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[1, 1] X) => (float[1, 1] Y) <float[1, 1] w = {4}> { Y = MatMul(X, w) }'''
    >>> model, x = onnx.parser.parse_model(text), np.float32([[3]])
    >>> weight_bounds(model, {"X": x}, {"Y": np.float64([[12]])}, 0.25)
    {'Y': 3.0}
    """
    rng = np.random.default_rng(seed)
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    for tensor in moved.graph.initializer:
        if len(tensor.dims) > 1:
            values = dense_array(tensor)
            changed = values * (1 + rng.choice([-relative, relative], values.shape))
            changed = changed.astype(values.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    found = reference(moved, feeds).outputs
    return {name: float(np.abs(found[name] - exact).max()) for name, exact in expected.items()}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node that are given."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _rounds_nothing(nodes: Sequence[onnx.NodeProto], kinds: Any) -> bool:
    exact = (n.op_type in _EXACT and attributes(n).get("reduction") != b"add" for n in nodes)
    if all(exact):
        return True
    integers = all(kind.kind in "iub" for kind in kinds)
    return len(nodes) == 1 and integers and not _is_quantized(nodes[0])


def _is_quantized(node: onnx.NodeProto) -> bool:
    return any(word in node.op_type for word in _QUANTIZED)


def _off_by_one(run: _Run, exact: np.ndarray) -> np.ndarray:
    """Accept another integer; for one division by a scale, only near the middle of two."""
    if run.node.op_type != "QuantizeLinear" or run.inputs[1].size > 1:
        return np.ones(np.shape(exact))
    x, scale = run.inputs[:2]
    quotient = x.astype(np.float64) / scale.astype(np.float64)
    to_middle = np.abs(quotient - np.floor(quotient) - 0.5)
    return np.asarray(to_middle <= 4 * unit_roundoff(x.dtype) * np.abs(quotient), np.float64)


def _once(run: _Run) -> np.ndarray:
    """Bound an operator that IEEE 754 rounds correctly: half an ulp of the exact result."""
    info = float_info(run.dtype)
    _, exponent = np.frexp(run.exact)
    return np.asarray(np.ldexp(0.5, np.maximum(exponent - 1, info.minexp) - info.nmant))


def _product(count: Callable[[_Run], float]) -> Callable[[_Run], np.ndarray]:
    """Make the rule of results without cancellation, from the number of roundings they need."""

    def bound(run: _Run) -> np.ndarray:
        roundings = count(run)
        return _rounded(_growth(roundings) * np.abs(run.exact) + roundings * _tiny(), run)

    return bound


def _rounded(error: np.ndarray, run: _Run) -> np.ndarray:
    """Add the rounding from the accumulator to the type of the result."""
    if run.dtype == numpy_dtype(_ACCUMULATOR):
        return np.asarray(error)
    last = unit_roundoff(run.dtype) * (np.abs(run.exact) + error) + _tiny(run.dtype) / 2
    return np.asarray(error + last)


def _sum_of_products(run: _Run) -> np.ndarray | None:
    ones = _run_on(run, np.ones_like)
    return None if ones is None else _sum(run, float(ones.max(initial=1)))


def _mean(run: _Run) -> np.ndarray | None:
    window = run.options.get("kernel_shape")
    size = sum(array.size for array in run.inputs)
    return _sum(run, math.prod(window) if window else size / run.exact.size)


def _sum(run: _Run, terms: float) -> np.ndarray | None:
    magnitudes = _run_on(run, np.abs)
    if magnitudes is None:
        return None
    return _rounded(_growth(terms + _SCALINGS) * magnitudes + terms * _tiny(), run)


def _run_on(run: _Run, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """Run the operator on changed operands, integers excepted; so are the scales of a Gemm."""
    changed = onnx.ModelProto()
    changed.CopyFrom(run.model)
    arrays = {n: change(a) if a.dtype.kind == "f" else a for n, a in run.operands.items()}
    for tensor in changed.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(arrays.pop(tensor.name), tensor.name))
    for attribute in changed.graph.node[0].attribute:
        if attribute.name in {"alpha", "beta"}:
            attribute.f = float(change(np.array(attribute.f)))
    return next(iter(reference(changed, arrays).outputs.values()), None)


def _range(run: _Run) -> np.ndarray:
    start = np.abs(run.inputs[0].astype(np.float64))
    return _rounded(_growth(2) * (2 * start + np.abs(run.exact)), run)


def _batch_norm(run: _Run) -> np.ndarray:
    """Bound ``(x - mean) scale / sigma + bias``, in any order: eight roundings of each term."""
    x, *columns = (array.astype(np.float64) for array in run.inputs)
    shape = (-1, *[1] * (x.ndim - 2))
    scale, bias, mean, variance = (np.reshape(column, shape) for column in columns)
    sigma = np.sqrt(variance + run.options.get("epsilon", 1e-5))
    terms = np.abs(scale / sigma) * (np.abs(x) + np.abs(mean)) + np.abs(bias)
    return _rounded(_growth(8) * terms, run)


def _layer_norm(run: _Run) -> np.ndarray:
    x, *columns = run.inputs
    axis = run.options.get("axis", -1)
    whole = [np.broadcast_to(a, x.shape[axis:]).reshape(-1) for a in columns]
    return _normalized(run, x.reshape((*x.shape[:axis], -1)), whole)


def _group_norm(run: _Run) -> np.ndarray:
    """Bound InstanceNormalization and GroupNormalization: one scale per channel, or group."""
    x, *columns = run.inputs
    groups, inside = int(run.options.get("num_groups", x.shape[1])), math.prod(x.shape[1:])
    whole = [np.repeat(c, inside // c.size).reshape((groups, -1)) for c in columns]
    return _normalized(run, x.reshape((x.shape[0], groups, -1)), whole)


def _normalized(run: _Run, rows: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
    scale, bias = (*columns, np.zeros(1, run.dtype))[:2]
    epsilon = run.options.get("epsilon", 1e-5)
    found = layer_norm_error_bound(rows, dtype=run.dtype, epsilon=epsilon, scale=scale, bias=bias)
    return found.reshape(run.exact.shape)


def _terms(run: _Run) -> float:
    """Count the elements that make one."""
    return max(array.size for array in run.inputs) / max(run.exact.size, 1)


def _along_axis(run: _Run) -> float:
    """Count the elements of an axis, and of those that follow for RMSNormalization."""
    shape = run.inputs[0].shape[run.options.get("axis", -1) :]
    return math.prod(shape) if run.node.op_type == "RMSNormalization" else shape[0]


_RULES: Mapping[str, Callable[[_Run], np.ndarray | None]] = {
    **dict.fromkeys(("Add", "Cast", "DequantizeLinear", "Div", "LeakyRelu"), _once),
    **dict.fromkeys(("Mul", "PRelu", "Reciprocal", "Sqrt", "Sub"), _once),
    **dict.fromkeys(("Conv", "ConvTranspose", "CumSum", "Einsum", "FusedMatMul"), _sum_of_products),
    **dict.fromkeys(("Gemm", "MatMul", "ReduceL1", "ReduceSum"), _sum_of_products),
    **dict.fromkeys(("ReduceSumSquare", "Sum"), _sum_of_products),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _sum_of_products),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "Mean", "ReduceMean"), _mean),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _product(lambda run: _along_axis(run) + 2),
    "Range": _range,
    "ReduceL2": _product(lambda run: _terms(run) / 2 + 2),
    "ReduceProd": _product(_terms),
    "RMSNormalization": _product(lambda run: _along_axis(run) / 2 + 6),
    "Softsign": _product(lambda _run: 3),  # a kernel may multiply by an inverse
}


def _growth(count: float) -> float:
    return math.expm1(count * math.log1p(unit_roundoff(_ACCUMULATOR)))


def _tiny(dtype: Any = _ACCUMULATOR) -> float:
    return float(float_info(dtype).smallest_subnormal)
