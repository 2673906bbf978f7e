"""Normalizations: by the root mean square, and after the addition of a residual."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import (
    BF16,
    F16,
    F32,
    MICROSOFT,
    Rule,
)
from ortmeter.backend.rules.values import depends_on, dimensions, producer, scalar

__all__ = ["RULES", "RootMeanSquare", "SkipNormalization"]


class RootMeanSquare:
    """``x / sqrt(mean(x**2) + epsilon) * scale`` -> RMSNormalization.

    Parameters
    ----------
    widened : bool
        Whether 16 bits are normalized in 32 bits, then scaled in 16 bits.
    """

    def __init__(self, *, widened: bool) -> None:
        self.widened = widened

    def pattern(self, op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
        """Normalize the last axis."""
        wide = op.Cast(x, to=int(F32)) if self.widened else x
        mean = op.ReduceMean(op.Pow(wide, 2.0), [-1], keepdims=1, _allow_other_attributes=True)
        y = op.Mul(wide, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon))))
        return op.Mul(op.Cast(y, _allow_other_attributes=True) if self.widened else y, scale)

    def rewrite(self, op: Any, *, x: ir.Value, scale: ir.Value, epsilon: ir.Value) -> Any:
        """Compute the mean in 32 bits; the scale must be a vector, of the type of *x*."""
        shape, small = dimensions(x), scalar(epsilon)
        if (
            shape is None
            or small is None
            or dimensions(scale) != shape[-1:]
            or scale.dtype != x.dtype
            or (x.dtype == F32) is self.widened
        ):
            return None
        return op.RMSNormalization(x, scale, axis=-1, epsilon=small, stash_type=int(F32))


class SkipNormalization:
    """``normalize(x + skip [+ bias])`` -> one kernel, which gives the sum as well.

    Parameters
    ----------
    operator : {"LayerNormalization", "RMSNormalization"}
        How the sum is normalized.
    biased : bool
        Whether a vector is added first.
    shifted : bool
        Whether a vector is added last.
    """

    def __init__(self, operator: str, *, biased: bool, shifted: bool) -> None:
        self.operator, self.biased, self.shifted = operator, biased, shifted

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, x: Any, skip: Any, bias: Any, scale: Any, shift: Any
    ) -> Any:
        """Give two results: the sum is the residual of what comes next."""
        total = op.Add(op.Add(x, bias) if self.biased else x, skip)
        inputs = [total, scale, shift] if self.shifted else [total, scale]
        normalize = getattr(op, self.operator)
        return normalize(*inputs, _outputs=["y"], _allow_other_attributes=True), total

    def rewrite(
        self, op: Any, *, x: ir.Value, skip: ir.Value, y: ir.Value, **vectors: ir.Value | None
    ) -> Any:
        """Take both results from the kernel; nothing may be broadcast but the vectors."""
        shape, options = dimensions(x), producer(y).attributes
        total = producer(y).inputs[0]
        if (
            shape is None
            or total is None
            or len(shape) not in {2, 3}
            or dimensions(skip) != shape
            or any(v is not None and dimensions(v) != shape[-1:] for v in vectors.values())
            or options.get_int("axis", -1) not in {-1, len(shape) - 1}
            or options.get_int("stash_type", 1) != F32
            or any(depends_on(v, total) for v in vectors.values())  # the kernel gives both
        ):
            return None
        scale, shift, bias = (vectors[name] for name in ("scale", "shift", "bias"))
        plain = self.operator == "RMSNormalization"
        kernel = op.SkipSimplifiedLayerNormalization if plain else op.SkipLayerNormalization
        normalized, _, _, summed = kernel(
            *([x, skip, scale] if plain else [x, skip, scale, shift]),
            *([bias] if self.biased else []),
            epsilon=options.get_float("epsilon", 1e-5),
            _outputs=4,
            _domain=MICROSOFT,
        )
        return normalized, summed


def _skip_rule(name: str, operator: str, shifts: tuple[bool, ...]) -> Rule:
    return Rule(
        name,
        "onnxruntime",
        tuple(
            SkipNormalization(operator, biased=biased, shifted=shifted)
            for shifted in shifts
            for biased in (True, False)
        ),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})},
    )


#: The rules of this family.
RULES = (
    Rule(
        "RMSNorm",
        "default",
        (RootMeanSquare(widened=False), RootMeanSquare(widened=True)),
        # not 64 bits: epsilon, an attribute, has 32 bits
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})},
        opset=23,
    ),
    _skip_rule("SkipRMSNorm", "RMSNormalization", (False,)),
    _skip_rule("SkipLayerNorm", "LayerNormalization", (True, False)),
)
