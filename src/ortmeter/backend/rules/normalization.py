"""Normalizations, by the root mean square and after a residual, and activations."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.graph_values import depends_on, dimensions, producer, scalar
from ortmeter.backend.rules.rule import F32, F64, MICROSOFT, known, optional, require


class RootMeanSquare:
    """``x / sqrt(mean(x**2) + epsilon) * scale`` -> RMSNormalization, its mean in 32 bits.

    When *widened*, 16 bits are normalized in 32 bits, then scaled in 16 bits.
    """

    def __init__(self, *, widened: bool) -> None:
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


class SkipNormalization:
    """``normalize(x + skip [+ bias])`` -> one kernel, which gives the sum, the next residual."""

    def __init__(self, operator: str, *, biased: bool) -> None:
        self.operator, self.biased = operator, biased

    def pattern(self, op: Any, x: Any, skip: Any, bias: Any, scale: Any) -> Any:
        total = op.Add(op.Add(x, bias) if self.biased else x, skip)
        inputs = [total, scale] if self._plain else [total, scale, optional("shift")]
        return getattr(op, self.operator)(*inputs, _outputs=["y"]), total

    def rewrite(
        self, op: Any, *, x: ir.Value, skip: ir.Value, y: ir.Value, **vectors: ir.Value | None
    ) -> Any:
        options, total = producer(y).attributes, producer(y).inputs[0]
        shape = known(dimensions(x), "the shape is not known")
        require(dimensions(skip) == shape, "the residual is broadcast")
        require(len(shape) in {2, 3}, f"{len(shape)} dimensions: the kernel takes 2 or 3")
        given = [v for v in vectors.values() if v is not None]
        features = all(dimensions(v) == shape[-1:] for v in given)
        require(features, "scale, shift or bias is not a vector over the last axis")
        same = all(v.dtype == x.dtype for v in given)
        require(same, "scale, shift or bias has another type")
        last = options.get_int("axis", -1) in {-1, len(shape) - 1}
        require(last, "more than the last axis is normalized")
        require(options.get_int("stash_type", 1) == F32, "the mean is not computed in 32 bits")
        # the kernel gives both
        assert total is not None
        require(not any(depends_on(v, total) for v in given), "a vector depends on the sum")
        kernel = op.SkipSimplifiedLayerNormalization if self._plain else op.SkipLayerNormalization
        inputs = [x, skip, vectors["scale"]]
        normalized, _, _, summed = kernel(
            *(inputs if self._plain else [*inputs, vectors["shift"]]),
            *([vectors["bias"]] if self.biased else []),
            epsilon=options.get_float("epsilon", 1e-5),
            _outputs=4,
            _domain=MICROSOFT,
        )
        return normalized, summed

    @property
    def _plain(self) -> bool:
        return self.operator == "RMSNormalization"


class BiasGelu:
    """``gelu(x + bias)``, the exact one or its approximation by tanh -> one kernel."""

    def __init__(self, approximate: str) -> None:
        self.approximate = approximate

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        return op.Gelu(op.Add(x, bias), _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, bias: ir.Value, y: ir.Value) -> Any:
        if producer(y).attributes.get_string("approximate", "none") != self.approximate:
            return None
        shape, vector = dimensions(x), dimensions(bias, rank=1)
        require(shape and vector == shape[-1:], "the bias is not a vector over the last axis")
        kernel = op.BiasGelu if self.approximate == "none" else op.FastGelu
        return kernel(x, bias, _domain=MICROSOFT)
