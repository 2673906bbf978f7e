"""Reductions, positions of extremes, sorting, accumulation along an axis."""

import math
from collections.abc import Callable
from typing import Any

from ortmeter.operators.counts import reduction
from ortmeter.operators.late import Dtype, Tensor, TensorFunction, torch
from ortmeter.operators.registry import family, kernel, maker, stand_in
from ortmeter.operators.roundings import Run, mean, product, sum_of_products
from ortmeter.operators.tensors import as_list, named, positive_axes, positive_axis

Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _terms(run: Run) -> float:
    """Count the elements that make one."""
    return max(array.size for array in run.inputs) / max(run.exact.size, 1)


declare = family("other")
_SUM, _MEAN = reduction(terms=1, results=-1), reduction(terms=1, results=0)
declare("ReduceSum", cost=_SUM, bound=sum_of_products)
declare("ReduceL1 ReduceSumSquare", cost=reduction(terms=2, results=-1), bound=sum_of_products)
declare("ReduceMax ReduceMin", cost=_SUM, is_exact=True)
declare("ReduceProd", cost=_SUM, bound=product(_terms))
declare("ReduceMean", cost=_MEAN, bound=mean)
declare("ReduceLogSum", cost=_MEAN)
_NORM = product(lambda run: _terms(run) / 2 + 2)
declare("ReduceL2", cost=reduction(terms=2, results=0), bound=_NORM)
declare("ReduceLogSumExp", cost=reduction(terms=4, results=0))
declare("ArgMax ArgMin", cost=_SUM)
declare("TopK Unique", is_exact=True)
declare("CumSum", bound=sum_of_products)
declare("CumProd")


def _sum(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keepdim, dtype=x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim)
    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype == torch.uint64:
        return torch.div(_sum(x, axes, keepdim), count, rounding_mode="trunc").to(x.dtype)
    # The sum may overflow; those of the quotients and of the remainders do not.
    wide = x.to(torch.int64)
    quotients = torch.div(wide, count, rounding_mode="floor")
    rest = _sum(wide - quotients * count, axes, keepdim)
    mean = _sum(quotients, axes, keepdim) + torch.div(rest, count, rounding_mode="floor")
    return (mean + ((mean < 0) & (rest % count != 0))).to(x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keepdim, dtype=x.dtype)
    return x


def _extreme(function: TensorFunction, sign: int) -> Reduce:
    def run(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
        if x.numel():
            return function(x, axes, keepdim=keepdim)
        shape = _sum(x.to(torch.float32), axes, keepdim).shape
        return torch.full(shape, _least(x.dtype, sign), dtype=x.dtype, device=x.device)

    return run


def _least(dtype: Dtype, sign: int) -> Any:
    """Return the value that the maximum (sign 1) or the minimum (sign -1) of nothing is."""
    if dtype.is_floating_point:
        return -sign * math.inf
    if dtype == torch.bool:
        return sign < 0
    limits = torch.iinfo(dtype)
    return limits.min if sign > 0 else limits.max


def _sum_square(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return _sum(x * x, axes, keepdim)


def _norm(order: int) -> Reduce:
    def run(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
        if x.is_floating_point():
            norm: Tensor = torch.linalg.vector_norm(x, order, axes, keepdim)
            return norm
        if order == 1:
            return _sum(torch.abs(x), axes, keepdim)
        return torch.sqrt(_sum_square(x.double(), axes, keepdim)).to(x.dtype)

    return run


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _register_reduction(op_type: str, reduce: Reduce) -> None:
    """Register a reduction, whose axes were an attribute before they were an input."""

    @maker(op_type)
    def make(
        x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> TensorFunction:
        chosen = positive_axes([] if axes is None else as_list(axes), x.ndim)
        if noop_with_empty_axes and not chosen:
            return lambda x, *_axes: reduce(x.unsqueeze(-1), (x.ndim,), False)
        dims, keep = tuple(chosen or range(x.ndim)), bool(keepdims)
        return lambda x, *_axes: reduce(x, dims, keep)


_register_reduction("ReduceL1", _norm(1))
_register_reduction("ReduceL2", _norm(2))
_register_reduction("ReduceLogSum", lambda x, *how: torch.log(_floating(_sum(x, *how))).to(x.dtype))
_register_reduction(
    "ReduceLogSumExp", lambda x, *how: torch.logsumexp(_floating(x), *how).to(x.dtype)
)
_register_reduction("ReduceMax", _extreme(named("amax"), 1))
_register_reduction("ReduceMean", _mean)
_register_reduction("ReduceMin", _extreme(named("amin"), -1))
_register_reduction("ReduceProd", _prod)
_register_reduction("ReduceSum", _sum)
_register_reduction("ReduceSumSquare", _sum_square)


def _register_position(op_type: str, function: TensorFunction) -> None:
    """Register ArgMax or ArgMin; among equals, the first or, if asked, the last position."""

    @kernel(op_type)
    def run(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if not select_last_index:
            return function(x, axis, keepdim=bool(keepdims))
        last = function(x.flip(axis), axis, keepdim=bool(keepdims))
        return x.shape[axis] - 1 - last


_register_position("ArgMax", named("argmax"))
_register_position("ArgMin", named("argmin"))


@stand_in("TopK")
def _torch_topk(_x: Tensor, k: Any, *, axis: int = -1, **options: int) -> Callable[..., Any]:
    count, flags = int(k), {name: bool(value) for name, value in options.items()}
    top_k: Any = torch.topk
    return lambda x, _k: tuple(top_k(x, count, axis, **flags))


def _register_accumulation(op_type: str, since: int, function: TensorFunction, start: int) -> None:
    @kernel(op_type, since=since)
    def run(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        dim = positive_axis(int(axis), x.ndim)
        x = x.flip(dim) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(dim, 0, min(1, x.shape[dim])), start)
            x = torch.cat((first, x.narrow(dim, 0, max(x.shape[dim] - 1, 0))), dim)
        got = function(x, dim, dtype=x.dtype)
        return got.flip(dim) if reverse else got


_register_accumulation("CumSum", 11, named("cumsum"), 0)
_register_accumulation("CumProd", 26, named("cumprod"), 1)
