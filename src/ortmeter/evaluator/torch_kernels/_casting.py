"""Conversion between element types."""

import functools
import math

import torch
from torch import Tensor

from ortmeter.dtypes import short_name, torch_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel

__all__ = ["bit_cast", "cast", "cast_like", "convert", "dtype_of"]

# Largest value that rounds to a finite one, for the type that overflows to what is not a number.
_OVERFLOW_E4M3FN = 464.0
_E8M0 = torch.float8_e8m0fnu
_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
_NARROW = (torch.float16, torch.bfloat16, *_FLOAT8)


@functools.cache
def dtype_of(op_type: str, onnx_type: int) -> torch.dtype:
    """Give the torch dtype of an ONNX type."""
    try:
        return torch_dtype(onnx_type)
    except InvalidArgumentError as cause:
        raise UnsupportedError(
            f"{op_type}: given {_name(onnx_type)}; accepted: the types of torch"
        ) from cause


def _name(onnx_type: int) -> str:
    try:
        return short_name(onnx_type)
    except InvalidArgumentError:
        return str(onnx_type)


@kernel("Cast", since=6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Convert to the type of a number in ``TensorProto.DataType``."""
    return convert(x, dtype_of("Cast", to), saturate=saturate, round_mode=round_mode)


@kernel("CastLike", since=15)
def cast_like(x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Convert to the type of another tensor."""
    return convert(x, target.dtype, saturate=saturate, round_mode=round_mode)


@kernel("BitCast", since=26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    """Read the same bits as another type of the same size."""
    dtype = dtype_of("BitCast", to)
    if dtype.itemsize != x.dtype.itemsize:
        raise InvalidArgumentError(f"BitCast: {describe(x)} and {dtype} have different sizes")
    return x.view(dtype)


def convert(x: Tensor, dtype: torch.dtype, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Convert to a type, rounded once to the nearest, ties to even."""
    if x.dtype == dtype:
        return x
    if dtype == _E8M0:
        return _to_power_of_two(x, saturate=saturate, round_mode=round_mode)
    if x.dtype == torch.float64 and dtype in _NARROW:
        x = _to_odd_float32(x)
    if dtype in _FLOAT8:
        return _limit(x.to(torch.float32), dtype, saturate=saturate).to(dtype)
    if x.dtype.is_complex and not dtype.is_complex:
        raise UnsupportedError(f"Cast: given {describe(x)} to {dtype}; accepted: real types")
    return x.to(dtype)


def _limit(x: Tensor, dtype: torch.dtype, *, saturate: int) -> Tensor:
    if saturate:
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest)
    if dtype == torch.float8_e4m3fn:
        return torch.where(x.abs() > _OVERFLOW_E4M3FN, math.nan, x)
    return x


def _to_odd_float32(x: Tensor) -> Tensor:
    """Convert float64 so that a second rounding, to a narrower type, gives the nearest value.

    Rounding to odd: what is not exact is truncated and its last bit set [1]_.

    References
    ----------
    .. [1] Boldo and Melquiond, *When double rounding is odd*, IMACS 2005.
    """
    near = x.to(torch.float32)
    bits = near.view(torch.int32)
    bits = bits - (near.abs().double() > x.abs()).to(torch.int32)
    inexact = (near.double() != x) & ~torch.isnan(x)
    return torch.where(inexact, (bits | 1).view(torch.float32), near)


def _to_power_of_two(x: Tensor, *, saturate: int, round_mode: str) -> Tensor:
    """Convert to float8e8m0, which holds an exponent only."""
    if not saturate:
        raise UnsupportedError(f"Cast: given {describe(x)} to {_E8M0}; accepted: saturate=1")
    wide = x.to(torch.float64)
    significand, exponent = torch.frexp(wide)  # 0.5 <= significand < 1
    if round_mode == "down":
        exponent = exponent - 1
    else:
        exact, middle = 0.5, 0.75
        raised = significand > exact if round_mode == "up" else significand >= middle
        exponent = exponent - 1 + raised.to(exponent.dtype)
    biased = (exponent + 127).clamp(0, 254)
    biased = torch.where(wide == 0, 0, torch.where(torch.isinf(wide), 254, biased))
    return torch.where(torch.isnan(wide), 255, biased).to(torch.uint8).view(_E8M0)
