"""Integers as functions of the indices of their elements, whatever the sizes; windows of masks.

Masks and positions of a graph whose sizes vary are computed, often by many nodes. What is found
here is proved, operator by operator: it holds in every run. Truth values are 0 and 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


def broadcast(
    found: Affine | None, own: Sequence[Any] | None, shape: Sequence[Any] | None
) -> Affine | None:
    """Read an array as if it had a larger shape: an axis that matters must keep its size.

    Two dimensions are equal when their names are.
    """
    if found is None or not found.slopes:
        return found
    if own is None or shape is None or len(shape) < len(own):
        return None
    return found if all(own[axis] == shape[axis] for axis in found.slopes) else None


def affine(value: ir.Value | None) -> Affine | None:
    """Read the elements of an array of integers as a function of their indices, if they are one."""
    array = constant(value)
    if array is not None:
        return _affine_array(array)
    node = None if value is None or value.dtype not in _EXACT else value.producer()
    if node is None or node.domain or node.op_type not in _OPERATORS:
        return None
    return _OPERATORS[node.op_type](node)


def _affine_array(array: np.ndarray[Any, Any]) -> Affine | None:
    if not array.size or array.dtype.kind not in "biu":
        return None
    array = array.astype(np.int64)
    first = (0,) * array.ndim
    found = Affine(int(array[first]))
    rebuilt = np.full(array.shape, found.offset)
    for axis, size in enumerate(array.shape):
        if size > 1:
            slope = int(array[(*first[:axis], 1, *first[axis + 1 :])]) - found.offset
            found = found.plus(Affine(0, {axis - array.ndim: slope}))
            indices = np.arange(size).reshape(-1, *(1,) * (array.ndim - axis - 1))
            rebuilt = rebuilt + slope * indices
    return found if np.array_equal(array, rebuilt) else None


def _input(node: ir.Node, rank: int = 0) -> Affine | None:
    return affine(node.inputs[rank]) if rank < len(node.inputs) else None


def _range(node: ir.Node) -> Affine | None:
    start, _, step = (scalar(value) for value in node.inputs)
    if start is None or step is None or step != int(step) or start != int(start):
        return None
    return Affine(int(start), {-1: int(step)})


def _sum(node: ir.Node, factor: int) -> Affine | None:
    shape = dimensions(node.outputs[0])
    first, second = (broadcast(affine(v), dimensions(v), shape) for v in node.inputs)
    return None if first is None or second is None else first.plus(second, factor)


def difference(node: ir.Node) -> Affine | None:
    """Read the first input of a node minus the second one, both broadcast to its result."""
    return _sum(node, -1)


def _equal(node: ir.Node) -> Affine | None:
    """Compare arrays whose difference is the same everywhere."""
    gap = difference(node)
    return None if gap is None or gap.slopes else Affine(int(gap.offset == 0))


def _not(node: ir.Node) -> Affine | None:
    found = _input(node)
    return None if found is None else Affine(1).plus(found, -1)


def _expand(node: ir.Node) -> Affine | None:
    shape = dimensions(node.outputs[0]) or _shape_asked(node.inputs[1])
    return broadcast(_input(node), dimensions(node.inputs[0]), shape)


def _shape_asked(value: ir.Value | None) -> Sequence[Any] | None:
    """Read the dimensions that a shape holds, when it is that of another value."""
    shape = from_operator(value, "Shape")
    if shape is None or "end" in shape.attributes or shape.attributes.get_int("start", 0) != 0:
        return None
    return dimensions(shape.inputs[0])


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _unsqueeze(node: ir.Node) -> Affine | None:
    """Renumber the axes: some of size one are added."""
    found, axes = _input(node), integers(node.inputs[1])
    before, after = _rank(node.inputs[0]), _rank(node.outputs[0])
    if found is None or axes is None or before is None or after is None:
        return None
    ones = {axis % after for axis in axes}
    kept = [axis - after for axis in range(after) if axis not in ones]
    if len(kept) != before:
        return None
    return found.moved(dict(zip(range(-before, 0), kept, strict=True)))


def _slice(node: ir.Node) -> Affine | None:
    """Read from a constant start, one by one."""
    if len(node.inputs) != len(("data", "starts", "ends", "axes", "steps")):
        return None
    found, rank = _input(node), _rank(node.inputs[0])
    starts, axes, steps = (integers(node.inputs[i]) for i in (1, 3, 4))
    if found is None or rank is None or starts is None or axes is None or steps is None:
        return None
    if any(start < 0 for start in starts) or set(steps) != {1}:
        return None
    sizes = dimensions(node.outputs[0]) or (None,) * rank
    for start, axis in zip(starts, (axis % rank - rank for axis in axes), strict=True):
        shift = found.slopes.get(axis, 0) * start
        found = found.at(axis, start) if sizes[axis] == 1 else found.plus(Affine(shift))
    return found


def _concat(node: ir.Node) -> Affine | None:
    """Recognize the last piece in the others, whose sizes are known."""
    rank = _rank(node.outputs[0])
    if rank is None:
        return None
    axis = node.attributes["axis"].as_int() % rank - rank
    *firsts, last = node.inputs
    sizes = [(dimensions(piece) or (None,) * rank)[axis] for piece in firsts]
    whole, start = affine(last), 0
    if whole is None or any(size != 1 for size in sizes):
        return None
    whole = whole.plus(Affine(-whole.slopes.get(axis, 0) * len(firsts)))
    for start, piece in enumerate(firsts):
        if affine(piece) != whole.at(axis, start):
            return None
    return whole


def _cumsum(node: ir.Node) -> Affine | None:
    """Add the same number again and again."""
    found, rank, axis = _input(node), _rank(node.inputs[0]), scalar(node.inputs[1])
    if found is None or rank is None or axis is None or found.slopes:
        return None
    if any(node.attributes.get_int(name, 0) for name in ("exclusive", "reverse")):
        return None
    return found.plus(Affine(0, {int(axis) % rank - rank: found.offset}))


def _gather_nd(node: ir.Node) -> Affine | None:
    """Read at indices that are functions of indices, none of them negative."""
    data, rank = _input(node), _rank(node.inputs[0])
    concat = from_operator(node.inputs[1], "Concat")
    if data is None or not data.slopes:
        return data
    if rank is None or concat is None or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    if concat.attributes["axis"].as_int() not in {-1, (_rank(concat.outputs[0]) or 0) - 1}:
        return None
    pieces = [affine(piece) for piece in concat.inputs]
    if len(pieces) != rank:  # one piece for each axis
        return None
    found = Affine(data.offset)
    for axis, piece in zip(range(-rank, 0), pieces, strict=True):
        if axis not in data.slopes:
            continue
        if piece is None or -1 in piece.slopes or min([piece.offset, *piece.slopes.values()]) < 0:
            return None
        # the last axis of the indices tells the axes of the data
        found = found.plus(piece.moved({a: a + 1 for a in piece.slopes}), data.slopes[axis])
    return found


def _cast(node: ir.Node) -> Affine | None:
    return _input(node) if node.attributes["to"].as_int() != ir.DataType.BOOL else None


_OPERATORS: Mapping[str, Callable[[ir.Node], Affine | None]] = {
    "Add": lambda node: _sum(node, 1),
    "Cast": _cast,
    "Concat": _concat,
    "CumSum": _cumsum,
    "Equal": _equal,
    "Expand": _expand,
    "GatherND": _gather_nd,
    "Not": _not,
    "Range": _range,
    "Slice": _slice,
    "Sub": difference,
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
    array = constant(mask)
    if array is not None:
        visible = _visible(array)
        return None if visible is None else _band(visible)
    choice = from_operator(mask, "Where")
    if choice is not None:
        condition, shown, hidden = choice.inputs
        same = _is_added(shown, visible=True) and _is_added(hidden, visible=False)
        return _proved_window(condition, dimensions(mask)) if same else None
    return _proved_window(mask, dimensions(mask))


def _visible(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Read what a constant mask shows; None when it is no mask, a bias for instance."""
    if mask.dtype == np.bool_:
        return mask
    try:
        hidden = mask <= float_info(mask.dtype).min / 2
    except InvalidArgumentError:
        return None
    visible: np.ndarray[Any, Any] = mask == 0
    return visible if bool((visible != hidden).all()) else None


def _is_added(number: ir.Value | None, *, visible: bool) -> bool:
    """Whether a constant shows every key, or hides every one."""
    array = constant(number)
    shown = None if array is None else _visible(array)
    return shown is not None and bool((shown == visible).all())


def _band(visible: np.ndarray[Any, Any]) -> int | None:
    """Width of the band below the diagonal, when there is nothing else."""
    length = visible.shape[-1]
    if visible.ndim <= 1 or visible.shape[-2] != length or not length:
        return None
    width = int(visible.reshape(-1, length)[-1].sum())
    band = np.tri(length, dtype=bool) & ~np.tri(length, k=-width, dtype=bool)
    return width if width and bool((visible == band).all()) else None


def _proved_window(truth: ir.Value | None, shape: Sequence[Any] | None) -> float | None:
    conditions = _conditions(truth, shape)
    if conditions is None:
        return None
    if any(c.slopes not in (_NOT_AFTER, _NOT_LONG_BEFORE) for c in conditions if c != _ALWAYS):
        return None
    after = min((c.offset for c in conditions if c.slopes == _NOT_AFTER), default=None)
    before = min((c.offset for c in conditions if c.slopes == _NOT_LONG_BEFORE), default=math.inf)
    return before + 1 if after == 0 and before >= 0 else None


def _conditions(truth: ir.Value | None, shape: Sequence[Any] | None) -> list[Affine] | None:
    """List what must be positive or zero for an element to be true, read over a larger shape."""
    own = _own_conditions(truth)
    found = [broadcast(c, dimensions(truth), shape) for c in own or ()]
    return None if own is None or None in found else [c for c in found if c is not None]


def _own_conditions(truth: ir.Value | None) -> list[Affine] | None:
    array, known = constant(truth), affine(truth)
    if known is not None and not known.slopes:
        return [_ALWAYS] if known.offset else None
    if array is not None:
        return _conditions_of_band(array)
    node = None if truth is None else truth.producer()
    if node is None or node.domain:
        return None
    if node.op_type in _COMPARISONS:
        gap, (sign, offset) = difference(node), _COMPARISONS[node.op_type]
        return None if gap is None else [Affine(offset).plus(gap, sign)]
    if node.op_type not in _EACH_HOLDS:
        return None
    shape = dimensions(node.outputs[0])
    each = [_conditions(node.inputs[i], shape) for i in range(_EACH_HOLDS[node.op_type])]
    return None if None in each else [c for found in each for c in found or ()]


def _conditions_of_band(visible: np.ndarray[Any, Any]) -> list[Affine] | None:
    width = _band(visible) if visible.dtype == np.bool_ else None
    if width is None:
        return None
    past = Affine(0, _NOT_AFTER)
    whole = width == visible.shape[-1]
    return [past] if whole else [past, Affine(width - 1, _NOT_LONG_BEFORE)]
