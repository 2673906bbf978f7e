"""Arithmetic, comparisons, functions of one variable and conversions, element by element."""

import functools
from typing import Any

import numpy as np

from ortmeter.operators.counts import Work, between_inputs, nothing, per_element
from ortmeter.operators.late import Array, Tensor, TensorFunction, functional, special, torch
from ortmeter.operators.registry import MICROSOFT, definition, family, kernel, stand_in
from ortmeter.operators.roundings import mean, once, product, sum_of_products
from ortmeter.operators.tensors import direct, dtype_of, refused, widened

declare = family("elementwise")
_ONE = {"cost": per_element(1)}
_ROUNDED = _ONE | {"bound": once}
_EXACT = _ONE | {"is_exact": True}
_SOFTSIGN = product(lambda _run: 3)  # a kernel may multiply by an inverse


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers are truncated towards zero, and the smallest one by -1 is itself."""
    if x.is_floating_point():
        return torch.div(x, y)
    if not x.dtype.is_signed:
        return torch.div(x, y, rounding_mode="trunc")
    negative = y == -1  # torch ends the process where this quotient overflows
    quotient = torch.div(x, y.masked_fill(negative, 1), rounding_mode="trunc")
    return torch.where(negative, -quotient, quotient)


def _fold(name: str) -> TensorFunction:
    return lambda *inputs: functools.reduce(getattr(torch, name), inputs)


# By opset: operators, with the name of the function of torch when it is another one.
_TABLE: tuple[tuple[int, dict[str, Any], str], ...] = (
    (1, _ONE, "Not:logical_not"),
    (1, {"cost": per_element(3), "bound": _SOFTSIGN}, "Softsign:nn.functional.softsign"),
    (6, _EXACT, "Abs Ceil Floor Neg Relu"),
    (6, _ROUNDED, "Reciprocal Sqrt"),
    (6, _ONE, "Exp Log Tanh"),
    (6, {"cost": per_element(4)}, "Sigmoid"),
    (7, _ROUNDED, "Add Mul Sub"),
    (7, _ONE, "And:logical_and Equal:eq Greater:gt Less:lt Or:logical_or Xor:logical_xor"),
    (7, _ONE, "Cos Sin Tan"),
    (7, {}, "Acos Asin Atan"),
    (9, {"cost": nothing, "is_exact": True}, "Where"),
    (9, {}, "Acosh Asinh Atanh Cosh Sinh"),
    (9, _ONE, "IsNaN:isnan"),
    (11, _EXACT, "Round"),
    (12, _ONE, "GreaterOrEqual:ge LessOrEqual:le"),
    (14, {"cost": per_element(5)}, "HardSwish:nn.functional.hardswish"),
    (18, {}, "BitwiseAnd:bitwise_and BitwiseNot:bitwise_not"),
    (18, {}, "BitwiseOr:bitwise_or BitwiseXor:bitwise_xor Mish:nn.functional.mish"),
)
for _since, _facets, _names in _TABLE:
    for _name in _names.split():
        _op, _, _function = _name.partition(":")
        declare(_op, **_facets)
        direct(_op, _function or _op.lower(), since=_since)

declare("Div", **_ROUNDED)
declare("Mod Sign", **_EXACT)
declare("Erf IsInf Pow", **_ONE)
declare("BitShift Shrink")
declare("Max Min", cost=between_inputs, is_exact=True)
declare("Sum", cost=between_inputs, bound=sum_of_products)
direct("Div", _divide, since=7)
direct("Max", _fold("maximum"), since=8)
direct("Min", _fold("minimum"), since=8)
direct("Sum", _fold("add"), since=8)


@kernel("Mod", since=10)
def _mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    """Remainder, with the sign of the divisor or, with *fmod*, of the dividend."""
    if fmod:
        return torch.fmod(x, y)
    return _floor_mod(x, y) if x.is_floating_point() else torch.remainder(x, y)


def _floor_mod(x: Tensor, y: Tensor) -> Tensor:
    """Remainder of a division rounded down, at the signed zeros and infinities of ONNX."""
    rest = torch.fmod(x, y)
    moved = torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return torch.where(rest == 0, torch.copysign(rest, y), moved)


@kernel("Pow", since=7)
def _power(x: Tensor, y: Tensor) -> Tensor:
    """Power, in the type of the base."""
    if x.dtype == y.dtype and x.is_floating_point():
        return torch.pow(x, y)
    if x.is_floating_point():
        common = torch.promote_types(x.dtype, y.dtype) if y.is_floating_point() else x.dtype
        return torch.pow(x.to(common), y.to(common)).to(x.dtype)
    if y.is_floating_point():
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)
    exponent = y.to(torch.int64)
    if torch.uint64 in (x.dtype, y.dtype) and x.dtype != y.dtype and (exponent < 0).any():
        raise refused("Pow", "exponents from 0 to 2**63 - 1 for integers", x, y)
    return torch.pow(x.to(torch.int64), exponent).to(x.dtype)


stand_in("IsInf")(lambda _x, **_: torch.isinf)


@kernel("Erf", since=9)
def _erf(x: Tensor) -> Tensor:
    """Compute in float32 at least: torch loses small numbers of narrower types."""
    if not x.is_floating_point():
        raise refused("Erf", "floating-point types", x)
    return torch.erf(widened(x)).to(x.dtype)


@kernel("Sign", since=9)
def _sign(x: Tensor) -> Tensor:
    """Sign; what is not a number stays so."""
    if x.is_floating_point():
        return torch.where(torch.isnan(x), x, torch.sign(x))
    return torch.sign(x)


def _swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


def _mean_of_inputs(work: Work) -> float:
    """inputs an output."""  # noqa: D403
    return len(work.inputs) * work.out


def _mean(*inputs: Tensor) -> Tensor:
    total = functools.reduce(torch.add, map(widened, inputs))
    return (total / len(inputs)).to(inputs[0].dtype)


declare("Mean", cost=_mean_of_inputs, bound=mean)
declare("Softplus", cost=per_element(3))
declare("LeakyRelu PRelu", cost=per_element(2), bound=once)
declare("ThresholdedRelu", is_exact=True)
declare("HardSigmoid", cost=per_element(4))
declare("Gelu", cost=per_element(5), cpu_types="f32")
declare("Celu Elu Selu SwiGLU Swish")
_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

kernel("Mean", since=8)(_mean)
# x itself in every type from 40 on
kernel("Softplus")(lambda x: functional.softplus(x, threshold=40))
kernel("Elu", since=6)(lambda x, *, alpha=1.0: functional.elu(x, alpha))
kernel("Celu", since=12)(lambda x, *, alpha=1.0: functional.celu(x, alpha))
kernel("Selu", since=6)(lambda x, *, alpha=_ALPHA, gamma=_GAMMA: functional.elu(x, alpha) * gamma)
kernel("LeakyRelu", since=6)(lambda x, *, alpha=0.01: functional.leaky_relu(x, alpha))
kernel("PRelu", since=7)(lambda x, slope: torch.where(x < 0, slope * x, x))
kernel("ThresholdedRelu", since=10)(lambda x, *, alpha=1.0: torch.where(x > alpha, x, 0))
kernel("HardSigmoid", since=6)(
    lambda x, *, alpha=0.2, beta=0.5: torch.clamp(x * alpha + beta, 0, 1)
)
kernel("Swish", since=24)(_swish)
kernel("Gelu", since=20)(
    lambda x, *, approximate="none": functional.gelu(x, approximate=approximate)
)


declare("Clip", cost=per_element(2), is_exact=True)


@kernel("Clip", since=6)
def _clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002 - attributes
    """Before opset 11, a bound is an attribute: out of the range of the type, it limits nothing."""
    range_ = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    low = None if isinstance(min, float) and min < range_.min else min
    high = None if isinstance(max, float) and max > range_.max else max
    return x if low is None and high is None else torch.clamp(x, low, high)


declare("Cast", kind="movement", cost=nothing, bound=once)
declare("CastLike", kind="movement", cost=nothing)
declare("BitCast", kind="movement")


@kernel("Cast", since=6)
def _cast_tensor(
    x: Tensor,
    *,
    to: int,
    saturate: int = 1,  # noqa: ARG001 - of float8
) -> Tensor:
    """Convert to a type, rounded once to the nearest, ties to even."""
    dtype = dtype_of("Cast", to)
    if x.dtype == dtype:
        return x
    narrow = 1 if x.dtype != torch.float64 else 2  # torch rounds float64 to float32 first
    if dtype.is_floating_point and dtype.itemsize <= narrow:
        accepted = "floats of 16 bits or more, from float64 of 32"
        raise refused("Cast", accepted, x, also=f" to {dtype}")
    if x.dtype.is_complex and not dtype.is_complex:
        raise refused("Cast", "real types", x, also=f" to {dtype}")
    return x.to(dtype)


@stand_in("Clip")
def _clamp(_x: Tensor, *limits: Tensor | None) -> TensorFunction:
    bounds = [None if limit is None else limit.item() for limit in limits]
    return lambda x, *_bounds: torch.clamp(x, *bounds)


@stand_in("Pow")
def _to_the(_x: Tensor, exponent: Tensor) -> TensorFunction:
    number = exponent.item()
    return lambda x, _exponent: torch.pow(x, number)


@stand_in("PRelu")
def _prelu(_x: Tensor, slope: Tensor) -> TensorFunction:
    flat = slope.reshape(-1)
    return lambda x, _slope: functional.prelu(x, flat)


stand_in("HardSigmoid")(lambda _x, **_: functional.hardsigmoid)
stand_in("Selu")(lambda _x, **_: functional.selu)
stand_in("Sign")(lambda _x: torch.sign)
stand_in("Shrink")(lambda _x, *, lambd=0.5, **_: lambda x: functional.hardshrink(x, lambd))
stand_in("ThresholdedRelu")(lambda _x, *, alpha=1.0: lambda x: functional.threshold(x, alpha, 0))


declare = family("elementwise", domain=MICROSOFT)
declare("Gelu", cost=per_element(5))
declare("BiasGelu QuickGelu", cost=per_element(6))
declare("FastGelu")


@definition("Gelu")
def _gelu(x: Array) -> Array:
    return np.asarray(x * special.ndtr(x))


definition("BiasGelu")(lambda x, bias: _gelu(x + bias))


@definition("FastGelu")
def _fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Follow the formula that its kernels share, with their two constants of seven digits."""
    x = x if bias is None else x + bias
    inner = float(np.float32(0.7978845608)), float(np.float32(0.035677408136))
    return np.asarray(x * (1 + np.tanh(x * (inner[0] + inner[1] * x * x))) / 2)


@definition("QuickGelu")
def _quick_gelu(x: Array, *, alpha: float = float(np.float32(1.702))) -> Array:
    return np.asarray(x * special.expit(alpha * x))
