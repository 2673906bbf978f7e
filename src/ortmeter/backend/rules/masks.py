"""What a mask lets each query see: all of the past, or a window of it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.affine import Affine, broadcast
from ortmeter.backend.rules.indices import affine, difference
from ortmeter.backend.rules.rule import BF16, F16, F32, Rule
from ortmeter.backend.rules.values import (
    constant,
    copy_type,
    dimensions,
    from_operator,
    producer,
)
from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError

__all__ = ["RULES", "CausalMask", "WindowMask", "window"]

# Rank of the mask among the inputs of Attention.
_MASK = 3
# Axes of a mask that all the sequences share.
_QUERIES_AND_KEYS = 2

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


class CausalMask:
    """A mask that hides the future, constant or computed -> the attribute ``is_causal``."""

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Attention with a mask and no cache."""
        return op.Attention(q, k, v, mask, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self, op: Any, *, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value, y: ir.Value
    ) -> Any:
        """Keep the other attributes; there must be as many queries as keys."""
        queries, keys = dimensions(q), dimensions(k)
        if queries is None or keys is None or queries[-2] != keys[-2]:
            return None
        length, shape = queries[-2], dimensions(mask)
        if shape is None or shape[-2:] != (length, length):
            return None
        seen = window(mask)
        if seen is None or seen < (length if isinstance(length, int) else math.inf):
            return None
        options = dict(producer(y).attributes) | {"is_causal": ir.AttrInt64("is_causal", 1)}
        result = op.Attention(q, k, v, **options)
        copy_type(result, y)
        return result


class WindowMask:
    """A window that is computed for each sequence -> computed from the length, for all of them.

    Parameters
    ----------
    operator : {"And", "Where"}
        What gives the mask, truth values or numbers.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pattern(self, op: Any, seen: Any, shown: Any, hidden: Any) -> Any:
        """Others may read the inputs."""
        inputs = (seen, shown, hidden) if self.operator == "Where" else (seen, shown)
        return getattr(op, self.operator)(*inputs, _outputs=["mask"])

    def rewrite(
        self,
        op: Any,
        *,
        mask: ir.Value,
        shown: ir.Value,
        hidden: ir.Value | None,
        **_: ir.Value,
    ) -> Any:
        """Only Attention may read the mask, which loses its first axes."""
        shape, width = dimensions(mask), window(mask)
        if shape is None or len(shape) <= _QUERIES_AND_KEYS or width is None or math.isinf(width):
            return None
        if mask.is_graph_output() or not all(_reads_mask(*use) for use in mask.uses()):
            return None
        length = _size(op, mask.graph, shape[-1])
        if length is None:
            return None
        row = op.Range(_number(op, 0), length, _number(op, 1))
        before = op.Sub(op.Unsqueeze(row, op.Constant(value_ints=[1])), row)
        first, last = op.Less(before, _number(op, int(width))), op.Less(_number(op, -1), before)
        seen = op.And(first, last)
        mask.shape = ir.Shape(shape[-2:])  # what replaces a result takes its shape
        return seen if hidden is None else op.Where(seen, shown, hidden)


def _reads_mask(node: ir.Node, rank: int) -> bool:
    return node.op_identifier() == ("", "Attention", "") and rank == _MASK


def _number(op: Any, number: int) -> ir.Value:
    value: ir.Value = op.Constant(value_int=number)
    return value


def _size(op: Any, graph: ir.Graph | None, name: int | str) -> ir.Value | None:
    """Read a dimension from an input of the graph, which is there before every node."""
    if isinstance(name, int):
        return _number(op, name)
    for value in graph.inputs if graph else ():
        shape = dimensions(value) or ()
        if name in shape:
            axis = shape.index(name)
            size: ir.Value = op.Squeeze(op.Shape(value, start=axis, end=axis + 1))
            return size
    return None


def window(mask: ir.Value) -> float | None:
    """Tell how many keys a mask shows to each query: itself and those just before.

    Parameters
    ----------
    mask : onnx_ir.Value
        Truth values, or numbers added to the scores; its last axes are the queries and the keys,
        as many of each.

    Returns
    -------
    float or None
        Infinite when all of the past is seen, whatever the length; None when the mask hides
        something else, or is not known to hide nothing else.

    Examples
    --------
    >>> seen = np.tri(5, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)
    >>> window(ir.Value(name="mask", const_value=ir.tensor(seen)))
    2
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
    """Tell what a constant mask shows; None when it is no mask, a bias for instance."""
    if mask.dtype == np.bool_:
        return mask
    try:
        hidden = mask <= float_info(mask.dtype).min / 2
    except InvalidArgumentError:
        return None
    visible: np.ndarray[Any, Any] = mask == 0
    return visible if bool((visible != hidden).all()) else None


def _is_added(number: ir.Value | None, *, visible: bool) -> bool:
    """Tell whether a constant shows every key, or hides every one."""
    array = constant(number)
    shown = None if array is None else _visible(array)
    return shown is not None and bool((shown == visible).all())


def _band(visible: np.ndarray[Any, Any]) -> int | None:
    """Tell how wide the band below the diagonal is, when there is nothing else."""
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
    """Give what must be positive or zero for an element to be true, read over a larger shape."""
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


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}

#: The rules of this family.
RULES = (
    Rule("CausalMask", "default", (CausalMask(),), _TYPES, opset=23),
    Rule(
        "WindowMask",
        "default",
        (WindowMask("And"), WindowMask("Where")),
        {name: types | {ir.DataType.BOOL} for name, types in _TYPES.items()},
        opset=23,
    ),
)
