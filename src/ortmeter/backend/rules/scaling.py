"""Scales of the attention."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Rule
from ortmeter.backend.rules.values import dimensions, from_operator, producer, scalar

__all__ = ["RULES", "ScaledQueries"]


class ScaledQueries:
    """Attention of queries multiplied by a number -> of the queries, the scale being multiplied.

    The product may be used elsewhere: it is read, not removed.

    Parameters
    ----------
    masked : bool
        Whether there is a mask.
    """

    def __init__(self, *, masked: bool) -> None:
        self.masked = masked

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """The queries are scaled before they are split into heads, or after."""
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
        """The scale must be written, and stay positive: the kernel takes its root."""
        options, (queries, factor) = dict(producer(y).attributes), _factors(q)
        given = options.get("scale")
        if queries is None or factor is None or given is None or factor <= 0:
            return None
        options["scale"] = ir.AttrFloat32("scale", given.as_float() * factor)
        return op.Attention(
            *((queries, k, v) if mask is None else (queries, k, v, mask)), **options
        )


def _factors(product: ir.Value) -> tuple[ir.Value | None, float | None]:
    """Give what a number multiplies, of the same shape as the product, and the number."""
    node, shape = from_operator(product, "Mul"), dimensions(product)
    if node is None or shape is None:
        return None, None
    left, right = node.inputs
    value, factor = (left, scalar(right)) if scalar(left) is None else (right, scalar(left))
    return (value, factor) if dimensions(value) == shape else (None, None)


#: The rules of this family.
RULES = (
    Rule(
        "ScaledQueries",
        "default",
        tuple(ScaledQueries(masked=masked) for masked in (True, False)),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})},
        opset=23,
    ),
)
