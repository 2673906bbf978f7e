"""Attention that rotates its queries and keys itself: GroupQueryAttention of ONNX Runtime.

On CUDA it has Flash kernels for windows and soft caps, where Attention has none.
"""

import math
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.attention import keys_seen
from ortmeter.backend.rules.graph_values import constant, dimensions, from_operator, producer
from ortmeter.backend.rules.rule import MICROSOFT, NoMatch, known, optional, require

# What the kernel asks of the size of a head that it rotates.
_HEAD_MULTIPLE = 16


class GroupQuery:
    """Attention of rotated queries and keys, causal or in a window -> GroupQueryAttention.

    Queries and keys share their tables of angles; their heads are not split yet. Sequences shorter
    than the *shortest* are not worth it: Attention of the standard is as fast, or faster.
    """

    def __init__(self, shortest: int = 1) -> None:
        self.shortest = shortest

    def pattern(self, op: Any, q: Any, k: Any, v: Any) -> Any:
        rotated = [op.RotaryEmbedding(x, _allow_other_inputs=True) for x in (q, k)]
        return op.Attention(*rotated, v, optional("mask"), _outputs=["y"])

    def rewrite(self, op: Any, *, v: ir.Value, mask: ir.Value | None, y: ir.Value, **_: Any) -> Any:
        """Write the kernel: without a cache, the last key of a sequence is its last query."""
        attention = producer(y)
        seen = _seen_by(attention, mask)
        rotations = [producer(cast("ir.Value", value)) for value in attention.inputs[:2]]
        whole = all(map(_rotates_whole_heads, rotations))
        require(whole, "heads are rotated in pairs, in part or by rows")
        (q, *tables), (k, *others) = (node.inputs for node in rotations)
        require(tables == others, "queries and keys have different angles")
        q_heads, kv_heads = (node.attributes.get_int("num_heads", 0) for node in rotations)
        why = "the heads are split, or their shape is not known"
        q, keys = known(q, why), known(dimensions(k, rank=3), why)
        batch, length, hidden = known(dimensions(q, rank=3), why)
        require(q_heads, why)
        if not isinstance(length, int):
            raise NoMatch("the length of the sequences is not known")
        why = f"{length} positions: below {self.shortest}, Attention of the standard is faster"
        require(length >= self.shortest, why)
        same = dimensions(v) == keys and keys[:2] == (batch, length)
        require(same, "there are not as many queries as keys and values")
        multiple = isinstance(hidden, int) and not hidden // q_heads % _HEAD_MULTIPLE
        require(multiple, f"the size of a head is not a multiple of {_HEAD_MULTIPLE}")
        cos, sin, positions = tables
        require(_count_up(positions, length), "the positions are not known to be 0, 1, 2...")
        given = attention.attributes
        options: dict[str, Any] = {n: given[n] for n in ("scale", "softcap") if n in given}
        if seen < length:
            options["local_window_size"] = int(seen)
        result, _, _ = op.GroupQueryAttention(
            *(q, k, v, None, None, _last(op, q, length)),
            op.Constant(value=ir.tensor(np.array(length, np.int32))),
            *(cos, sin),
            num_heads=q_heads,
            kv_num_heads=kv_heads,
            do_rotary=1,
            **options,
            _outputs=3,
            _domain=MICROSOFT,
        )
        return result


def _seen_by(attention: ir.Node, mask: ir.Value | None) -> float:
    """Count the keys that a query sees, the last ones before it; infinity for all of them."""
    causal = attention.attributes.get_int("is_causal", 0)
    if mask is None:
        require(causal, "it is not causal")
        return math.inf
    require(not causal, "it is causal and has a mask")
    length = known(dimensions(attention.inputs[0]), "the shape of the queries is not known")[-2]
    seen = keys_seen(mask, length)
    require(isinstance(length, int) and seen < length, "the mask shows all of the past")
    return seen


def _count_up(positions: ir.Value | None, length: int) -> bool:
    """Whether positions are 0, 1, 2... in every sequence."""
    expand = from_operator(positions, "Expand")
    rows = constant(expand.inputs[0] if expand else positions)
    counted = np.arange(length)
    return rows is not None and rows.shape[-1:] == counted.shape and bool((rows == counted).all())


def _last(op: Any, q: ir.Value, length: int) -> ir.Value:
    """Write the position of the last key of every sequence."""
    batch, *_ = dimensions(q) or ()
    last = ir.tensor(np.full(batch if isinstance(batch, int) else 1, length - 1, np.int32))
    constant: ir.Value = op.Constant(value=last)
    return constant if isinstance(batch, int) else op.Expand(constant, op.Shape(q, start=0, end=1))


def _rotates_whole_heads(node: ir.Node) -> bool:
    """Whether a rotation is that of the two halves of a head, at given positions."""
    options = ("interleaved", "rotary_embedding_dim")
    indexed = len(node.inputs) == len(("x", "cos", "sin", "positions"))
    return indexed and not any(node.attributes.get_int(name, 0) for name in options)
