"""Linear quantization, by tensor, by axis or by block, and products of quantized matrices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ortmeter.dtypes import unit_roundoff
from ortmeter.operators.late import Array, Dtype, Tensor, special, torch
from ortmeter.operators.products import product_of
from ortmeter.operators.registry import MICROSOFT, definition, family, kernel
from ortmeter.operators.roundings import Run, once
from ortmeter.operators.tensors import dtype_of, refused


def _off_by_one(run: Run) -> Array:
    """1 integer."""
    return np.ones(np.shape(run.exact))


def _near_the_middle(run: Run) -> Array:
    """1 integer; for one scale, near the middle of two only."""
    if run.inputs[1].size > 1:
        return _off_by_one(run)
    x, scale = run.inputs[:2]
    quotient = x.astype(np.float64) / scale.astype(np.float64)
    to_middle = np.abs(quotient - np.floor(quotient) - 0.5)
    return np.asarray(to_middle <= 4 * unit_roundoff(x.dtype) * np.abs(quotient), np.float64)


declare = family("elementwise", is_quantized=True, bound=_off_by_one)
declare("QuantizeLinear", bound=_near_the_middle)
declare("DynamicQuantizeLinear")
declare("QLinearMatMul", kind="matrix product")
declare("QLinearConv", kind="convolution")

declare = family("elementwise", domain=MICROSOFT, is_quantized=True, bound=_off_by_one)
declare("QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearWhere QuantizeLinear")
declare("QGemm", kind="matrix product")
declare("QLinearConv", kind="convolution")
declare("QLinearConcat", kind="movement")
declare("QLinearSoftmax", kind="attention")
declare("QLinearGlobalAveragePool QLinearReduceMean", kind="other")

family("matrix product", domain=MICROSOFT)("MatMulNBits")
for _domain in ("", MICROSOFT):
    family("elementwise")("DequantizeLinear", domain=_domain, bound=once)


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
    saturate: int = 1,  # noqa: ARG001 - of float8
) -> Tensor:
    kind = dtype_of("QuantizeLinear", output_dtype) if output_dtype else torch.uint8
    dtype = kind if zero is None else zero.dtype
    if dtype not in (torch.uint8, torch.int8, torch.uint16, torch.int16):
        accepted = "integers of 8 and 16 bits"
        raise refused("QuantizeLinear", accepted, x, scale, zero, also=f" to {dtype}")
    work = dtype_of("QuantizeLinear", precision) if precision else scale.dtype
    ratio = x.to(work) / _spread(scale, x, axis, block_size).to(work)
    shift = 0 if zero is None else _spread(zero, x, axis, block_size).to(torch.float64)
    return _saturate(torch.round(ratio).double() + shift, dtype)


def _saturate(x: Tensor, dtype: Dtype) -> Tensor:
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


@definition("MatMulNBits")
def _matmul_of_few_bits(
    *inputs: Any, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0
) -> Array:
    """Multiply by codes of a few bits, the lowest first, around zero points or the middle."""
    del accuracy_level  # of kernels, not of the exact product
    a, codes, scales, zeros, groups, bias = (*inputs, None, None, None)[:6]

    def unpacked(packed: Array) -> Array:
        digits = packed.reshape((N, -1, 1)) >> np.arange(0, 8, bits, dtype=np.uint8)
        return (digits & np.uint8(2**bits - 1)).reshape((N, -1)).astype(np.float64)

    by_group = scales.reshape((N, -1)).astype(np.float64)
    middle: Array = np.full(by_group.shape, 2.0 ** (bits - 1))
    if zeros is not None:
        is_packed = zeros.dtype == np.uint8
        middle = unpacked(zeros)[:, : by_group.shape[1]] if is_packed else zeros.reshape((N, -1))
    group = np.arange(K) // block_size if groups is None else groups
    weights = (unpacked(codes)[:, :K] - middle[:, group]) * by_group[:, group]
    return np.asarray(a @ weights.T + (0 if bias is None else bias))


def _dequantize(x: Array, scale: Array, zero: Array) -> Array:
    return np.asarray((x.astype(np.float64) - zero.astype(np.float64)) * scale)


def _quantize(y: Array, scale: Array, zero: Array) -> Array:
    info = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(y / scale) + zero, info.min, info.max), zero.dtype)


@definition("QGemm")
def _q_gemm(*inputs: Array, transB: int = 0) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = inputs
    operands = _dequantize(x, x_scale, x_zero), _dequantize(w, w_scale, w_zero)
    return _quantize(
        product_of(*operands, transB=transB) + bias * (x_scale * w_scale), y_scale, y_zero
    )


def _on_floats(function: Callable[..., Array], count: int = 1) -> Callable[..., Array]:
    """Quantize what a function returns for its operands, each with a scale and a zero point."""

    def run(*inputs: Array, **options: Any) -> Array:
        floats = [_dequantize(*inputs[3 * i : 3 * i + 3]) for i in range(count)]
        return _quantize(function(*floats, **options), *inputs[3 * count :])

    return run


def _mean_of_images(x: Array, *, channels_last: int = 0) -> Array:
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    return np.asarray(x.mean(axes, keepdims=True))


def _q_softmax(x: Array, *, axis: int = -1, opset: int = 13) -> Array:
    if opset < 13:  # noqa: PLR2004 - from there it normalizes one axis
        raise NotImplementedError("opset < 13")
    return np.asarray(special.softmax(x, axis=axis))


@definition("QLinearConcat")
def _q_concat(scale: Array, zero: Array, *inputs: Array, axis: int = 0) -> Array:
    parts = [_dequantize(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantize(np.concatenate(parts, axis), scale, zero)


definition("QLinearAdd")(_on_floats(np.add, 2))
definition("QLinearMul")(_on_floats(np.multiply, 2))
definition("QLinearGlobalAveragePool")(_on_floats(_mean_of_images))
definition("QLinearSigmoid")(_on_floats(lambda x: special.expit(x)))  # noqa: PLW0108 - imported then
definition("QLinearSoftmax")(_on_floats(_q_softmax))
