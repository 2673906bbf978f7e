"""Attention of the standard: recognized, on unsplit heads, grouped, causal without a mask."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Fusion, Rule
from ortmeter.backend.rules.values import (
    constant,
    copy_type,
    dimensions,
    from_operator,
    producer,
    scalar,
)
from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError

__all__ = ["RULES", "AttentionBeforeSplit", "CausalMask", "EagerAttention", "RepeatedHeads"]

# Exchanges the heads and the positions.
_SWAP = (0, 2, 1, 3)


class EagerAttention:
    """``softmax(q @ transpose(k) [* scale] [+ mask]) @ v`` -> Attention.

    Parameters
    ----------
    scaling : {"Mul", "Div", None}
        How the scores are scaled.
    masked : bool
        Whether a mask is added to the scores.
    merged : bool
        Whether the transposition of the keys is merged with that of their split into heads.
    """

    def __init__(self, scaling: str | None, *, masked: bool, merged: bool) -> None:
        self.scaling, self.masked, self.merged = scaling, masked, merged

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, q: Any, k: Any, v: Any, scale: Any, mask: Any
    ) -> Any:
        """The axes are the batch, the heads, the positions and the features of a head."""
        scores = op.MatMul(q, op.Transpose(k, perm=(0, 2, 3, 1) if self.merged else (0, 1, 3, 2)))
        if self.scaling:
            scores = getattr(op, self.scaling)(scores, scale)
        if self.masked:
            scores = op.Add(scores, mask)
        return op.MatMul(op.Softmax(scores, axis=-1), v)

    def rewrite(
        self,
        op: Any,
        *,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        scale: ir.Value | None,
        mask: ir.Value | None,
    ) -> Any:
        """Split the keys into heads again when the transposition was merged."""
        queries, given, values = (dimensions(x, rank=4) for x in (q, k, v))
        factor = scalar(scale) if self.scaling else 1.0
        if queries is None or given is None or values is None or not factor:
            return None
        keys = tuple(given[axis] for axis in _SWAP) if self.merged else given
        if not queries[:2] == keys[:2] == values[:2]:
            return None
        if mask is not None and not _covers(dimensions(mask), (*queries[:3], keys[2])):
            return None
        if self.merged:
            k = _transposed(op, k, keys)
        inputs = (q, k, v) if mask is None else (q, k, v, mask)
        return op.Attention(*inputs, scale=1 / factor if self.scaling == "Div" else factor)


def _transposed(op: Any, value: ir.Value, shape: tuple[int | str, ...]) -> ir.Value:
    swapped: ir.Value = op.Transpose(value, perm=_SWAP)
    copy_type(swapped, value, shape)
    return swapped


def _covers(mask: tuple[int | str, ...] | None, scores: tuple[int | str, ...]) -> bool:
    """Tell whether a mask needs no broadcast but over the batch and the heads.

    A mask with fewer columns than keys is padded by Attention, not broadcast.
    """
    if mask is None or mask[-2:] != scores[-2:] or len(mask) > len(scores):
        return False
    return all(dim in {1, size} for dim, size in zip(mask[-3::-1], scores[-3::-1], strict=False))


class RepeatedHeads:
    """Attention of keys and values repeated for each group of queries -> of those not repeated.

    What repeats them may be used elsewhere: it is read, not removed.

    Parameters
    ----------
    masked : bool
        Whether there is a mask.
    """

    def __init__(self, *, masked: bool) -> None:
        self.masked = masked

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """The heads are split."""
        inputs = (q, k, v, mask) if self.masked else (q, k, v)
        return op.Attention(*inputs, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self,
        op: Any,
        *,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        mask: ir.Value | None,
        y: ir.Value,
    ) -> Any:
        """Keys and values have the same heads."""
        keys, values = _before_repeat(k), _before_repeat(v)
        if keys is None or values is None or dimensions(keys, rank=4) != dimensions(values):
            return None
        inputs = (q, keys, values) if mask is None else (q, keys, values, mask)
        return op.Attention(*inputs, **producer(y).attributes)


def _before_repeat(value: ir.Value) -> ir.Value | None:
    """Give what a value was before each of its heads was repeated: a new axis, then merged."""
    reshape = from_operator(value, "Reshape")
    expand = from_operator(reshape.inputs[0], "Expand") if reshape else None
    unsqueeze = from_operator(expand.inputs[0], "Unsqueeze") if expand else None
    if expand is None or unsqueeze is None or unsqueeze.inputs[0] is None:
        return None
    shapes = (unsqueeze.inputs[0], unsqueeze.outputs[0], expand.outputs[0], value)
    before, one, many, merged = (dimensions(shaped) for shaped in shapes)
    if before is None or one is None or many is None or merged is None:
        return None
    batch, heads, *rest = before
    if one != (batch, heads, 1, *rest) or many[:2] != (batch, heads) or many[3:] != tuple(rest):
        return None
    if not isinstance(heads, int) or not isinstance(many[2], int):
        return None
    return unsqueeze.inputs[0] if merged == (batch, heads * many[2], *rest) else None


class AttentionBeforeSplit:
    """Attention of split heads -> on ``(batch, length, hidden)``, without Reshape nor Transpose.

    What splits the inputs may be used elsewhere: it is read, not removed.

    Parameters
    ----------
    masked : bool
        Whether there is a mask.
    """

    def __init__(self, *, masked: bool) -> None:
        self.masked = masked

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, q: Any, k: Any, v: Any, mask: Any, shape: Any
    ) -> Any:
        """Merge the heads after the attention."""
        inputs = (q, k, v, mask) if self.masked else (q, k, v)
        y = op.Attention(*inputs, _outputs=["y"], _allow_other_attributes=True)
        heads = op.Transpose(y, perm=_SWAP)
        return op.Reshape(heads, shape, _outputs=["merged"], _allow_other_attributes=True)

    def rewrite(
        self,
        op: Any,
        *,
        mask: ir.Value | None,
        y: ir.Value,
        merged: ir.Value,
        **inputs: ir.Value,
    ) -> Any:
        """Tell the kernel how many heads there are."""
        split = [_before_split(inputs[name]) for name in "qkv"]
        heads, result = dimensions(y, rank=4), dimensions(merged, rank=3)
        if None in split or heads is None or result is None or result[:2] != heads[::2][:2]:
            return None
        (q, q_heads), (k, kv_heads), (v, _) = (found for found in split if found is not None)
        options = dict(producer(y).attributes)
        options["q_num_heads"] = ir.AttrInt64("q_num_heads", q_heads)
        options["kv_num_heads"] = ir.AttrInt64("kv_num_heads", kv_heads)
        return op.Attention(*((q, k, v) if mask is None else (q, k, v, mask)), **options)


def _before_split(value: ir.Value) -> tuple[ir.Value, int] | None:
    """Give what a value was before its last dimension was split into heads, and their number."""
    transpose = from_operator(value, "Transpose", perm=_SWAP)
    reshape = from_operator(transpose.inputs[0], "Reshape") if transpose else None
    if reshape is None or reshape.inputs[0] is None:
        return None
    source, split = reshape.inputs[0], reshape.outputs[0]
    before, after = dimensions(source, rank=3), dimensions(split, rank=4)
    if before is None or after is None or before[:2] != after[:2]:
        return None
    return (source, after[2]) if isinstance(after[2], int) else None


class CausalMask:
    """A constant mask that hides the future -> the attribute ``is_causal``."""

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Attention with a mask and no cache."""
        return op.Attention(q, k, v, mask, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self, op: Any, *, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value, y: ir.Value
    ) -> Any:
        """Keep the other attributes; there must be as many queries as keys."""
        array, queries, keys = constant(mask), dimensions(q), dimensions(k)
        if array is None or queries is None or keys is None or queries[-2] != keys[-2]:
            return None
        if array.shape[-2:] != (queries[-2], keys[-2]) or not _hides_the_future(array):
            return None
        options = dict(producer(y).attributes) | {"is_causal": ir.AttrInt64("is_causal", 1)}
        return op.Attention(q, k, v, **options)


def _hides_the_future(mask: np.ndarray[Any, Any]) -> bool:
    """Tell whether a mask shows the past and the present, as they are, and nothing else."""
    past = np.tri(mask.shape[-1], dtype=bool)
    if mask.dtype == np.bool_:
        return bool((mask == past).all())
    try:
        hidden = mask <= float_info(mask.dtype).min / 2
    except InvalidArgumentError:
        return False
    return bool((hidden == ~past).all() and ((mask == 0) == past).all())


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}


def _eager_fusions() -> tuple[Fusion, ...]:
    return tuple(
        EagerAttention(scaling, masked=masked, merged=merged)
        for scaling in ("Mul", "Div", None)
        for masked in (True, False)
        for merged in (False, True)
    )


def _with_or_without_mask(fusion: Callable[..., Fusion]) -> tuple[Fusion, ...]:
    return tuple(fusion(masked=masked) for masked in (True, False))


#: The rules of this family.
RULES = (
    Rule("EagerAttention", "default", _eager_fusions(), _TYPES, opset=23),
    Rule("RepeatedHeads", "default", _with_or_without_mask(RepeatedHeads), _TYPES, opset=23),
    Rule(
        "AttentionBeforeSplit",
        "default",
        _with_or_without_mask(AttentionBeforeSplit),
        _TYPES,
        opset=23,
    ),
    Rule("CausalMask", "default", (CausalMask(),), _TYPES, opset=23),
)
