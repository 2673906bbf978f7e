"""Normalizations, by the root mean square and after a residual, and activations."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.polynomial import Polynomial

from ortmeter.backend.rules.graph_values import (
    constant,
    depends_on,
    dimensions,
    from_operator,
    producer,
    scalar,
)
from ortmeter.backend.rules.rule import BF16, F16, F32, F64, MICROSOFT, known, optional, require

# Relative error of a product of constants: two roundings and as much again, for the digits that
# models do not write. More bits than 32 do not make them more precise.
_ROUNDING = {F16: 2**-9, BF16: 2**-6}
_ROUNDING_32 = 2**-22
_DEGREE = 3


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
        require(
            all(dimensions(v) == shape[-1:] for v in given),
            "scale, shift or bias is not a vector over the last axis",
        )
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


class TanhGelu:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` -> Gelu.

    Models write the argument of tanh in several ways: its coefficients are compared, to the
    precision of constants.
    """

    def pattern(self, op: Any, half: Any, inner: Any, one: Any) -> Any:
        return op.Mul(half, op.Add(op.Tanh(inner), one), _outputs=["y"])

    def rewrite(
        self, op: Any, *, half: ir.Value, inner: ir.Value, one: ir.Value, y: ir.Value
    ) -> Any:
        x = known(_variable(half), "the other factor is not a constant times a variable")
        shape = known(dimensions(x), "the shape is not known")
        require(shape == dimensions(y), "a constant adds an axis")
        slope = math.sqrt(2 / math.pi)
        cubic = [0.0, slope, 0.0, 0.044715 * slope]
        expected = ((half, [0.0, 0.5]), (one, [1.0]), (inner, cubic))
        rtol = _ROUNDING.get(x.dtype or F32, _ROUNDING_32)
        same = all(_is_near(_polynomial(value, x), found, rtol) for value, found in expected)
        require(same, "its coefficients are not those of the approximation of Gelu")
        return op.Gelu(x, approximate="tanh")


def _variable(product: ir.Value) -> ir.Value | None:
    """Find the factor of a product of two that is not constant."""
    node = from_operator(product, "Mul")
    found = [value for value in node.inputs if constant(value) is None] if node else []
    return found[0] if len(found) == 1 else None


def _polynomial(value: ir.Value | None, x: ir.Value) -> Polynomial | None:
    """Read a value as a polynomial of another one, to the third degree."""
    if value is x:
        return Polynomial([0, 1])
    number = scalar(value)
    if number is not None:
        return Polynomial([number])
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in {"Add", "Mul", "Pow"}:
        return None
    left, right = (_polynomial(part, x) for part in node.inputs)
    if left is None or right is None:
        return None
    if node.op_type == "Pow":
        exponent = right.coef[0]
        whole = right.degree() == 0 and exponent in range(_DEGREE + 1)
        result = left ** int(exponent) if whole else None
    else:
        result = left + right if node.op_type == "Add" else left * right
    return result if result is not None and result.degree() <= _DEGREE else None


def _is_near(found: Polynomial | None, expected: list[float], rtol: float) -> bool:
    if found is None or len(found.coef) != len(expected):
        return False
    return bool(np.allclose(found.coef, expected, rtol=rtol, atol=0))
