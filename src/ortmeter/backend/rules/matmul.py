"""Matrix products."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import (
    BF16,
    F16,
    F32,
    F64,
    MICROSOFT,
    Rule,
)
from ortmeter.backend.rules.values import dimensions

__all__ = ["RULES", "TransposedWeight"]

_VECTOR = 1


class TransposedWeight:
    """``x @ transpose(weight)`` -> FusedMatMul, which reads the weight as torch stores it."""

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        """What ``torch.nn.Linear`` computes."""
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def rewrite(self, op: Any, *, x: ir.Value, weight: ir.Value) -> Any:
        """Leave the transposition to the kernel, which multiplies matrices or stacks of them."""
        shape = dimensions(x)
        if shape is None or len(shape) <= _VECTOR:
            return None
        return op.FusedMatMul(x, weight, transB=1, _domain=MICROSOFT)


#: The rules of this family.
RULES = (
    Rule(
        "TransposedWeight",
        "onnxruntime",
        (TransposedWeight(),),
        {"cpu": frozenset({F32, F64}), "cuda": frozenset({F32, F64, F16, BF16})},
    ),
)
