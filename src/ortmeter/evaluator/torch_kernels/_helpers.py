"""What kernels of several themes share."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_list", "by_heads", "non_negative", "positive_axes", "positive_axis"]


def as_list(values: Any) -> list[int]:
    """Give the integers of a tensor, or of an attribute, as a list."""
    if isinstance(values, Tensor):
        return values.reshape(-1).tolist()
    return [int(value) for value in values]


def positive_axis(axis: int, rank: int) -> int:
    """Count an axis from the front."""
    return axis + rank if axis < 0 else axis


def non_negative(indices: Tensor, size: int) -> Tensor:
    """Count indices from the front of a dimension of that size."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def positive_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Count axes from the front."""
    return [positive_axis(axis, rank) for axis in axes]


def by_heads(x: Tensor, heads: int) -> Tensor:
    """Unpack (batch, sequence, heads * size) to (batch, heads, sequence, size)."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
