"""Attention that rotates its queries and keys itself, for long sequences."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.affine import Affine
from ortmeter.backend.rules.indices import affine
from ortmeter.backend.rules.masks import window
from ortmeter.backend.rules.rule import BF16, F16, F32, MICROSOFT, Rule
from ortmeter.backend.rules.values import dimensions, producer

__all__ = ["RULES", "SHORTEST", "GroupQuery"]

#: Shortest sequence that is worth it: below, Attention of the standard is faster on CPU.
SHORTEST = 512
# What the kernel asks of the size of a head that it rotates.
_HEAD_MULTIPLE = 16
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
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        mask: ir.Value | None,
        y: ir.Value,
        **values: ir.Value,
    ) -> Any:
        """Without a cache, the last key of a sequence is its last query."""
        queries, keys, options = (
            dimensions(q, rank=3),
            dimensions(k, rank=3),
            producer(y).attributes,
        )
        heads, seen = options.get_int("q_num_heads", 0), _keys_seen(producer(y), mask)
        if queries is None or keys is None or not heads or seen is None:
            return None
        batch, length, hidden = queries
        if not isinstance(length, int) or not isinstance(hidden, int) or length < SHORTEST:
            return None
        if dimensions(v) != keys or keys[:2] != (batch, length) or hidden // heads % _HEAD_MULTIPLE:
            return None
        if affine(values["positions"]) != _POSITIONS:
            return None
        if any(_is_partial(values[name]) for name in ("rotated_q", "rotated_k")):
            return None
        result, _, _ = op.GroupQueryAttention(
            *(q, k, v, None, None, _last(op, q, length)),
            op.Constant(value=ir.tensor(np.array(length, np.int32))),
            *(values["cos"], values["sin"]),
            num_heads=heads,
            kv_num_heads=options["kv_num_heads"],
            do_rotary=1,
            **({} if math.isinf(seen) else {"local_window_size": int(seen)}),
            **{name: options[name] for name in ("scale", "softcap") if name in options},
            _outputs=3,
            _domain=MICROSOFT,
        )
        return result


def _keys_seen(attention: ir.Node, mask: ir.Value | None) -> float | None:
    """Tell how many keys a query sees, the last ones before it; infinity for all of them."""
    causal = attention.attributes.get_int("is_causal", 0)
    if mask is None:
        return math.inf if causal else None
    shape, length = dimensions(mask), (dimensions(attention.inputs[0]) or ())[-2:-1]
    square = shape is not None and shape[-2:] == (*length, *length)
    return window(mask) if square and not causal else None


def _last(op: Any, q: ir.Value, length: int) -> ir.Value:
    """Give the position of the last key of every sequence."""
    batch, *_ = dimensions(q) or ()
    last = ir.tensor(np.full(batch if isinstance(batch, int) else 1, length - 1, np.int32))
    constant: ir.Value = op.Constant(value=last)
    return constant if isinstance(batch, int) else op.Expand(constant, op.Shape(q, start=0, end=1))


def _is_partial(rotated: ir.Value) -> bool:
    """Tell whether a rotation is not that of the two halves of a whole head."""
    options = producer(rotated).attributes
    return any(options.get_int(name, 0) for name in ("interleaved", "rotary_embedding_dim"))


#: The rules of this family.
RULES = (
    Rule(
        "GroupQuery",
        "onnxruntime",
        tuple(GroupQuery(masked=masked) for masked in (True, False)),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F16, BF16})},
        opset=23,
    ),
)
