"""Rotary position embedding of the first features of a head only."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Rule
from ortmeter.backend.rules.values import constant, producer, sizes

__all__ = ["RULES", "PartialRotary"]

_HEADS = 4


class PartialRotary:
    """``concat(rotate(x[..., :r]), x[..., r:])`` -> RotaryEmbedding, which copies the rest."""

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self,
        op: Any,
        first: Any,
        x: Any,
        middle: Any,
        end: Any,
        axis: Any,
        cos: Any,
        sin: Any,
        positions: Any,
    ) -> Any:
        """Heads are split already: ``(batch, heads, length, size)``."""
        part = op.Slice(x, first, middle, axis, [1])
        rest = op.Slice(x, middle, end, axis, [1])
        rotated = op.RotaryEmbedding(part, cos, sin, positions, _outputs=["rotated"])
        return op.Concat(rotated, rest, axis=-1)

    def rewrite(self, op: Any, *, x: ir.Value, rotated: ir.Value, **values: ir.Value) -> Any:
        """Both parts together are the whole of a head."""
        shape, part = sizes(x, rank=_HEADS), sizes(rotated, rank=_HEADS)
        bounds = [constant(values[name]) for name in ("first", "end", "axis")]
        options = dict(producer(rotated).attributes)
        if shape is None or part is None or any(a is None or a.size != 1 for a in bounds):
            return None
        first, end, axis = (int(a.item()) for a in bounds if a is not None)
        if first != 0 or end < shape[-1] or axis not in {-1, _HEADS - 1} or part[:3] != shape[:3]:
            return None
        if options.get("rotary_embedding_dim", _NONE).as_int():
            return None
        options["rotary_embedding_dim"] = ir.AttrInt64("rotary_embedding_dim", part[-1])
        tables = (values[name] for name in ("cos", "sin", "positions"))
        return op.RotaryEmbedding(x, *tables, **options)


_NONE = ir.AttrInt64("rotary_embedding_dim", 0)

#: The rules of this family.
RULES = (
    Rule(
        "PartialRotary",
        "default",
        (PartialRotary(),),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})},
        opset=23,
    ),
)
