"""Joining, cutting, padding and rearranging tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import as_list, positive_axes, positive_axis
from ortmeter.evaluator.torch_kernels._registry import kernel
from ortmeter.evaluator.torch_kernels._unsigned import same_bits

__all__ = [
    "center_crop_pad",
    "concat",
    "concat_from_axis_1",
    "depth_to_space",
    "slice_by_attributes",
    "slice_by_inputs",
    "space_to_depth",
    "split",
    "split_by_attribute",
]


@kernel("Concat", since=1, until=3)
def concat_from_axis_1(*inputs: Tensor, axis: int = 1) -> Tensor:
    """Join along an axis, the second by default."""
    return torch.cat(inputs, axis)


@kernel("Concat", since=4)
def concat(*inputs: Tensor, axis: int) -> Tensor:
    """Join along an axis."""
    return torch.cat(inputs, axis)


@kernel("Split", since=2)
def split_by_attribute(
    x: Tensor, *, axis: int = 0, split: list[int] | None = None, n_outputs: int
) -> tuple[Tensor, ...]:
    """Cut along an axis in parts of sizes given by an attribute, or equal."""
    return _split(x, axis, split, n_outputs)


@kernel("Split", since=13)
def split(
    x: Tensor,
    split: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    n_outputs: int,
) -> tuple[Tensor, ...]:
    """Cut along an axis in parts of sizes given by an input, or equal but the last."""
    return _split(x, axis, None if split is None else as_list(split), num_outputs or n_outputs)


def _split(x: Tensor, axis: int, sizes: list[int] | None, count: int) -> tuple[Tensor, ...]:
    if sizes is None:
        size = x.shape[axis]
        part = -(-size // count)
        sizes = [min(part, max(size - i * part, 0)) for i in range(count)]
    return torch.split(x, sizes, axis)


@kernel("Slice", since=1)
def slice_by_attributes(
    x: Tensor, *, starts: list[int], ends: list[int], axes: list[int] | None = None
) -> Tensor:
    """Cut between attributes."""
    return _slice(x, starts, ends, axes, None)


@kernel("Slice", since=10)
def slice_by_inputs(
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """Cut between inputs, by steps of either sign."""
    chosen = None if axes is None else as_list(axes)
    return _slice(x, as_list(starts), as_list(ends), chosen, steps)


def _slice(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Tensor | None,
) -> Tensor:
    dims = range(len(starts)) if axes is None else positive_axes(axes, x.ndim)
    strides = [1] * len(starts) if steps is None else as_list(steps)
    index: list[Any] = [slice(None)] * x.ndim
    reversed_dims = []
    for dim, start, end, step in zip(dims, starts, ends, strides, strict=True):
        if step > 0:
            index[dim] = slice(start, end, step)
        else:
            index[dim] = _mirrored(x.shape[dim], start, end, step)
            reversed_dims.append(dim)
    x = x[tuple(index)]
    return same_bits(torch.flip, x, reversed_dims) if reversed_dims else x


def _mirrored(size: int, start: int, end: int, step: int) -> slice:
    """Give the slice, of a positive step, of what a negative one takes from the end."""
    taken = range(*slice(start, end, step).indices(size))
    return slice(taken[-1], taken[0] + 1, -step) if taken else slice(0, 0)


@kernel("DepthToSpace", since=1)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Move blocks of channels to blocks of pixels."""
    n, c, h, w = x.shape
    depth = c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, blocksize, blocksize, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, blocksize, blocksize, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * blocksize, w * blocksize)


@kernel("SpaceToDepth", since=1)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Move blocks of pixels to channels."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, -1, h // blocksize, w // blocksize)


@kernel("CenterCropPad", since=18)
def center_crop_pad(x: Tensor, shape: Tensor, *, axes: list[int] | None = None) -> Tensor:
    """Cut or pad with zeros around the centre."""
    dims = range(x.ndim) if axes is None else positive_axes(axes, x.ndim)
    for dim, wanted in zip(dims, as_list(shape), strict=True):
        have = x.shape[positive_axis(dim, x.ndim)]
        if have > wanted:
            x = x.narrow(dim, (have - wanted) // 2, wanted)
        elif have < wanted:
            before = (wanted - have) // 2
            sizes = list(x.shape)
            sizes[dim] = wanted
            padded = x.new_zeros(sizes)
            padded.narrow(dim, before, have).copy_(x)
            x = padded
    return x
