"""How far from its exact result a model may be: bounds derived from the roundings it needs."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ortmeter.attribution.reduction import Reduced, arrays_of, with_arrays
from ortmeter.dtypes import numpy_dtype
from ortmeter.observatory.reference import reference
from ortmeter.operators import find_operator
from ortmeter.operators.roundings import Change, Run
from ortmeter.runtime.graphs import attributes

__all__ = ["error_bounds", "weight_bounds"]

_Arrays = Mapping[str, np.ndarray]


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
    entry = find_operator(node.op_type, node.domain)
    if entry.bound is None:
        return {}
    names = [name for name, kind in kinds.items() if kind.kind in "iu"]
    if not entry.is_quantized:
        narrow = {np.dtype(np.float32), np.dtype(np.float16)}
        names = [name for name in node.output[:1] if kinds[name] in narrow]
    operands = arrays_of(whole := Reduced("", model, feeds))
    given = [operands[name] for name in node.input if name]
    run_on = functools.partial(_run_on, whole)
    runs = {n: Run(attributes(node), given, expected[n], kinds[n], run_on) for n in names}
    bounds = ((name, entry.bound(run)) for name, run in runs.items())
    return {name: bound for name, bound in bounds if bound is not None}


def weight_bounds(
    model: onnx.ModelProto,
    feeds: _Arrays,
    expected: _Arrays,
    relative: float,
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
    rng, whole = np.random.default_rng(0), Reduced("", model, feeds)
    weights = {n: a for n, a in arrays_of(whole).items() if n not in feeds and a.ndim > 1}
    moved = {
        name: (values * (1 + rng.choice([-relative, relative], values.shape))).astype(values.dtype)
        for name, values in weights.items()
    }
    changed = with_arrays(whole, moved, "weights moved")
    found = reference(changed.proto, changed.arrays).outputs
    return {name: float(np.abs(found[name] - exact).max()) for name, exact in expected.items()}


def _rounds_nothing(nodes: Sequence[onnx.NodeProto], kinds: Any) -> bool:
    known = [find_operator(node.op_type, node.domain) for node in nodes]
    adds = any(attributes(node).get("reduction") == b"add" for node in nodes)
    if not adds and all(entry.is_exact for entry in known):
        return True
    quantized = any(entry.is_quantized for entry in known)
    return len(nodes) == 1 and all(kind.kind in "iub" for kind in kinds) and not quantized


def _run_on(whole: Reduced, change: Change) -> np.ndarray | None:
    """Run the operator on changed operands, integers excepted; so are the scales of a Gemm."""
    floats = {n: change(a) for n, a in arrays_of(whole).items() if a.dtype.kind == "f"}
    changed = with_arrays(whole, floats, "changed")
    for attribute in changed.proto.graph.node[0].attribute:
        if attribute.name in {"alpha", "beta"}:
            attribute.f = float(change(np.array(attribute.f)))
    return next(iter(reference(changed.proto, changed.arrays).outputs.values()), None)
