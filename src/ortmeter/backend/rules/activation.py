"""Activation functions."""

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
from ortmeter.backend.rules.values import dimensions, producer

__all__ = ["RULES", "BiasGelu", "Silu"]


class Silu:
    """``x * sigmoid(x)`` -> QuickGelu, which is ``x * sigmoid(alpha * x)``."""

    def pattern(self, op: Any, x: Any) -> Any:
        """What ``torch.nn.SiLU`` computes."""
        return op.Mul(x, op.Sigmoid(x))

    def rewrite(self, op: Any, *, x: ir.Value) -> Any:
        """The factor is one."""
        return op.QuickGelu(x, alpha=1.0, _domain=MICROSOFT)


class BiasGelu:
    """``gelu(x + bias)`` -> BiasGelu, for the exact function, not its approximation by tanh."""

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        """The end of a linear layer and the function that follows."""
        return op.Gelu(op.Add(x, bias), _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, x: ir.Value, bias: ir.Value, y: ir.Value) -> Any:
        """The bias must be a vector over the last axis."""
        shape, vector = dimensions(x), dimensions(bias, rank=1)
        if shape is None or vector is None or vector != shape[-1:]:
            return None
        if producer(y).attributes.get_string("approximate", "none") != "none":
            return None
        return op.BiasGelu(x, bias, _domain=MICROSOFT)


_CUDA = frozenset({F32, F64, F16, BF16})

#: The rules of this family.
RULES = (
    Rule("BiasGelu", "onnxruntime", (BiasGelu(),), {"cpu": frozenset({F32}), "cuda": _CUDA}),
    Rule("Silu", "onnxruntime", (Silu(),), {"cpu": frozenset({F32}), "cuda": _CUDA}),
)
