"""Heads of an attention: repeated, rotated, or not split at all.

What splits or repeats them may be used elsewhere: it is read, not removed.
"""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.graph_values import SWAP, dimensions, input_of, producer, typed
from ortmeter.backend.rules.rule import REALS, NoMatch, Types, known, names, optional, require


class RotaryBeforeSplit:
    """RotaryEmbedding after the split into heads -> before it, where an attention may absorb it."""

    def pattern(self, op: Any, x: Any, cos: Any, sin: Any) -> Any:
        swapped = op.Transpose(x, perm=SWAP, _outputs=["swapped"])
        return op.RotaryEmbedding(swapped, cos, sin, optional("positions"), _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, swapped: ir.Value, y: ir.Value, **_: Any) -> Any:
        shape = known(dimensions(x, rank=4), "the shape of the heads is not known")
        source, heads = before_split(op, swapped)
        options = {**producer(y).attributes, "num_heads": heads}
        rotated = op.RotaryEmbedding(source, *producer(y).inputs[1:], **options)
        sizes = op.Constant(value_ints=[0, 0, heads, shape[3]])
        split = typed(op.Reshape(typed(rotated, source), sizes), x)
        return op.Transpose(split, perm=SWAP)


def before_split(op: Any, value: ir.Value | None) -> tuple[ir.Value, int]:
    """Find what a value was before its last dimension was split into heads, and their number.

    Heads that something else than a Reshape computes are merged again.
    """
    why = "heads and positions were not exchanged"
    split = known(input_of(value, "Transpose", perm=SWAP), why)
    *first, heads, size = known(dimensions(split, rank=4), why)
    if not isinstance(heads, int) or not isinstance(size, int):
        raise NoMatch("the number of heads is not known")
    source = input_of(split, "Reshape")
    if source is None:
        merged = op.Reshape(split, op.Constant(value_ints=[0, 0, heads * size]))
        return typed(merged, split, (*first, heads * size)), heads
    before = dimensions(source, rank=3)
    require(before and before[:2] == tuple(first), "the split into heads cuts the batch as well")
    return source, heads


class RepeatedHeads:
    """Attention of keys and values repeated for groups of queries -> of those not repeated.

    Some kernels share heads for some types only.
    """

    def __init__(self, types: Types = REALS) -> None:
        self.types = types

    def pattern(self, op: Any, q: Any, k: Any, v: Any) -> Any:
        return op.Attention(q, k, v, optional("mask"), _outputs=["y"])

    def rewrite(self, op: Any, *, y: ir.Value, **_: Any) -> Any:
        q, k, v, *masks = producer(y).inputs
        keys, values = before_repeat(k), before_repeat(v)
        if keys is None and values is None:
            return None
        why = f"the kernels that share heads are slower, except for {names(self.types)}"
        require(y.dtype in self.types, why)
        shapes = dimensions(keys, rank=4), dimensions(values)
        require(keys and shapes[0] == shapes[1], "keys and values are not repeated in the same way")
        return op.Attention(q, keys, values, *masks, **producer(y).attributes)


def before_repeat(value: ir.Value | None) -> ir.Value | None:
    """Find what a value was before each of its heads was repeated: a new axis, then merged."""
    expanded = input_of(value, "Reshape")
    unsqueezed = input_of(expanded, "Expand")
    source = input_of(unsqueezed, "Unsqueeze")
    before, many = dimensions(source, rank=4), dimensions(expanded, rank=5)
    if before is None or many is None:
        return None
    (batch, heads, *rest), times = before, many[2]
    if not isinstance(heads, int) or not isinstance(times, int):
        return None
    shapes = [(batch, heads, 1, *rest), (batch, heads, times, *rest), (batch, heads * times, *rest)]
    same = shapes == [dimensions(shaped) for shaped in (unsqueezed, expanded, value)]
    return source if same else None


class AttentionBeforeSplit:
    """Attention of split heads -> on ``(batch, length, hidden)``, without Reshape nor Transpose."""

    def pattern(self, op: Any, q: Any, k: Any, v: Any, shape: Any) -> Any:
        heads = op.Attention(q, k, v, optional("mask"), _outputs=["y"])
        return op.Reshape(op.Transpose(heads, perm=SWAP), shape, _outputs=["merged"])

    def rewrite(self, op: Any, *, y: ir.Value, merged: ir.Value, **_: Any) -> Any:
        heads = known(dimensions(y, rank=4), "the shape of the heads is not known")
        result = dimensions(merged, rank=3)
        require(result and result[:2] == heads[::2][:2], "more than the heads is merged after")
        q, k, v, *masks = producer(y).inputs
        (q, heads_q), (k, heads_kv), (v, _heads) = (before_split(op, x) for x in (q, k, v))
        options = {**producer(y).attributes, "q_num_heads": heads_q, "kv_num_heads": heads_kv}
        return op.Attention(q, k, v, *masks, **options)
