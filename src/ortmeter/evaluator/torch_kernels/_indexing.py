"""Reading and writing elements at given positions."""

from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import non_negative, positive_axis
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel
from ortmeter.evaluator.torch_kernels._unsigned import same_bits

__all__ = [
    "compress",
    "gather",
    "gather_elements",
    "gather_nd",
    "non_zero",
    "reverse_sequence",
    "scatter",
    "scatter_elements",
    "scatter_nd",
    "tensor_scatter",
]

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@kernel("Gather", since=1)
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Read slices along an axis."""
    axis = positive_axis(axis, x.ndim)
    flat = non_negative(indices, x.shape[axis]).reshape(-1)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return torch.index_select(x, axis, flat).reshape(shape)


@kernel("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Read elements along an axis."""
    places = non_negative(indices, x.shape[axis])
    return same_bits(lambda t: torch.gather(t, axis, places), x)


@kernel("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Read slices at positions given by the last dimension of the indices."""
    batches = [
        torch.arange(size, device=x.device).reshape(
            [-1 if i == axis else 1 for i in range(indices.ndim - 1)]
        )
        for axis, size in enumerate(x.shape[:batch_dims])
    ]
    places = [
        non_negative(index, x.shape[batch_dims + i]) for i, index in enumerate(indices.unbind(-1))
    ]
    return x[(*batches, *places)]


@kernel("Scatter", since=9)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    """Write elements along an axis."""
    return scatter_elements(x, indices, updates, axis=axis)


@kernel("ScatterElements", since=11)
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """Write elements along an axis, or combine them with those that are there."""
    places = non_negative(indices, x.shape[axis])
    if reduction == "none":
        return same_bits(lambda t: torch.scatter(t, axis, places, _alike(updates, t)), x)
    return torch.scatter_reduce(x, axis, places, updates, _REDUCTIONS[reduction])


def _alike(updates: Tensor, x: Tensor) -> Tensor:
    return updates if updates.dtype == x.dtype else updates.view(x.dtype)


@kernel("ScatterND", since=11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """Write slices at positions given by the last dimension of the indices."""
    depth = indices.shape[-1]
    outer, inner = x.shape[:depth], x.shape[depth:]
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for size, index in zip(outer, indices.unbind(-1), strict=True):
        flat = flat * size + non_negative(index, size)
    rows = x.reshape(outer.numel(), inner.numel())
    places = flat.reshape(-1, 1).expand(-1, inner.numel())
    values = updates.reshape(-1, inner.numel())
    return scatter_elements(rows, places, values, reduction=reduction).reshape(x.shape)


@kernel("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """Keep the slices along an axis, or the elements, for which the condition is true."""
    places = torch.nonzero(condition).reshape(-1)
    if axis is None:
        return x.reshape(-1)[places]
    return torch.index_select(x, axis, places)


@kernel("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    """Positions of what is not zero, one column each."""
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        x = x != 0
    return torch.nonzero(x).t()


@kernel("ReverseSequence", since=10)
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """Reverse the first elements of each sequence."""
    time = torch.arange(x.shape[time_axis], device=x.device).unsqueeze(1)
    steps = lengths.unsqueeze(0)
    places = torch.where(time < steps, steps - 1 - time, time)
    places = places if time_axis < batch_axis else places.t()
    places = places.reshape(places.shape + (1,) * (x.ndim - 2)).expand(x.shape)
    return same_bits(lambda t: torch.gather(t, time_axis, places), x)


@kernel("TensorScatter", since=24)
def tensor_scatter(
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Write a block of each sample at its own place along an axis."""
    dim = positive_axis(axis, past.ndim)
    steps = torch.arange(update.shape[dim], device=past.device)
    starts: Any = 0 if write_indices is None else write_indices.to(torch.int64).unsqueeze(1)
    places = (starts + steps).expand(past.shape[0], -1)
    if mode == "circular":
        places = places.remainder(past.shape[dim])
    elif bool((places >= past.shape[dim]).any()):
        raise UnsupportedError(
            f"TensorScatter: given {describe(past, update, write_indices)}; accepted: blocks "
            "inside the cache, in the mode linear"
        )
    shape = [1] * past.ndim
    shape[0], shape[dim] = places.shape
    return same_bits(
        lambda t: torch.scatter(
            t, dim, places.reshape(shape).expand(update.shape), _alike(update, t)
        ),
        past,
    )
