"""Shapes: what reads them and what changes them without moving elements."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.torch_kernels._helpers import as_list, positive_axes, positive_axis
from ortmeter.evaluator.torch_kernels._registry import describe, kernel

__all__ = [
    "expand",
    "flatten",
    "reshape",
    "reshape_to_attribute",
    "shape",
    "size",
    "squeeze",
    "squeeze_attribute",
    "tile",
    "transpose",
    "unsqueeze",
    "unsqueeze_attribute",
]


@kernel("Shape", since=1)
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """Sizes of the dimensions between two axes."""
    bounds = slice(start, end)
    return torch.tensor(x.shape[bounds], dtype=torch.int64, device=x.device)


@kernel("Size", since=1)
def size(x: Tensor) -> Tensor:
    """Number of elements."""
    return torch.tensor(math.prod(x.shape), dtype=torch.int64, device=x.device)


@kernel("Reshape", since=1)
def reshape_to_attribute(x: Tensor, *, shape: list[int]) -> Tensor:
    """Reshape to an attribute."""
    return _reshape(x, shape)


@kernel("Reshape", since=5)
def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """Reshape; 0 copies a dimension, or is 0 with *allowzero*; -1 is inferred."""
    sizes: list[int] = shape.tolist()
    return x.reshape(sizes) if allowzero else _reshape(x, sizes)


def _reshape(x: Tensor, sizes: list[int]) -> Tensor:
    if 0 in sizes:
        sizes = [size or x.shape[i] for i, size in enumerate(sizes)]
    return x.reshape(sizes)


@kernel("Flatten", since=1)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """Reshape to a matrix, cut before an axis."""
    cut = positive_axis(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))


@kernel("Transpose", since=1)
def transpose(x: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """Permute the dimensions; reverse them by default."""
    return x.permute(tuple(reversed(range(x.ndim))) if perm is None else perm)


@kernel("Expand", since=8)
def expand(x: Tensor, shape: Tensor) -> Tensor:
    """Broadcast, both ways."""
    sizes = shape.tolist()
    added = len(sizes) - x.ndim
    kept = [-1 if size == 1 and i >= added else size for i, size in enumerate(sizes)]
    return x.expand([-1] * -added + kept)


@kernel("Tile", since=6)
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    """Repeat along each dimension."""
    return x.repeat(repeats.tolist())


@kernel("Squeeze", since=1)
def squeeze_attribute(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    """Remove the dimensions of size 1 of an attribute."""
    return _squeeze(x, axes)


@kernel("Squeeze", since=13)
def squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Remove the dimensions of size 1 of an input, all of them by default."""
    return _squeeze(x, None if axes is None else as_list(axes))


def _squeeze(x: Tensor, axes: Sequence[int] | None) -> Tensor:
    if axes is None:
        return x.squeeze()
    chosen = set(positive_axes(axes, x.ndim))
    if any(x.shape[axis] != 1 for axis in chosen):
        raise InvalidArgumentError(
            f"Squeeze: given {describe(x)} and the axes {list(axes)}; accepted: axes of size 1"
        )
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in chosen])


@kernel("Unsqueeze", since=1)
def unsqueeze_attribute(x: Tensor, *, axes: list[int]) -> Tensor:
    """Insert the dimensions of size 1 of an attribute."""
    return _unsqueeze(x, axes)


@kernel("Unsqueeze", since=13)
def unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    """Insert the dimensions of size 1 of an input."""
    return _unsqueeze(x, as_list(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.ndim + len(axes)
    inserted = set(positive_axes(axes, rank))
    sizes: Any = iter(x.shape)
    return x.reshape([1 if axis in inserted else next(sizes) for axis in range(rank)])
