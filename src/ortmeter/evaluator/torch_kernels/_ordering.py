"""Positions of extremes, sorting, accumulation along an axis."""

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import positive_axis
from ortmeter.evaluator.torch_kernels._registry import TensorFunction, kernel

__all__ = ["arg_extreme", "cum_prod", "cum_sum", "top_k", "top_k_of_attribute", "unique"]


def arg_extreme(op_type: str, function: TensorFunction) -> None:
    """Register ArgMax or ArgMin; among equals, the first or, if asked, the last position."""

    def run(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if not select_last_index:
            return function(x, axis, keepdim=bool(keepdims))
        found = function(x.flip(axis), axis, keepdim=bool(keepdims))
        return x.shape[axis] - 1 - found

    kernel(op_type, since=1)(run)


arg_extreme("ArgMax", torch.argmax)
arg_extreme("ArgMin", torch.argmin)


@kernel("TopK", since=1)
def top_k_of_attribute(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Largest elements along an axis."""
    return _top(x, k, axis, largest=True)


@kernel("TopK", since=10)
def top_k(
    x: Tensor,
    k: Tensor,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002 - name of the attribute
) -> tuple[Tensor, Tensor]:
    """Largest or smallest elements along an axis; sorted in every case."""
    del sorted
    return _top(x, int(k), axis, largest=bool(largest))


def _top(x: Tensor, k: int, axis: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    """Sort, stable: among equals ONNX takes the lowest position, which torch.topk does not."""
    values, positions = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), positions.narrow(axis, 0, k)


def _accumulate(
    function: TensorFunction, neutral: int, x: Tensor, axis: Tensor, *, exclusive: int, reverse: int
) -> Tensor:
    dim = positive_axis(int(axis), x.ndim)
    x = x.flip(dim) if reverse else x
    if exclusive:
        first = torch.full_like(x.narrow(dim, 0, min(1, x.shape[dim])), neutral)
        x = torch.cat((first, x.narrow(dim, 0, max(x.shape[dim] - 1, 0))), dim)
    got = function(x, dim, dtype=x.dtype)
    return got.flip(dim) if reverse else got


@kernel("CumSum", since=11)
def cum_sum(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Sums of the first elements along an axis."""
    return _accumulate(torch.cumsum, 0, x, axis, exclusive=exclusive, reverse=reverse)


@kernel("CumProd", since=26)
def cum_prod(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Products of the first elements along an axis."""
    return _accumulate(torch.cumprod, 1, x, axis, exclusive=exclusive, reverse=reverse)


@kernel("Unique", since=11)
def unique(
    x: Tensor,
    *,
    axis: int | None = None,
    sorted: int = 1,  # noqa: A002 - name of the attribute
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct elements, or slices along an axis, with their first positions and their counts."""
    dim = 0 if axis is None else axis
    rows = x.reshape(-1) if axis is None else x
    values, inverse, counts = torch.unique(rows, dim=dim, return_inverse=True, return_counts=True)
    places = torch.arange(inverse.numel(), device=x.device)
    first = torch.full_like(counts, inverse.numel())
    first = first.scatter_reduce(0, inverse, places, "amin")
    if sorted:
        return values, first, inverse, counts
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=x.device)
    return values.index_select(dim, order), first[order], rank[inverse], counts[order]
