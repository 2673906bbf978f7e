"""Attention that rotates its queries and keys itself, for long sequences."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, MICROSOFT, Rule
from ortmeter.backend.rules.values import constant, producer, sizes

__all__ = ["RULES", "SHORTEST", "GroupQuery"]

#: Shortest sequence that is worth it: below, Attention of the standard is faster on CPU.
SHORTEST = 512
# What the kernel asks of the size of a head that it rotates.
_HEAD_MULTIPLE = 16


class GroupQuery:
    """Causal Attention of rotated queries and keys -> GroupQueryAttention."""

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, q: Any, k: Any, v: Any, cos: Any, sin: Any, positions: Any
    ) -> Any:
        """Queries and keys share their tables of angles; their heads are not split yet."""
        rotated = [
            op.RotaryEmbedding(
                x, cos, sin, positions, _allow_other_attributes=True, _outputs=[name]
            )
            for x, name in ((q, "rotated_q"), (k, "rotated_k"))
        ]
        return op.Attention(*rotated, v, is_causal=1, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self, op: Any, *, q: ir.Value, k: ir.Value, v: ir.Value, y: ir.Value, **values: ir.Value
    ) -> Any:
        """Without a cache, the last key of a sequence is its last query."""
        queries, keys, options = sizes(q, rank=3), sizes(k, rank=3), producer(y).attributes
        heads, softcap = options.get_int("q_num_heads", 0), options.get_float("softcap", 0.0)
        if queries is None or keys is None or not heads or softcap:
            return None
        batch, length, hidden = queries
        if sizes(v) != keys or keys[:2] != (batch, length) or length < SHORTEST:
            return None
        if hidden // heads % _HEAD_MULTIPLE or not _start_at_zero(values["positions"], length):
            return None
        if any(_is_partial(values[name]) for name in ("rotated_q", "rotated_k")):
            return None
        last = op.Constant(value=ir.tensor(np.full(batch, length - 1, np.int32)))
        total = op.Constant(value=ir.tensor(np.array(length, np.int32)))
        result, _, _ = op.GroupQueryAttention(
            *(q, k, v, None, None, last, total, values["cos"], values["sin"]),
            num_heads=heads,
            kv_num_heads=options["kv_num_heads"],
            do_rotary=1,
            **{name: options[name] for name in ("scale",) if name in options},
            _outputs=3,
            _domain=MICROSOFT,
        )
        return result


def _start_at_zero(positions: ir.Value, length: int) -> bool:
    array = constant(positions)
    return array is not None and bool((array == np.arange(length)).all())


def _is_partial(rotated: ir.Value) -> bool:
    """Tell whether a rotation is not that of the two halves of a whole head."""
    options = producer(rotated).attributes
    return any(options.get_int(name, 0) for name in ("interleaved", "rotary_embedding_dim"))


#: The rules of this family.
RULES = (
    Rule(
        "GroupQuery",
        "onnxruntime",
        (GroupQuery(),),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F16, BF16})},
        opset=23,
    ),
)
