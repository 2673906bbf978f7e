"""Comparisons, logic and selection, element by element."""

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._registry import kernel
from ortmeter.evaluator.torch_kernels._unsigned import BITS, ORDER, direct

__all__ = ["is_inf", "is_nan"]

for _op, _function, _since, _detour in (
    ("Equal", torch.eq, 7, BITS),
    ("Greater", torch.gt, 7, ORDER),
    ("GreaterOrEqual", torch.ge, 12, ORDER),
    ("Less", torch.lt, 7, ORDER),
    ("LessOrEqual", torch.le, 12, ORDER),
    ("And", torch.logical_and, 7, BITS),
    ("Or", torch.logical_or, 7, BITS),
    ("Xor", torch.logical_xor, 7, BITS),
    ("Not", torch.logical_not, 1, BITS),
    ("Where", torch.where, 9, BITS),
):
    direct(_op, _function, since=_since, detour=_detour)


def _readable(x: Tensor) -> Tensor:
    """Widen the types of 8 bits, which have few kernels."""
    return x.to(torch.float32) if x.element_size() == 1 else x


@kernel("IsNaN", since=9)
def is_nan(x: Tensor) -> Tensor:
    """Tell what is not a number."""
    return torch.isnan(_readable(x))


@kernel("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Tell what is infinite, of the signs asked for."""
    x = _readable(x)
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_negative:
        return torch.isneginf(x)
    return torch.isposinf(x) if detect_positive else torch.zeros_like(x, dtype=torch.bool)
