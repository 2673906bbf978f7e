"""Integers as functions of the indices of their elements, whatever the sizes; windows of masks.

Masks and positions of a graph whose sizes vary are computed, often by many nodes. What is found
here is proved, operator by operator: it holds in every run. Truth values are 0 and 1. What cannot
be proved raises `_Unknown`, which ends at the functions that others call.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.graph_values import (
    constant,
    dimensions,
    from_operator,
    integers,
    scalar,
)
from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError

T = TypeVar("T")

_EXACT = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})


@dataclass(frozen=True)
class Affine:
    """``offset + sum(slope * index)``, the element of an array at given indices.

    Slopes are by axis, -1 is the last one; none of them is zero.
    """

    offset: int
    slopes: Mapping[int, int] = field(default_factory=dict)

    def plus(self, other: "Affine", factor: int = 1) -> "Affine":
        """Add another one, times a factor."""
        slopes = dict(self.slopes)
        for axis, slope in other.slopes.items():
            slopes[axis] = slopes.get(axis, 0) + factor * slope
        kept = {axis: slope for axis, slope in slopes.items() if slope}
        return Affine(self.offset + factor * other.offset, kept)

    def at(self, axis: int, index: int) -> "Affine":
        """Fix an index."""
        others = {a: slope for a, slope in self.slopes.items() if a != axis}
        return Affine(self.offset + index * self.slopes.get(axis, 0), others)

    def moved(self, axes: Mapping[int, int]) -> "Affine":
        """Renumber the axes."""
        return Affine(self.offset, {axes[axis]: slope for axis, slope in self.slopes.items()})


class _Unknown(Exception):  # noqa: N818 - it says no, it is not an error
    """It is not proved that an array is what is asked."""


def _prove(holds: object) -> None:
    if not holds:
        raise _Unknown


def _known(found: T | None) -> T:
    if found is None:
        raise _Unknown
    return found


def affine(value: ir.Value | None) -> Affine | None:
    """Read the elements of an array of integers as a function of their indices, if they are one."""
    with suppress(_Unknown):
        return _affine(value)
    return None


def _affine(value: ir.Value | None) -> Affine:
    array = constant(value)
    if array is not None:
        return _affine_array(array)
    _prove(_known(value).dtype in _EXACT)
    node = _known(_known(value).producer())
    _prove(not node.domain and node.op_type in _OPERATORS)
    return _OPERATORS[node.op_type](node)


def _affine_array(array: np.ndarray[Any, Any]) -> Affine:
    _prove(array.size and array.dtype.kind in "biu")
    array = array.astype(np.int64)
    first = int(array.flat[0])
    seconds = [int(array.take(size > 1, axis).flat[0]) for axis, size in enumerate(array.shape)]
    slopes = {axis: second - first for axis, second in enumerate(seconds) if second != first}
    indices = np.indices(array.shape, sparse=True)
    _prove((array == first + sum(slope * indices[axis] for axis, slope in slopes.items())).all())
    return Affine(first, {axis - array.ndim: slope for axis, slope in slopes.items()})


def _broadcast(found: Affine, own: Sequence[Any] | None, shape: Sequence[Any] | None) -> Affine:
    """Read an array as if it had a larger shape: an axis that matters must keep its size.

    Two dimensions are equal when their names are.
    """
    if found.slopes:
        own, shape = _known(own), _known(shape)
        _prove(len(shape) >= len(own) and all(own[axis] == shape[axis] for axis in found.slopes))
    return found


def _rank(value: ir.Value | None) -> int:
    return len(_known(_known(value).shape))


def _range(node: ir.Node) -> Affine:
    start, _, step = (scalar(value) for value in node.inputs)
    start, step = _known(start), _known(step)
    _prove(start == int(start) and step == int(step))
    return Affine(int(start), {-1: int(step)})


def _sum(node: ir.Node, factor: int) -> Affine:
    shape = dimensions(node.outputs[0])
    first, second = (_broadcast(_affine(v), dimensions(v), shape) for v in node.inputs)
    return first.plus(second, factor)


def _difference(node: ir.Node) -> Affine:
    """Read the first input of a node minus the second one, both broadcast to its result."""
    return _sum(node, -1)


def _equal(node: ir.Node) -> Affine:
    """Compare arrays whose difference is the same everywhere."""
    gap = _difference(node)
    _prove(not gap.slopes)
    return Affine(int(gap.offset == 0))


def _not(node: ir.Node) -> Affine:
    return Affine(1).plus(_affine(node.inputs[0]), -1)


def _expand(node: ir.Node) -> Affine:
    value, wanted = node.inputs
    shape = dimensions(node.outputs[0]) or _shape_asked(wanted)
    return _broadcast(_affine(value), dimensions(value), shape)


def _shape_asked(value: ir.Value | None) -> Sequence[Any] | None:
    """Read the dimensions that a shape holds, when it is that of another value."""
    shape = from_operator(value, "Shape")
    if shape is None or "end" in shape.attributes or shape.attributes.get_int("start", 0) != 0:
        return None
    return dimensions(shape.inputs[0])


def _unsqueeze(node: ir.Node) -> Affine:
    """Renumber the axes: some of size one are added."""
    value, axes = node.inputs
    before, after = _rank(value), _rank(node.outputs[0])
    ones = {axis % after for axis in _known(integers(axes))}
    kept = [axis - after for axis in range(after) if axis not in ones]
    _prove(len(kept) == before)
    return _affine(value).moved(dict(zip(range(-before, 0), kept, strict=True)))


def _slice(node: ir.Node) -> Affine:
    """Read from a constant start, one by one."""
    _prove(len(node.inputs) == len(("data", "starts", "ends", "axes", "steps")))
    data = node.inputs[0]
    starts, axes, steps = (_known(integers(node.inputs[i])) for i in (1, 3, 4))
    _prove(min(starts, default=0) >= 0 and set(steps) == {1})
    found, rank = _affine(data), _rank(data)
    sizes = dimensions(node.outputs[0]) or (None,) * rank
    for start, axis in zip(starts, (axis % rank - rank for axis in axes), strict=True):
        shift = found.slopes.get(axis, 0) * start
        found = found.at(axis, start) if sizes[axis] == 1 else found.plus(Affine(shift))
    return found


def _concat(node: ir.Node) -> Affine:
    """Recognize the last piece in the others, whose sizes are known."""
    rank = _rank(node.outputs[0])
    axis = node.attributes["axis"].as_int() % rank - rank
    *firsts, last = node.inputs
    _prove(all((dimensions(piece) or (None,) * rank)[axis] == 1 for piece in firsts))
    whole = _affine(last)
    whole = whole.plus(Affine(-whole.slopes.get(axis, 0) * len(firsts)))
    _prove(all(_affine(piece) == whole.at(axis, i) for i, piece in enumerate(firsts)))
    return whole


def _cumsum(node: ir.Node) -> Affine:
    """Add the same number again and again."""
    found, rank, axis = _affine(node.inputs[0]), _rank(node.inputs[0]), scalar(node.inputs[1])
    options = (node.attributes.get_int(name, 0) for name in ("exclusive", "reverse"))
    _prove(not found.slopes and not any(options))
    return found.plus(Affine(0, {int(_known(axis)) % rank - rank: found.offset}))


def _gather_nd(node: ir.Node) -> Affine:
    """Read at indices that are functions of indices, none of them negative."""
    data, indices = _affine(node.inputs[0]), node.inputs[1]
    if not data.slopes:
        return data
    rank, concat = _rank(node.inputs[0]), _known(from_operator(indices, "Concat"))
    _prove(node.attributes.get_int("batch_dims", 0) == 0)
    axis = concat.attributes["axis"].as_int()
    _prove(axis == -1 or axis == _rank(indices) - 1)
    _prove(len(concat.inputs) == rank)  # one piece for each axis
    found = Affine(data.offset)
    for axis, value in zip(range(-rank, 0), concat.inputs, strict=True):
        if axis in data.slopes:
            piece = _affine(value)
            _prove(-1 not in piece.slopes and min([piece.offset, *piece.slopes.values()]) >= 0)
            # the last axis of the indices tells the axes of the data
            found = found.plus(piece.moved({a: a + 1 for a in piece.slopes}), data.slopes[axis])
    return found


def _read_cast(node: ir.Node) -> Affine:
    _prove(node.attributes["to"].as_int() != ir.DataType.BOOL)
    return _affine(node.inputs[0])


_OPERATORS: Mapping[str, Callable[[ir.Node], Affine]] = {
    "Add": lambda node: _sum(node, 1),
    "Cast": _read_cast,
    "Concat": _concat,
    "CumSum": _cumsum,
    "Equal": _equal,
    "Expand": _expand,
    "GatherND": _gather_nd,
    "Not": _not,
    "Range": _range,
    "Slice": _slice,
    "Sub": _difference,
    "Unsqueeze": _unsqueeze,
}


# Mask of keys that are not after the query.
_NOT_AFTER = {-2: 1, -1: -1}
# Mask of keys that are not too long before the query.
_NOT_LONG_BEFORE = {-2: -1, -1: 1}
# Holds everywhere.
_ALWAYS = Affine(0)
# True where these inputs are, the first ones.
_EACH_HOLDS = {"And": 2, "Expand": 1}
# a <op> b is sign * (a - b) + offset >= 0, for integers.
_COMPARISONS = {
    "GreaterOrEqual": (1, 0),
    "Greater": (1, -1),
    "LessOrEqual": (-1, 0),
    "Less": (-1, -1),
}


def window(mask: ir.Value) -> float | None:
    """Count the keys that a mask shows to each query: itself and those just before.

    Its last axes are the queries and the keys, as many of each. Infinite when all of the past is
    seen, whatever the length; None when the mask is not known to hide nothing else.
    """
    with suppress(_Unknown):
        return _window(mask)
    return None


def _window(mask: ir.Value) -> float:
    array = constant(mask)
    if array is not None:
        return _band(_visible(array))
    truth: ir.Value | None = mask
    choice = from_operator(mask, "Where")
    if choice is not None:
        truth, shown, hidden = choice.inputs
        _prove(_visible(_known(constant(shown))).all())
        _prove(not _visible(_known(constant(hidden))).any())
    conditions = [c for c in _conditions(truth, dimensions(mask)) if c != _ALWAYS]
    _prove(all(c.slopes in (_NOT_AFTER, _NOT_LONG_BEFORE) for c in conditions))
    after = min((c.offset for c in conditions if c.slopes == _NOT_AFTER), default=None)
    before = min((c.offset for c in conditions if c.slopes == _NOT_LONG_BEFORE), default=math.inf)
    _prove(after == 0 and before >= 0)
    return before + 1


def _visible(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Read what a constant shows, if it is a mask: a bias, for instance, is not."""
    if mask.dtype == np.bool_:
        return mask
    try:
        hidden = mask <= float_info(mask.dtype).min / 2
    except InvalidArgumentError as no_float:
        raise _Unknown from no_float
    visible: np.ndarray[Any, Any] = mask == 0
    _prove((visible != hidden).all())
    return visible


def _band(visible: np.ndarray[Any, Any]) -> int:
    """Width of the band below the diagonal, when there is nothing else."""
    length = visible.shape[-1] if visible.ndim > 1 else 0
    _prove(length and visible.shape[-2] == length)
    width = int(visible.reshape(-1, length)[-1].sum())
    band = np.tri(length, dtype=bool) & ~np.tri(length, k=-width, dtype=bool)
    _prove(width and (visible == band).all())
    return width


def _conditions(truth: ir.Value | None, shape: Sequence[Any] | None) -> list[Affine]:
    """List what must be positive or zero for an element to be true, read over a larger shape."""
    own = dimensions(truth)
    return [_broadcast(condition, own, shape) for condition in _own_conditions(truth)]


def _own_conditions(truth: ir.Value | None) -> list[Affine]:
    array, everywhere = constant(truth), affine(truth)
    if everywhere is not None and not everywhere.slopes:
        _prove(everywhere.offset)
        return [_ALWAYS]
    if array is not None:
        _prove(array.dtype == np.bool_)
        width, past = _band(array), Affine(0, _NOT_AFTER)
        whole = width == array.shape[-1]
        return [past] if whole else [past, Affine(width - 1, _NOT_LONG_BEFORE)]
    node = _known(_known(truth).producer())
    _prove(not node.domain)
    if node.op_type in _COMPARISONS:
        sign, offset = _COMPARISONS[node.op_type]
        return [Affine(offset).plus(_difference(node), sign)]
    _prove(node.op_type in _EACH_HOLDS)
    shape, inputs = dimensions(node.outputs[0]), node.inputs[: _EACH_HOLDS[node.op_type]]
    return [condition for value in inputs for condition in _conditions(value, shape)]
