"""Pooling over windows and over whole images."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import (
    TensorFunction,
    UnsupportedError,
    describe,
    kernel,
)
from ortmeter.evaluator.torch_kernels._windows import Window, window

__all__ = [
    "average_pool",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "lp_pool",
    "max_pool",
    "max_unpool",
]

_AVERAGE: dict[int, TensorFunction] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}
_MAX: dict[int, Any] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}


@kernel("AveragePool", since=1)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Average over windows."""
    frame = window(
        x,
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    rank = len(kernel_shape)
    if frame.is_pooled_by_torch and set(frame.dilations) == {1} and rank in _AVERAGE:
        return _AVERAGE[rank](
            x,
            frame.kernel,
            frame.strides,
            frame.before,
            ceil_mode=False,
            count_include_pad=bool(count_include_pad),
        )
    axes = tuple(range(-rank, 0))
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = frame.pad(ones, 1.0 if count_include_pad else 0.0, extra=0.0)
    return frame.views(frame.pad(x)).sum(axes) / frame.views(counted).sum(axes)


@kernel("LpPool", since=2)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: int = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Norm over windows."""
    frame = window(
        x,
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    axes = tuple(range(-len(kernel_shape), 0))
    norms: Tensor = torch.linalg.vector_norm(frame.views(frame.pad(x)), p, axes)
    return norms


@kernel("MaxPool", since=1)
def max_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
    n_outputs: int = 1,
) -> Any:
    """Maximum over windows, and where it is if asked for."""
    rank = len(kernel_shape)
    if rank not in _MAX:
        raise UnsupportedError(f"MaxPool: given {describe(x)}; accepted: 1 to 3 dimensions")
    frame = window(
        x,
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    if x.element_size() == 1:  # exact in float32, which torch pools
        got = _max_pool(x.to(torch.float32), frame, storage_order, n_outputs)
        return (got[0].to(x.dtype), got[1]) if n_outputs > 1 else got.to(x.dtype)
    return _max_pool(x, frame, storage_order, n_outputs)


def _max_pool(x: Tensor, frame: Window, storage_order: int, n_outputs: int) -> Any:
    inner = frame.is_pooled_by_torch
    padded = x if inner else frame.pad(x, -math.inf)
    got = _MAX[len(frame.kernel)](
        padded,
        frame.kernel,
        frame.strides,
        frame.before if inner else 0,
        frame.dilations,
        return_indices=n_outputs > 1,
    )
    if n_outputs == 1:
        return got
    values, places = got
    sizes = padded.shape[2:]
    return values, _positions(places, sizes, x, () if inner else frame.before, storage_order)


def _positions(
    places: Tensor, sizes: Any, x: Tensor, before: tuple[int, ...], storage_order: int
) -> Tensor:
    """Turn positions in each padded image into positions in the whole input."""
    inside = list(torch.unravel_index(places, tuple(sizes)))
    for axis, shift in enumerate(before):
        inside[axis] = inside[axis] - shift
    spatial = list(x.shape[2:])
    if storage_order:
        inside, spatial = inside[::-1], spatial[::-1]
    flat = torch.zeros_like(places)
    for size, index in zip(spatial, inside, strict=True):
        flat = flat * size + index
    images = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(spatial)
    return flat + images.reshape(x.shape[:2] + (1,) * len(spatial))


@kernel("MaxUnpool", since=9)
def max_unpool(
    x: Tensor,
    places: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Put maxima back where they were, in zeros."""
    rank = len(kernel_shape)
    steps, cut = strides or [1] * rank, pads or [0] * 2 * rank
    spatial = [
        (size - 1) * step - cut[i] - cut[i + rank] + width
        for i, (size, step, width) in enumerate(zip(x.shape[2:], steps, kernel_shape, strict=True))
    ]
    inferred = [*x.shape[:2], *spatial]
    y = _unpooled(x, places, inferred)
    return y if output_shape is None else _embedded(y, output_shape.tolist())


def _unpooled(x: Tensor, places: Tensor, shape: list[int]) -> Tensor:
    flat = x.new_zeros(math.prod(shape))
    return flat.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)


def _embedded(y: Tensor, shape: list[int]) -> Tensor:
    larger = y.new_zeros(shape)
    larger[tuple(slice(size) for size in y.shape)] = y
    return larger


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@kernel("GlobalAveragePool", since=1)
def global_average_pool(x: Tensor) -> Tensor:
    """Average of each image."""
    return torch.mean(x, _spatial(x), keepdim=True)


@kernel("GlobalMaxPool", since=1)
def global_max_pool(x: Tensor) -> Tensor:
    """Maximum of each image."""
    return torch.amax(x, _spatial(x), keepdim=True)


@kernel("GlobalLpPool", since=2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """Norm of each image."""
    norms: Tensor = torch.linalg.vector_norm(x, p, _spatial(x), keepdim=True)
    return norms
