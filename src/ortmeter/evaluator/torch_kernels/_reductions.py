"""Reductions, with axes as an attribute or as an input."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import as_list, positive_axes
from ortmeter.evaluator.torch_kernels._registry import TensorFunction, kernel

__all__ = ["reduction"]

Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _sum(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keepdim, dtype=x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim=keepdim)
    count = math.prod(x.shape[axis] for axis in axes)
    return torch.div(_sum(x, axes, keepdim), count, rounding_mode="trunc").to(x.dtype)


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


def _least(dtype: torch.dtype, sign: int) -> Any:
    """Give the value that the maximum (sign 1) or the minimum (sign -1) of nothing is."""
    if dtype.is_floating_point:
        return -sign * math.inf
    if dtype == torch.bool:
        return sign < 0
    limits = torch.iinfo(dtype)
    return limits.min if sign > 0 else limits.max


def _l1(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return _sum(torch.abs(x), axes, keepdim)


def _sum_square(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return _sum(x * x, axes, keepdim)


def _l2(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    if x.is_floating_point():
        norms: Tensor = torch.linalg.vector_norm(x, 2, axes, keepdim=keepdim)
        return norms
    return torch.sqrt(_sum_square(x, axes, keepdim).double()).to(x.dtype)


def _log_sum(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.log(_floating(_sum(x, axes, keepdim))).to(x.dtype)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.logsumexp(_floating(x), axes, keepdim=keepdim).to(x.dtype)


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _reduce(reduce: Reduce, x: Tensor, axes: Sequence[int] | None, keepdims: int) -> Tensor:
    dims = tuple(positive_axes(axes, x.ndim)) if axes else tuple(range(x.ndim))
    return reduce(x, dims, bool(keepdims))


def reduction(op_type: str, reduce: Reduce, *, input_since: int = 18) -> None:
    """Register a reduction; *input_since* is the opset that made an input of its axes."""

    def of_attribute(x: Tensor, *, axes: list[int] | None = None, keepdims: int = 1) -> Tensor:
        return _reduce(reduce, x, axes, keepdims)

    def of_input(
        x: Tensor,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = [] if axes is None else as_list(axes)
        if noop_with_empty_axes and not chosen:
            return reduce(x.unsqueeze(-1), (x.ndim,), False)
        return _reduce(reduce, x, chosen, keepdims)

    kernel(op_type, since=1)(of_attribute)
    kernel(op_type, since=input_since)(of_input)


for _op, _function in (
    ("ReduceL1", _l1),
    ("ReduceL2", _l2),
    ("ReduceLogSum", _log_sum),
    ("ReduceLogSumExp", _log_sum_exp),
    ("ReduceMax", _extreme(torch.amax, 1)),
    ("ReduceMean", _mean),
    ("ReduceMin", _extreme(torch.amin, -1)),
    ("ReduceProd", _prod),
    ("ReduceSumSquare", _sum_square),
):
    reduction(_op, _function)
reduction("ReduceSum", _sum, input_since=13)
