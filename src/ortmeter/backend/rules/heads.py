"""Heads of an attention: repeated, normalized, rotated, or not split at all."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Fusion, Rule
from ortmeter.backend.rules.values import (
    SWAP,
    copy_type,
    dimensions,
    from_operator,
    producer,
)

__all__ = [
    "RULES",
    "AttentionBeforeSplit",
    "NormalizedHeads",
    "RepeatedHeads",
    "RotaryBeforeSplit",
    "before_repeat",
    "before_split",
]

_LAST = frozenset({-1, 3})


class NormalizedHeads:
    """Normalization after the exchange of heads and positions -> before it.

    Parameters
    ----------
    operator : {"RMSNormalization", "LayerNormalization"}
        How each head is normalized.
    shifted : bool
        Whether a vector is added at the end.
    """

    def __init__(self, operator: str, *, shifted: bool) -> None:
        self.operator, self.shifted = operator, shifted

    def pattern(self, op: Any, heads: Any, scale: Any, shift: Any) -> Any:
        """Normalize the features of each head."""
        vectors = (scale, shift) if self.shifted else (scale,)
        swapped = op.Transpose(heads, perm=SWAP)
        normalize = getattr(op, self.operator)
        return normalize(swapped, *vectors, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self, op: Any, *, heads: ir.Value, scale: ir.Value, shift: ir.Value | None, y: ir.Value
    ) -> Any:
        """Let what comes next absorb the exchange; the vectors must be over the last axis."""
        shape, options = dimensions(heads, rank=4), producer(y).attributes
        vectors = (scale,) if shift is None else (scale, shift)
        if shape is None or options.get_int("axis", -1) not in _LAST:
            return None
        if any(dimensions(vector) != shape[-1:] for vector in vectors):
            return None
        normalized = getattr(op, self.operator)(heads, *vectors, **options)
        copy_type(normalized, heads)
        return op.Transpose(normalized, perm=SWAP)


class RotaryBeforeSplit:
    """RotaryEmbedding after the split into heads -> before it, on ``(batch, length, hidden)``.

    Parameters
    ----------
    indexed : bool
        Whether positions tell which rows of the tables are read.
    """

    def __init__(self, *, indexed: bool) -> None:
        self.indexed = indexed

    def pattern(self, op: Any, x: Any, cos: Any, sin: Any, positions: Any) -> Any:
        """Rotate whole heads, or the first features of each."""
        swapped = op.Transpose(x, perm=SWAP, _outputs=["swapped"])
        tables = (cos, sin, positions) if self.indexed else (cos, sin)
        return op.RotaryEmbedding(swapped, *tables, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self,
        op: Any,
        *,
        x: ir.Value,
        swapped: ir.Value,
        y: ir.Value,
        positions: ir.Value | None,
        **tables: ir.Value,
    ) -> Any:
        """Leave the split after, where an attention may absorb it."""
        found, shape = before_split(op, swapped), dimensions(x, rank=4)
        if found is None or shape is None:
            return None
        source, heads = found
        inputs = [tables["cos"], tables["sin"], *([positions] if positions else [])]
        options = dict(producer(y).attributes) | {"num_heads": ir.AttrInt64("num_heads", heads)}
        rotated = op.RotaryEmbedding(source, *inputs, **options)
        copy_type(rotated, source)
        split = op.Reshape(rotated, op.Constant(value_ints=[0, 0, heads, shape[3]]))
        copy_type(split, x)
        return op.Transpose(split, perm=SWAP)


def before_split(op: Any, value: ir.Value) -> tuple[ir.Value, int] | None:
    """Give what a value was before its last dimension was split into heads, and their number.

    Parameters
    ----------
    op : onnxscript tape
        Writes the nodes: heads that something else than a Reshape gives are merged again.
    value : onnx_ir.Value
        Heads of shape ``(batch, heads, length, size)``.

    Returns
    -------
    tuple of onnx_ir.Value and int, or None
        A value of shape ``(batch, length, heads * size)``; None when heads and positions were not
        exchanged, or the split is about the batch as well.
    """
    transpose = from_operator(value, "Transpose", perm=SWAP)
    split = transpose.inputs[0] if transpose else None
    shape = dimensions(split, rank=4)
    if split is None or shape is None:
        return None
    *first, heads, size = shape
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    reshape = from_operator(split, "Reshape")
    if reshape is None:
        merged = op.Reshape(split, op.Constant(value_ints=[0, 0, heads * size]))
        copy_type(merged, split, (*first, heads * size))
        return merged, heads
    source = reshape.inputs[0]
    before = dimensions(source, rank=3)
    if source is None or before is None or before[:2] != tuple(first):
        return None
    return source, heads


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
        keys, values = before_repeat(k), before_repeat(v)
        if keys is None or values is None or dimensions(keys, rank=4) != dimensions(values):
            return None
        inputs = (q, keys, values) if mask is None else (q, keys, values, mask)
        return op.Attention(*inputs, **producer(y).attributes)


def before_repeat(value: ir.Value) -> ir.Value | None:
    """Give what a value was before each of its heads was repeated: a new axis, then merged.

    Parameters
    ----------
    value : onnx_ir.Value
        Heads of shape ``(batch, heads, length, size)``.

    Returns
    -------
    onnx_ir.Value or None
        None when they are not repeated, or not one by one.
    """
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
        heads = op.Transpose(y, perm=SWAP)
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
        split = [before_split(op, inputs[name]) for name in "qkv"]
        heads, result = dimensions(y, rank=4), dimensions(merged, rank=3)
        if None in split or heads is None or result is None or result[:2] != heads[::2][:2]:
            return None
        (q, q_heads), (k, kv_heads), (v, _) = (found for found in split if found is not None)
        options = dict(producer(y).attributes)
        options["q_num_heads"] = ir.AttrInt64("q_num_heads", q_heads)
        options["kv_num_heads"] = ir.AttrInt64("kv_num_heads", kv_heads)
        return op.Attention(*((q, k, v) if mask is None else (q, k, v, mask)), **options)


def _with_or_without(option: str, fusion: Callable[..., Fusion]) -> tuple[Fusion, ...]:
    return tuple(fusion(**{option: value}) for value in (True, False))


_NORMALIZED = (
    NormalizedHeads("RMSNormalization", shifted=False),
    NormalizedHeads("LayerNormalization", shifted=True),
)
_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}

#: The rules of this family.
RULES = tuple(
    Rule(name, "default", fusions, _TYPES, opset=23)
    for name, fusions in {
        "NormalizedHeads": _NORMALIZED,
        "RotaryBeforeSplit": _with_or_without("indexed", RotaryBeforeSplit),
        "RepeatedHeads": _with_or_without("masked", RepeatedHeads),
        "AttentionBeforeSplit": _with_or_without("masked", AttentionBeforeSplit),
    }.items()
)
