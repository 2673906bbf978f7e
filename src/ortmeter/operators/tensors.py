"""What kernels of several families share."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

from ortmeter import dtypes
from ortmeter.errors import InvalidArgumentError, RefusedError
from ortmeter.operators.descriptions import describe
from ortmeter.operators.late import Dtype, Tensor, TensorFunction, torch
from ortmeter.operators.registry import guard, register


def named(name: str) -> TensorFunction:
    """Return a function of torch, which its first call imports."""

    def call(*inputs: Any, **options: Any) -> Tensor:
        result: Tensor = getattr(torch, name)(*inputs, **options)
        return result

    return call


def direct(op: str, function: TensorFunction | str, *, since: int) -> None:
    """Register a function, or the name of one of torch: a call costs little around it."""

    @functools.cache
    def find() -> TensorFunction:
        return operator.attrgetter(function)(torch) if isinstance(function, str) else function

    def run(*inputs: Any) -> Any:
        try:
            return find()(*inputs)
        except (NotImplementedError, TypeError):
            return guard(op, find())(*inputs)  # which says what torch refuses

    register(op, since, run)


def refused(op_type: str, accepted: str, *inputs: Any, also: str = "") -> RefusedError:
    """Say what a kernel was given, and what it accepts."""
    return RefusedError(f"{op_type}: given {describe(inputs)}{also}; accepted: {accepted}")


@functools.cache
def dtype_of(op_type: str, onnx_type: int) -> Dtype:
    """Return the torch dtype of an ONNX type."""
    name = str(onnx_type)
    try:
        name = dtypes.short_name(onnx_type)
        return dtypes.torch_dtype(onnx_type)
    except InvalidArgumentError as cause:
        raise RefusedError(f"{op_type}: given {name}; accepted: the types of torch") from cause


def widened(x: Tensor) -> Tensor:
    """Widen the types of 16 bits or fewer, whose squares and sums overflow early."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def as_list(values: Any) -> list[int]:
    """Read the integers of a tensor, or of an attribute."""
    if isinstance(values, torch.Tensor):
        return values.reshape(-1).tolist()
    return [int(value) for value in values]


def positive_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def positive_axes(axes: Sequence[int], rank: int) -> list[int]:
    return [positive_axis(axis, rank) for axis in axes]


def non_negative(indices: Tensor, size: int) -> Tensor:
    """Count indices from the front of a dimension of that size."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)
