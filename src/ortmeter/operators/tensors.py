"""The table of kernels, what a kernel refuses, and what kernels of several themes share.

torch has few kernels for unsigned integers of 16, 32 and 64 bits. Three detours are exact, each for
its own family of functions. Modulo two to the number of bits, signed and unsigned integers have the
same sums and products (`BITS`). Flipping the sign bit maps unsigned integers to signed ones in the
same order (`ORDER`). A wider signed type holds them all, except those of 64 bits (`WIDER`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ortmeter import dtypes
from ortmeter.errors import InvalidArgumentError
from ortmeter.operators import descriptions
from ortmeter.operators.registry import Kernel, RefusedError, guard, kernel, register
from ortmeter.optional import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional

    TensorFunction: TypeAlias = Callable[..., Tensor]
    # From an unsigned type: the type to compute in, how to go there, how to come back.
    _Way: TypeAlias = tuple[torch.dtype, TensorFunction, TensorFunction]
    Detour: TypeAlias = Callable[[torch.dtype], _Way]
else:  # imported by the first kernel that runs
    torch, functional = lazy("torch", "torch"), lazy("torch.nn.functional", "torch")
    Tensor, TensorFunction, Detour = Any, Callable[..., Any], Callable[..., Any]

__all__ = ["Tensor", "functional", "torch"]


def named(name: str) -> TensorFunction:
    """Return a function of torch, which its first call imports."""

    def call(*inputs: Any, **options: Any) -> Tensor:
        result: Tensor = getattr(torch, name)(*inputs, **options)
        return result

    return call


def kernels(table: Iterable[tuple[str, int, Kernel]]) -> None:
    """Register several kernels: operator, first opset, function."""
    for op_type, since, function in table:
        kernel(op_type, since=since)(function)


def describe(*inputs: Any) -> str:
    return descriptions.describe(inputs)


@functools.cache
def _signed() -> dict[torch.dtype, torch.dtype]:
    return {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def BITS(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on the signed integers of the same bits."""
    signed = _signed()[dtype]
    return signed, lambda x: x.view(signed), lambda y: y.view(dtype)


def ORDER(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on signed integers in the same order."""
    signed = _signed()[dtype]
    lowest = torch.iinfo(signed).min
    return signed, lambda x: x.view(signed) ^ lowest, lambda y: (y ^ lowest).view(dtype)


def WIDER(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on a signed type that holds every value."""
    if dtype == torch.uint64:
        raise NotImplementedError(f"{dtype} fits in no signed type of torch")
    return torch.int64, lambda x: x.to(torch.int64), lambda y: y.to(dtype)


def direct(
    op_type: str, find: Callable[[], TensorFunction], *, since: int, detour: Detour = WIDER
) -> None:
    """Register a function of torch as a kernel, with a detour for unsigned integers."""

    def make() -> Kernel:
        function = find()
        otherwise = guard(op_type, functools.partial(detoured, function, detour))

        def run(*inputs: Any) -> Any:
            try:
                return function(*inputs)
            except (NotImplementedError, TypeError):
                return otherwise(*inputs)

        return run

    register(op_type, since, None, make)


def same_bits(function: TensorFunction, x: Tensor, *others: Any) -> Tensor:
    """Apply a function that only moves elements, whatever their type."""
    try:
        return function(x, *others)
    except NotImplementedError:
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return function(x.view(integers[x.element_size()]), *others).view(x.dtype)


def detoured(function: TensorFunction, detour: Detour, *inputs: Any) -> Tensor:
    """Apply a function of torch, on another type in place of unsigned integers."""
    found = {x.dtype for x in inputs if isinstance(x, torch.Tensor) and x.dtype in _signed()}
    if len(found) != 1:
        return function(*inputs)
    (unsigned,) = found
    signed, there, back = detour(unsigned)
    moved = (there(x) if isinstance(x, torch.Tensor) and x.dtype == unsigned else x for x in inputs)
    got = function(*moved)
    return back(got) if got.dtype == signed else got


@functools.cache
def dtype_of(op_type: str, onnx_type: int) -> torch.dtype:
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


def by_heads(x: Tensor, heads: int) -> Tensor:
    """Unpack (batch, sequence, heads * size) to (batch, heads, sequence, size)."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
