"""Attention that rotates its queries and keys itself, for long sequences."""

import math
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.affine import Affine
from ortmeter.backend.rules.attention import read_scores
from ortmeter.backend.rules.heads import before_repeat, before_split
from ortmeter.backend.rules.indices import affine
from ortmeter.backend.rules.masks import window
from ortmeter.backend.rules.rule import BF16, F16, F32, MICROSOFT, Rule
from ortmeter.backend.rules.values import SWAP, dimensions, from_operator, producer

__all__ = ["RULES", "SHORTEST", "CappedGroupQuery", "GroupQuery"]

#: Shortest sequence that is worth it: below, Attention of the standard is faster on CPU.
SHORTEST = 512
# What the kernel asks of the size of a head that it rotates.
_HEAD_MULTIPLE = 16
# How many windows a sequence must hold for capped scores to be worth it.
_NARROW = 8
# The positions 0, 1, 2... of every sequence.
_POSITIONS = Affine(0, {-1: 1})


class GroupQuery:
    """Attention of rotated queries and keys, causal or in a window -> GroupQueryAttention.

    Parameters
    ----------
    masked : bool
        Whether a mask hides the future, and what is too long before.
    """

    def __init__(self, *, masked: bool) -> None:
        self.masked = masked

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, q: Any, k: Any, v: Any, cos: Any, sin: Any, positions: Any, mask: Any
    ) -> Any:
        """Queries and keys share their tables of angles; their heads are not split yet."""
        rotated = [
            op.RotaryEmbedding(
                x, cos, sin, positions, _allow_other_attributes=True, _outputs=[name]
            )
            for x, name in ((q, "rotated_q"), (k, "rotated_k"))
        ]
        inputs = (*rotated, v, mask) if self.masked else (*rotated, v)
        return op.Attention(*inputs, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self,
        op: Any,
        *,
        rotated_q: ir.Value,
        rotated_k: ir.Value,
        v: ir.Value,
        mask: ir.Value | None,
        y: ir.Value,
        **_: ir.Value,
    ) -> Any:
        """Keep the scale and the cap of the scores."""
        options, seen = producer(y).attributes, _keys_seen(producer(y), mask)
        kept = {name: options[name] for name in ("scale", "softcap") if name in options}
        return None if seen is None else _group_query(op, rotated_q, rotated_k, v, seen, **kept)


class CappedGroupQuery:
    """Capped scores of rotated queries and keys, in a window -> GroupQueryAttention.

    On CPU the kernel takes longer than the nodes when it sees all of the past.
    """

    def pattern(self, op: Any, scores: Any, v: Any, shape: Any) -> Any:
        """Merge the heads after the attention."""
        heads = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), v), perm=SWAP)
        return op.Reshape(heads, shape, _outputs=["merged"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, scores: ir.Value, v: ir.Value, merged: ir.Value, **_: Any) -> Any:
        """Read the heads before they were split, and repeated for the groups of queries."""
        found = read_scores(scores)
        if found is None or found.scale <= 0 or not found.softcap or not found.mask or found.merged:
            return None
        keys, values = before_repeat(found.k) or found.k, before_repeat(v) or v
        split = [before_split(op, heads) for heads in (found.q, keys, values)]
        if None in split:
            return None
        q, k, v = (pair[0] for pair in split if pair is not None)
        result, mask = dimensions(merged, rank=3), dimensions(found.mask)
        seen, length = window(found.mask), (dimensions(q) or ())[1]
        if seen is None or result != dimensions(q) or mask is None or mask[-2:] != (length, length):
            return None
        if not isinstance(length, int) or _NARROW * seen > length:
            return None
        return _group_query(op, q, k, v, seen, scale=found.scale, softcap=found.softcap)


def _group_query(
    op: Any, rotated_q: ir.Value, rotated_k: ir.Value, v: ir.Value, seen: float, **options: Any
) -> ir.Value | None:
    """Write the kernel: without a cache, the last key of a sequence is its last query."""
    rotations = [from_operator(value, "RotaryEmbedding") for value in (rotated_q, rotated_k)]
    if any(node is None or not _rotates_whole_heads(node) for node in rotations):
        return None
    (q, *tables), (k, *others) = (node.inputs for node in rotations if node is not None)
    heads, kv_heads = (n.attributes.get_int("num_heads", 0) for n in rotations if n is not None)
    queries, keys = dimensions(q, rank=3), dimensions(k, rank=3)
    if queries is None or keys is None or tables != others or not heads or q is None:
        return None
    batch, length, hidden = queries
    if not isinstance(length, int) or not isinstance(hidden, int) or length < SHORTEST:
        return None
    if dimensions(v) != keys or keys[:2] != (batch, length) or hidden // heads % _HEAD_MULTIPLE:
        return None
    cos, sin, positions = tables
    if affine(positions) != _POSITIONS:
        return None
    result, _, _ = op.GroupQueryAttention(
        *(q, k, v, None, None, _last(op, q, length)),
        op.Constant(value=ir.tensor(np.array(length, np.int32))),
        *(cos, sin),
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=1,
        **({} if math.isinf(seen) else {"local_window_size": int(seen)}),
        **options,
        _outputs=3,
        _domain=MICROSOFT,
    )
    return cast("ir.Value", result)


def _keys_seen(attention: ir.Node, mask: ir.Value | None) -> float | None:
    """Tell how many keys a query sees, the last ones before it; infinity for all of them."""
    causal = attention.attributes.get_int("is_causal", 0)
    if mask is None:
        return math.inf if causal else None
    shape, (length,) = dimensions(mask), (dimensions(attention.inputs[0]) or (None,) * 3)[-2:-1]
    seen = window(mask) if shape is not None and shape[-2:] == (length, length) else None
    narrow = seen is not None and isinstance(length, int) and seen < length
    return seen if narrow and not causal else None


def _last(op: Any, q: ir.Value, length: int) -> ir.Value:
    """Give the position of the last key of every sequence."""
    batch, *_ = dimensions(q) or ()
    last = ir.tensor(np.full(batch if isinstance(batch, int) else 1, length - 1, np.int32))
    constant: ir.Value = op.Constant(value=last)
    return constant if isinstance(batch, int) else op.Expand(constant, op.Shape(q, start=0, end=1))


def _rotates_whole_heads(node: ir.Node) -> bool:
    """Tell whether a rotation is that of the two halves of a head, at given positions."""
    options = ("interleaved", "rotary_embedding_dim")
    indexed = len(node.inputs) == len(("x", "cos", "sin", "positions"))
    return indexed and not any(node.attributes.get_int(name, 0) for name in options)


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F16, BF16})}

#: The rules of this family.
RULES = (
    Rule(
        "GroupQuery",
        "onnxruntime",
        tuple(GroupQuery(masked=masked) for masked in (True, False)),
        _TYPES,
        opset=23,
    ),
    Rule("CappedGroupQuery", "onnxruntime", (CappedGroupQuery(),), _TYPES, opset=23),
)
