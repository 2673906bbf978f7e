"""Normalization by the root mean square."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.graph_values import dimensions, scalar
from ortmeter.backend.rules.rule import F32, F64, known, require


class RootMeanSquare:
    """``x / sqrt(mean(x**2) + epsilon) * scale`` -> RMSNormalization, its mean in 32 bits.

    When *widened*, 16 bits are normalized in 32 bits, then scaled in 16 bits.
    """

    def __init__(self, *, widened: bool = False) -> None:
        self.widened = widened

    def pattern(self, op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
        wide = op.Cast(x, to=int(F32)) if self.widened else x
        mean = op.ReduceMean(op.Pow(wide, 2.0), [-1], keepdims=1)
        y = op.Mul(wide, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon))))
        return op.Mul(op.Cast(y) if self.widened else y, scale)

    def rewrite(self, op: Any, *, x: ir.Value, scale: ir.Value, epsilon: ir.Value) -> Any:
        shape = known(dimensions(x), "the shape is not known")
        small = known(scalar(epsilon), "epsilon is not one constant number")
        require(dimensions(scale) == shape[-1:], "the scale is not a vector over the last axis")
        require(scale.dtype == x.dtype, "the scale has another type")
        require(x.dtype != F64, "64 bits: epsilon, an attribute, has 32")
        require((x.dtype == F32) is not self.widened, "16 bits are not normalized in 32 bits")
        return op.RMSNormalization(x, scale, axis=-1, epsilon=small, stash_type=int(F32))
