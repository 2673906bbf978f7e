"""Integers as functions of the indices of their elements, whatever the sizes.

Masks and positions of a graph whose sizes vary are computed, often by many nodes. What is found
here is proved, operator by operator: it holds in every run. Truth values are 0 and 1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.affine import Affine, broadcast
from ortmeter.backend.rules.values import constant, dimensions, from_operator, scalar

__all__ = ["affine", "difference", "integers"]

_EXACT = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})


def affine(value: ir.Value | None) -> Affine | None:
    """Give the elements of an array of integers as a function of their indices.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.

    Returns
    -------
    Affine or None
        None when it is not known to be one.

    Examples
    --------
    >>> grid = ir.tensor(np.arange(6).reshape(2, 3))
    >>> affine(ir.Value(name="grid", const_value=grid))
    Affine(offset=0, slopes={-2: 3, -1: 1})
    """
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
    """Give the first input of a node minus the second one, both broadcast to its result.

    Parameters
    ----------
    node : onnx_ir.Node
        A node with two inputs of integers.

    Returns
    -------
    Affine or None
        None when one of them is not known.

    Examples
    --------
    >>> inputs = [ir.Value(name=str(i), const_value=ir.tensor(i)) for i in (3, 5)]
    >>> difference(ir.Node("", "Less", inputs))
    Affine(offset=-2, slopes={})
    """
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
    """Give the dimensions that a shape holds, when it is that of another value."""
    shape = from_operator(value, "Shape")
    if shape is None or "end" in shape.attributes or shape.attributes.get_int("start", 0) != 0:
        return None
    return dimensions(shape.inputs[0])


def integers(value: ir.Value | None) -> list[int] | None:
    """Give the numbers of a constant vector of integers.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.

    Returns
    -------
    list of int or None
        None when it is not constant, or has another rank or type.

    Examples
    --------
    >>> integers(ir.Value(name="axes", const_value=ir.tensor([1, 2])))
    [1, 2]
    """
    array = constant(value)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        return None
    return [int(number) for number in array]


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _unsqueeze(node: ir.Node) -> Affine | None:
    return _with_axes(node, new=node.outputs[0], kept_in=node.inputs[0])


def _squeeze(node: ir.Node) -> Affine | None:
    return _with_axes(node, new=node.inputs[0], kept_in=node.outputs[0])


def _with_axes(node: ir.Node, *, new: ir.Value | None, kept_in: ir.Value | None) -> Affine | None:
    """Renumber axes when some of size one are added or removed, which the longer value has."""
    found, axes = _input(node), integers(node.inputs[1]) if len(node.inputs) > 1 else None
    long, short = _rank(new), _rank(kept_in)
    if found is None or axes is None or long is None or short is None:
        return None
    ones = {axis % long for axis in axes}
    kept = [axis - long for axis in range(long) if axis not in ones]
    if len(kept) != short:
        return None
    pairs = dict(zip(range(-short, 0), kept, strict=True))
    if new is node.inputs[0]:
        pairs = {after: before for before, after in pairs.items()}
        for axis in ones:  # its only index is 0
            found = found.at(axis - long, 0)
    return found.moved(pairs)


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
    "Identity": _input,
    "Not": _not,
    "Range": _range,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": difference,
    "Unsqueeze": _unsqueeze,
}
