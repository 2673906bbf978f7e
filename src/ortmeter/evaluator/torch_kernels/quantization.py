"""Linear quantization, by tensor, by axis or by block, and products of quantized matrices."""

from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.kernels import RefusedError
from ortmeter.evaluator.torch_kernels.convolution import conv_integer
from ortmeter.evaluator.torch_kernels.elementwise import convert
from ortmeter.evaluator.torch_kernels.matrices import mat_mul_integer
from ortmeter.evaluator.torch_kernels.registry import describe, dtype_of, kernel

_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16)


@kernel("QuantizeLinear", since=10)
def _quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    dtype = _quantized_type(zero, output_dtype)
    work = dtype_of("QuantizeLinear", precision) if precision else scale.dtype
    spread = _spread(scale, x, axis, block_size).to(work)
    ratio = x.to(work) / spread
    if dtype in _INTEGERS:
        shift = 0 if zero is None else _spread(zero, x, axis, block_size).to(torch.float64)
        return _saturate(torch.round(ratio).double() + shift, dtype)
    is_shifted = zero is not None and bool(zero.to(torch.float32).any())
    if dtype.itemsize != 1 or not dtype.is_floating_point or is_shifted:
        raise RefusedError(
            f"QuantizeLinear: given {describe(x, scale, zero)} to {dtype}; accepted: integers of "
            "8 and 16 bits, float8 with a zero point of 0"
        )
    return convert(ratio, dtype, saturate=saturate)


def _quantized_type(zero: Tensor | None, output_dtype: int) -> torch.dtype:
    if zero is not None:
        return zero.dtype
    return dtype_of("QuantizeLinear", output_dtype) if output_dtype else torch.uint8


def _saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    limits = torch.iinfo(dtype)
    return x.clamp(limits.min, limits.max).to(torch.int32).to(dtype)


def _spread(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Return a scale or a zero point in the shape that *x* broadcasts with."""
    if values.numel() == 1:
        return values.reshape(())
    if block_size:
        return values.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)


@kernel("DequantizeLinear", since=10)
def _dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    dtype = dtype_of("DequantizeLinear", output_dtype) if output_dtype else scale.dtype
    wide = torch.promote_types(dtype, torch.float32)
    centred = x.to(wide)
    if zero is not None:
        centred = centred - _spread(zero, x, axis, block_size).to(wide)
    return (centred * _spread(scale, x, axis, block_size).to(wide)).to(dtype)


@kernel("DynamicQuantizeLinear", since=11)
def _dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = torch.where(high == low, 1.0, high - low).to(x.dtype) / 255
    zero = torch.round((-low / scale).clamp(0, 255))
    return _saturate(torch.round(x / scale) + zero, torch.uint8), scale, zero.to(torch.uint8)


def _requantize(total: Tensor, ratio: Tensor, zero: Tensor) -> Tensor:
    return _saturate(torch.round(total.double() * ratio.double() + zero.double()), zero.dtype)


def _column(values: Tensor) -> Tensor:
    return values.unsqueeze(-1) if values.ndim == 1 and values.numel() > 1 else values


@kernel("QLinearMatMul", since=10)
def _qlinear_mat_mul(  # noqa: PLR0917 - the inputs of the operator
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    total = mat_mul_integer(a, b, a_zero, b_zero)
    return _requantize(total, _column(a_scale) * b_scale / _column(y_scale), _column(y_zero))


@kernel("QLinearConv", since=10, options_of=conv_integer)
def _qlinear_conv(  # noqa: PLR0917 - the inputs of the operator
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    **geometry: Any,
) -> Tensor:
    total = conv_integer(x, w, x_zero, w_zero, **geometry)
    channels = [1, -1] + [1] * (x.ndim - 2)
    if bias is not None:
        total = total + bias.reshape(channels)
    ratio = x_scale * w_scale / y_scale
    return _requantize(total, ratio.reshape(channels) if ratio.numel() > 1 else ratio, y_zero)
