"""Attention of the standard, recognized in the products of eager attention, and its masks."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.graph_values import (
    SWAP,
    Shape,
    constant,
    dimensions,
    from_operator,
    producer,
    read_once,
    scalar,
    typed,
)
from ortmeter.backend.rules.rule import F32, known, require
from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError

# Exchanges the positions and the features of the keys.
_TRANSPOSED = (0, 1, 3, 2)
# The same after SWAP.
_MERGED = (0, 2, 3, 1)


class EagerAttention:
    """``softmax(q @ transpose(k) [* scale] [+ mask]) @ v`` -> Attention.

    Scores that are capped stay: on CPU the kernel takes longer to cap than the nodes do, on CUDA it
    is no Flash kernel with the mask that they have. When *widened*, weights of 16 bits are computed
    in 32 bits, as the kernel does.
    """

    def __init__(self, *, widened: bool = False) -> None:
        self.widened = widened

    def pattern(self, op: Any, scores: Any, v: Any) -> Any:
        wide = op.Cast(scores, to=int(F32)) if self.widened else scores
        weights = op.Softmax(wide, axis=-1)
        return op.MatMul(op.Cast(weights) if self.widened else weights, v)

    def rewrite(self, op: Any, *, scores: ir.Value, v: ir.Value) -> Any:
        why = "the scores are not scaled products with transposed keys"
        found = known(read_scores(scores), why)
        require(found.scale > 0, f"the scale is {found.scale:g}: the kernel takes its root")
        require(found.q.dtype == v.dtype, "queries and values have different types")
        queries, keys, values = (
            known(dimensions(x, rank=4), "heads are not split, or their shape is not known")
            for x in (found.q, found.k, v)
        )
        if found.merged:
            keys = tuple(keys[axis] for axis in SWAP)
        require(queries[:2] == keys[:2] == values[:2], "keys or values are shared by the heads")
        covers = not found.mask or _covers(dimensions(found.mask), (*queries[:3], keys[2]))
        require(covers, "the mask is broadcast over queries or keys")
        k = found.k
        if found.merged:  # split the keys into heads again
            k = typed(op.Transpose(k, perm=SWAP), found.k, keys)
        inputs = (found.q, k, v, _whole(op, found.mask)) if found.mask else (found.q, k, v)
        return op.Attention(*inputs, scale=found.scale)


@dataclass(frozen=True)
class Scores:
    """What the scores of an attention are computed from, by nodes whose results nobody else reads.

    When *merged*, the transposition of the keys is merged with that of their split into heads. The
    mask is added at the end.
    """

    q: ir.Value
    k: ir.Value
    merged: bool
    scale: float = 1.0
    mask: ir.Value | None = None


def read_scores(scores: ir.Value) -> Scores | None:
    """Read what a softmax is applied to, if it is the scores of an attention."""
    for inner, mask in _operands(scores, "Add"):
        found = _scaled(inner)
        if found is not None:
            return replace(found, mask=mask)
    return _scaled(scores)


def _scaled(scores: ir.Value) -> Scores | None:
    for operator, power in (("Mul", 1), ("Div", -1)):
        for inner, scale in _operands(scores, operator):
            found, factor = _product(inner), scalar(scale)
            if found is not None and factor:
                return replace(found, scale=factor**power)
    return _product(scores)


def _product(scores: ir.Value) -> Scores | None:
    for queries, keys in _operands(scores, "MatMul"):
        transpose = _inner(keys, "Transpose")
        perm = tuple(transpose.attributes["perm"].as_ints()) if transpose else ()
        if transpose and transpose.inputs[0] and perm in {_TRANSPOSED, _MERGED}:
            return Scores(queries, transpose.inputs[0], perm == _MERGED)
    return None


def _inner(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Find the node that computes a value which nothing else reads."""
    return from_operator(value, op_type) if value is not None and read_once(value) else None


def _operands(value: ir.Value | None, op_type: str) -> list[tuple[ir.Value, ir.Value]]:
    """List the inputs of the node that computes a value, in both orders when it has no order."""
    node = _inner(value, op_type)
    first, second = node.inputs if node else (None, None)
    if first is None or second is None:
        return []
    both = [(first, second), (second, first)]
    return both if op_type in {"Add", "Mul"} else both[:1]


def _covers(mask: Shape | None, scores: Shape) -> bool:
    """Whether a mask needs no broadcast but over the batch and the heads.

    A mask with fewer columns than keys is padded by Attention, not broadcast.
    """
    if mask is None or mask[-2:] != scores[-2:] or len(mask) > len(scores):
        return False
    return all(dim in {1, size} for dim, size in zip(mask[-3::-1], scores[-3::-1], strict=False))


def _whole(op: Any, mask: ir.Value) -> ir.Value:
    """Make a mask whose rows that hide every key give what a softmax of them does, not zeros.

    The kernel has zeros where the scores are the lowest number or below. A softmax has the mean of
    the values, or NaN where the mask is minus infinity.
    """
    if window(mask) is not None:
        return mask  # each query sees itself
    dtype = known(mask.dtype, "the type of the mask is not known").numpy()
    above, nan = (
        op.Constant(value=ir.tensor(np.array(number, dtype)))
        for number in (np.nextafter(float_info(dtype).min, dtype.type(0)), math.nan)
    )
    # The kernels that follow exist for 32 bits everywhere.
    row = op.ReduceMax(op.Cast(mask, to=int(F32)), op.Constant(value_ints=[-1]), keepdims=1)
    hidden = op.IsInf(row, detect_positive=0)
    return typed(op.Where(hidden, nan, op.Max(mask, above)), mask)


class CausalMask:
    """A constant mask that hides the future -> the attribute ``is_causal``."""

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return op.Attention(q, k, v, mask, _outputs=["y"])

    def rewrite(self, op: Any, *, mask: ir.Value, y: ir.Value, **_: Any) -> Any:
        q, k, v, *_masks = producer(y).inputs
        why = "the shapes of queries and keys are not known"
        length, keys = (known(dimensions(x), why)[-2] for x in (q, k))
        require(length == keys, "there are not as many queries as keys")
        seen = keys_seen(mask, length, "hide exactly the future")
        require(seen == length, f"the mask is a window of {seen} keys")
        options = {**producer(y).attributes, "is_causal": 1}
        return typed(op.Attention(q, k, v, **options), y)


def keys_seen(mask: ir.Value, length: int | str, what: str = "show exactly a window") -> int:
    """Count the keys that a mask shows to each query, the last ones before it."""
    square = (dimensions(mask) or ())[-2:] == (length, length)
    require(square, "the mask is not a square of positions")
    return known(window(mask), f"the mask is not known to {what}")


def window(mask: ir.Value) -> int | None:
    """Count the keys that a constant mask shows to each query: itself and those just before.

    Its last axes are the queries and the keys, as many of each. None when it is another mask, or
    one that is computed: on CPU, knowing a computed one brought nothing to models of 512 features.
    """
    expand = from_operator(mask, "Expand")
    array = constant(expand.inputs[0] if expand else mask)
    if array is None or array.ndim < 2 or (dimensions(mask) or ())[-2:] != array.shape[-2:]:  # noqa: PLR2004 - of a matrix
        return None
    queries, keys = array.shape[-2:]
    visible = _visible(array)
    if visible is None or queries != keys or not keys:
        return None
    width = int(visible.reshape(-1, keys)[-1].sum())
    band = np.tri(keys, dtype=bool) & ~np.tri(keys, k=-width, dtype=bool)
    return width if width and (visible == band).all() else None


def _visible(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Read what a constant shows, if it is a mask: a bias, for instance, is not."""
    if mask.dtype == np.bool_:
        return mask
    try:
        hidden = mask <= float_info(mask.dtype).min / 2
    except InvalidArgumentError:  # no floats
        return None
    visible: np.ndarray[Any, Any] = mask == 0
    return visible if (visible != hidden).all() else None
