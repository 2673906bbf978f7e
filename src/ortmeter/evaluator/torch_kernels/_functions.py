"""Functions of one variable and activations, element by element."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel
from ortmeter.evaluator.torch_kernels._unsigned import WIDER, direct

__all__ = [
    "celu",
    "clip",
    "clip_to_attributes",
    "elu",
    "erf",
    "gelu",
    "hard_sigmoid",
    "identity",
    "leaky_relu",
    "prelu",
    "selu",
    "shrink",
    "sign",
    "softplus",
    "swiglu",
    "swish",
    "thresholded_relu",
]

_LARGEST = torch.finfo(torch.float32).max

for _op, _function, _since in (
    ("Exp", torch.exp, 6),
    ("Log", torch.log, 6),
    ("Sqrt", torch.sqrt, 6),
    ("Reciprocal", torch.reciprocal, 6),
    ("Floor", torch.floor, 6),
    ("Ceil", torch.ceil, 6),
    ("Round", torch.round, 11),
    ("Cos", torch.cos, 7),
    ("Sin", torch.sin, 7),
    ("Tan", torch.tan, 7),
    ("Acos", torch.acos, 7),
    ("Asin", torch.asin, 7),
    ("Atan", torch.atan, 7),
    ("Cosh", torch.cosh, 9),
    ("Sinh", torch.sinh, 9),
    ("Acosh", torch.acosh, 9),
    ("Asinh", torch.asinh, 9),
    ("Atanh", torch.atanh, 9),
    ("Tanh", torch.tanh, 6),
    ("Sigmoid", torch.sigmoid, 6),
    ("Relu", torch.relu, 6),
    ("HardSwish", functional.hardswish, 14),
    ("Mish", functional.mish, 18),
    ("Softsign", functional.softsign, 1),
):
    direct(_op, _function, since=_since, detour=WIDER)


def _check_floating(op_type: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise UnsupportedError(f"{op_type}: given {describe(x)}; accepted: floating-point types")


@kernel("Erf", since=9)
def erf(x: Tensor) -> Tensor:
    """Error function."""
    _check_floating("Erf", x)
    return torch.erf(x)


@kernel("Sign", since=9)
def sign(x: Tensor) -> Tensor:
    """Sign; what is not a number stays so."""
    if x.is_floating_point():
        return torch.where(torch.isnan(x), x, torch.sign(x))
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return (x != 0).to(x.dtype)
    return torch.sign(x)


@kernel("Softplus", since=1)
def softplus(x: Tensor) -> Tensor:
    """Logarithm of ``1 + exp(x)``, which is *x* in every type from 40 on."""
    return functional.softplus(x, threshold=40)


@kernel("Elu", since=6)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit."""
    return functional.elu(x, alpha)


@kernel("Celu", since=12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit with a continuous derivative."""
    return functional.celu(x, alpha)


@kernel("Selu", since=6)
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    """Scaled exponential linear unit."""
    return functional.elu(x, alpha) * gamma


@kernel("LeakyRelu", since=6)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """Linear unit with a slope for negative values."""
    return functional.leaky_relu(x, alpha)


@kernel("PRelu", since=7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Linear unit with a slope, broadcast to *x*, for negative values."""
    return torch.where(x < 0, slope * x, x)


@kernel("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Zero up to *alpha*."""
    return torch.where(x > alpha, x, 0)


@kernel("HardSigmoid", since=6)
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Line cut at 0 and 1."""
    return torch.clamp(x * alpha + beta, 0, 1)


@kernel("Gelu", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit."""
    return functional.gelu(x, approximate=approximate)


@kernel("Swish", since=24)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Product of *x* and of the sigmoid of ``alpha * x``."""
    return functional.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


@kernel("SwiGLU", since=28)
def swiglu(gate: Tensor, value: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Product of *value* and of the swish of *gate*."""
    return swish(gate, alpha=alpha) * value


@kernel("Shrink", since=9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Zero between ``-lambd`` and *lambd*, shifted by *bias* towards zero elsewhere."""
    _check_floating("Shrink", x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0))


@kernel("Clip", since=6)
def clip_to_attributes(
    x: Tensor,
    *,
    min: float = -_LARGEST,  # noqa: A002 - name of the attribute
    max: float = _LARGEST,  # noqa: A002 - name of the attribute
) -> Tensor:
    """Limit to attributes; those out of the range of the type limit nothing."""
    range_ = torch.finfo(x.dtype)
    low = None if min < range_.min else min
    high = None if max > range_.max else max
    return x if low is None and high is None else torch.clamp(x, low, high)


@kernel("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Limit to an interval; where it is empty, to its upper bound."""
    return x if low is None and high is None else torch.clamp(x, low, high)


@kernel("Identity", since=1)
def identity(x: Any) -> Any:
    """Give the input."""
    return x
