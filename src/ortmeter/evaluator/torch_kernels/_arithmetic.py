"""Arithmetic, element by element, with NumPy-style broadcasting."""

import functools
from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel
from ortmeter.evaluator.torch_kernels._unsigned import (
    BITS,
    ORDER,
    WIDER,
    direct,
    through_wider,
)

__all__ = ["bit_shift", "mean", "mod", "power"]


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers are truncated towards zero."""
    if x.is_floating_point():
        return torch.div(x, y)
    return torch.div(x, y, rounding_mode="trunc")


def _fold(function: Any) -> Any:
    return lambda *inputs: functools.reduce(function, inputs)


for _op, _function, _since, _detour in (
    ("Add", torch.add, 7, BITS),
    ("Sub", torch.sub, 7, BITS),
    ("Mul", torch.mul, 7, BITS),
    ("Div", _divide, 7, WIDER),
    ("Neg", torch.neg, 6, WIDER),
    ("Abs", torch.abs, 6, WIDER),
    ("Max", _fold(torch.maximum), 8, ORDER),
    ("Min", _fold(torch.minimum), 8, ORDER),
    ("Sum", _fold(torch.add), 8, WIDER),
    ("BitwiseAnd", torch.bitwise_and, 18, BITS),
    ("BitwiseOr", torch.bitwise_or, 18, BITS),
    ("BitwiseXor", torch.bitwise_xor, 18, BITS),
    ("BitwiseNot", torch.bitwise_not, 18, BITS),
):
    direct(_op, _function, since=_since, detour=_detour)


@kernel("Mean", since=8)
def mean(*inputs: Tensor) -> Tensor:
    """Average of the inputs."""
    return functools.reduce(torch.add, inputs) / len(inputs)


@kernel("Mod", since=10)
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    """Remainder, with the sign of the divisor or, with *fmod*, of the dividend."""
    if fmod:
        return through_wider("Mod", torch.fmod, x, y)
    if x.is_floating_point():
        return _floor_mod(x, y)
    return through_wider("Mod", torch.remainder, x, y)


def _floor_mod(x: Tensor, y: Tensor) -> Tensor:
    """Remainder of a division rounded down, at the signed zeros and infinities of ONNX."""
    rest = torch.fmod(x, y)
    moved = torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return torch.where(rest == 0, torch.copysign(rest, y), moved)


@kernel("Pow", since=7)
def power(x: Tensor, y: Tensor) -> Tensor:
    """Power, in the type of the base."""
    if x.dtype == y.dtype and x.is_floating_point():
        return torch.pow(x, y)
    if x.is_floating_point():
        common = torch.promote_types(x.dtype, y.dtype) if y.is_floating_point() else x.dtype
        return torch.pow(x.to(common), y.to(common)).to(x.dtype)
    if y.is_floating_point():
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)
    if torch.uint64 in (x.dtype, y.dtype) and x.dtype != y.dtype:
        y = _as_int64(x, y)
    return torch.pow(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)


def _as_int64(x: Tensor, y: Tensor) -> Tensor:
    exponent = y.to(torch.int64)
    if (exponent < 0).any():
        raise UnsupportedError(
            f"Pow: given {describe(x, y)}; accepted: exponents from 0 to 2**63 - 1 for integers"
        )
    return exponent


@kernel("BitShift", since=11)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Shift bits; a count out of range leaves what the extension of the sign gives."""
    bits = 8 * x.element_size()
    wide, count = x.to(torch.int64), y.to(torch.int64)
    inside = (count >= 0) & (count < bits)
    last = torch.where(inside, count, bits - 1)
    if direction == "LEFT":
        return torch.where(inside, torch.bitwise_left_shift(wide, last), 0).to(x.dtype)
    if x.dtype == torch.uint64:
        return torch.where(inside, _shift_unsigned(wide, last), 0).to(x.dtype)
    shifted = torch.bitwise_right_shift(wide, last)
    return torch.where(inside | (wide < 0), shifted, 0).to(x.dtype)


def _shift_unsigned(x: Tensor, count: Tensor) -> Tensor:
    """Shift the bits of an int64 to the right, zeros coming in."""
    half = torch.bitwise_right_shift(x, 1) & torch.iinfo(torch.int64).max
    return torch.where(count == 0, x, torch.bitwise_right_shift(half, (count - 1).clamp(min=0)))
