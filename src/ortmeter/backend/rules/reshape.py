"""Changes of shape."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, F64, Rule
from ortmeter.backend.rules.values import dimensions

__all__ = ["RULES", "SameShape"]


class SameShape:
    """A Reshape that gives the shape that its input has -> nothing."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        """The shape may be computed."""
        return op.Reshape(x, shape, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Dimensions that are known, by a number or by a name, are compared."""
        shape = dimensions(x)
        return op.Identity(x) if shape is not None and shape == dimensions(y) else None


_TYPES = frozenset({F32, F64, F16, BF16})

#: The rules of this family.
RULES = (Rule("SameShape", "default", (SameShape(),), {"cpu": _TYPES, "cuda": _TYPES}),)
