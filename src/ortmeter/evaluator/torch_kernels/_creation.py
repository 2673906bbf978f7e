"""Constants, ranges and other tensors made from nothing."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._casting import dtype_of
from ortmeter.evaluator.torch_kernels._helpers import non_negative, positive_axis
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, kernel

__all__ = ["constant", "constant_of_shape", "eye_like", "one_hot", "range_"]


@kernel("Constant", since=1)
def constant(
    *,
    value: Any = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
    sparse_value: Any = None,
) -> Any:
    """Give the attribute that holds the value."""
    if value is not None:
        return value
    for number, dtype in (
        (value_float, torch.float32),
        (value_floats, torch.float32),
        (value_int, torch.int64),
        (value_ints, torch.int64),
    ):
        if number is not None:
            return torch.tensor(number, dtype=dtype)
    text = value_string if value_strings is None else value_strings
    if text is not None:
        return np.array(text, dtype=object)
    if isinstance(sparse_value, Tensor):
        return sparse_value.to_dense() if sparse_value.is_sparse else sparse_value
    raise UnsupportedError(f"Constant: given sparse_value={sparse_value!r}; accepted: tensors")


@kernel("ConstantOfShape", since=9)
def constant_of_shape(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    """Repeat a value, 0 of float32 by default."""
    sizes = shape.tolist()
    if value is None:
        return torch.zeros(sizes, device=shape.device)
    return value.to(shape.device).reshape(()).expand(sizes).contiguous()


@kernel("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """Give ``start + i * delta``, up to *limit* excluded."""
    dtype = start.dtype
    if dtype in (torch.float16, torch.bfloat16):
        wide = dtype_of("Range", stash_type)
        start, limit, delta = start.to(wide), limit.to(wide), delta.to(wide)
    first, last, step = start.item(), limit.item(), delta.item()
    exact = not start.is_floating_point()
    count = -(-(last - first) // step) if exact else math.ceil((last - first) / step)
    steps = torch.arange(max(int(count), 0), device=start.device, dtype=start.dtype)
    return (steps * delta.reshape(()) + start.reshape(())).to(dtype)


@kernel("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones on the diagonal *k*, zeros elsewhere."""
    kind = x.dtype if dtype is None else dtype_of("EyeLike", dtype)
    ones = torch.ones(x.shape, device=x.device)
    return torch.triu(torch.tril(ones, k), k).to(kind)


@kernel("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """Put the second value where the index is, the first elsewhere."""
    size = int(depth.item())
    dim = positive_axis(axis, indices.ndim + 1)
    hot = non_negative(indices, size).unsqueeze(dim)
    shape = [1] * hot.ndim
    shape[dim] = size
    places = torch.arange(size, device=indices.device).reshape(shape)
    return values[(hot == places).to(torch.int64)]
