"""Activation functions."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.polynomial import Polynomial

from ortmeter.backend.rules.rule import (
    BF16,
    F16,
    F32,
    F64,
    MICROSOFT,
    Rule,
)
from ortmeter.backend.rules.values import constant, dimensions, from_operator, producer, scalar

__all__ = ["RULES", "BiasGelu", "Silu", "TanhGelu"]

# Relative error of a product of constants: two roundings and as much again, for the digits that
# models do not write. More bits than 32 do not make them more precise.
_ROUNDING = {F16: 2**-9, BF16: 2**-6}
_ROUNDING_32 = 2**-22
_DEGREE = 3


class Silu:
    """``x * sigmoid([factor *] x)`` -> QuickGelu, which is ``x * sigmoid(alpha * x)``.

    Parameters
    ----------
    scaled : bool
        Whether there is a factor.
    """

    def __init__(self, *, scaled: bool) -> None:
        self.scaled = scaled

    def pattern(self, op: Any, x: Any, factor: Any) -> Any:
        """What ``torch.nn.SiLU`` computes, or an approximation of GELU."""
        return op.Mul(x, op.Sigmoid(op.Mul(x, factor) if self.scaled else x))

    def rewrite(self, op: Any, *, x: ir.Value, factor: ir.Value | None) -> Any:
        """The factor is a constant of no more axes than *x*, or one."""
        if factor is None:
            return op.QuickGelu(x, alpha=1.0, _domain=MICROSOFT)
        shape, axes, alpha = dimensions(x), dimensions(factor), scalar(factor)
        if shape is None or axes is None or len(axes) > len(shape) or alpha is None:
            return None
        return op.QuickGelu(x, alpha=alpha, _domain=MICROSOFT)


class TanhGelu:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` -> Gelu.

    Models write the argument of tanh in several ways: its coefficients are compared.
    """

    def pattern(self, op: Any, half: Any, inner: Any, one: Any) -> Any:
        """Half of *x*, and a polynomial of it."""
        return op.Mul(half, op.Add(op.Tanh(inner), one), _outputs=["y"])

    def rewrite(
        self, op: Any, *, half: ir.Value, inner: ir.Value, one: ir.Value, y: ir.Value
    ) -> Any:
        """Coefficients are equal to the precision of constants."""
        x, slope = _variable(half), math.sqrt(2 / math.pi)
        if x is None or dimensions(x) is None or dimensions(x) != dimensions(y):
            return None
        cubic = [0.0, slope, 0.0, 0.044715 * slope]
        expected = ((half, [0.0, 0.5]), (one, [1.0]), (inner, cubic))
        rtol = _ROUNDING.get(x.dtype or F32, _ROUNDING_32)
        if not all(_is_near(_polynomial(value, x), found, rtol) for value, found in expected):
            return None
        return op.Gelu(x, approximate="tanh")


def _variable(product: ir.Value) -> ir.Value | None:
    """Give the factor of a product of two that is not constant."""
    node = from_operator(product, "Mul")
    found = [value for value in node.inputs if constant(value) is None] if node else []
    return found[0] if len(found) == 1 else None


def _polynomial(value: ir.Value | None, x: ir.Value) -> Polynomial | None:
    """Give what a value is as a polynomial of another one, to the third degree."""
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


class BiasGelu:
    """``gelu(x + bias)`` -> one kernel.

    Parameters
    ----------
    approximate : {"none", "tanh"}
        Which function: the exact one, or its approximation by tanh.
    """

    def __init__(self, approximate: str) -> None:
        self.approximate = approximate

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        """The end of a linear layer and the function that follows."""
        return op.Gelu(op.Add(x, bias), _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, x: ir.Value, bias: ir.Value, y: ir.Value) -> Any:
        """The bias must be a vector over the last axis."""
        shape, vector = dimensions(x), dimensions(bias, rank=1)
        if shape is None or vector is None or vector != shape[-1:]:
            return None
        if producer(y).attributes.get_string("approximate", "none") != self.approximate:
            return None
        kernel = op.BiasGelu if self.approximate == "none" else op.FastGelu
        return kernel(x, bias, _domain=MICROSOFT)


_CUDA = frozenset({F32, F64, F16, BF16})

#: The rules of this family.
RULES = (
    Rule(
        "TanhGelu",
        "default",
        (TanhGelu(),),
        {"cpu": frozenset({F32}), "cuda": frozenset({F32, F64, F16})},
        opset=20,
    ),
    Rule("BiasGelu", "onnxruntime", (BiasGelu("none"),), {"cpu": frozenset({F32}), "cuda": _CUDA}),
    Rule(
        "BiasFastGelu",
        "onnxruntime",
        (BiasGelu("tanh"),),
        {"cpu": frozenset({F32}), "cuda": frozenset({F32, F16, BF16})},
    ),
    Rule(
        "Silu",
        "onnxruntime",
        (Silu(scaled=True), Silu(scaled=False)),
        {"cpu": frozenset({F32}), "cuda": _CUDA},
    ),
)
