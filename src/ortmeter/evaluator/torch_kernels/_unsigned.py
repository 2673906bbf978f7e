"""Unsigned integers of 16, 32 and 64 bits, for which torch has few kernels: exact detours.

Three detours are exact, each for its own family of functions. Modulo two to the number of bits,
signed and unsigned integers have the same sums and products (`BITS`). Flipping the sign bit maps
unsigned integers to signed ones in the same order (`ORDER`). A wider signed type holds them all,
except those of 64 bits (`WIDER`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._registry import (
    TensorFunction,
    UnsupportedError,
    describe,
    register,
)

__all__ = ["BITS", "ORDER", "WIDER", "direct", "same_bits", "through_wider"]

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_WIDER = {torch.uint16: torch.int64, torch.uint32: torch.int64}
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Detour = Callable[[TensorFunction, tuple[Any, ...], torch.dtype], Tensor]


def BITS(function: TensorFunction, inputs: tuple[Any, ...], dtype: torch.dtype) -> Tensor:  # noqa: N802
    """Compute on the signed integers of the same bits."""
    signed = _SIGNED[dtype]
    return _back(function(*(_map(x, dtype, lambda t: t.view(signed)) for x in inputs)), dtype)


def ORDER(function: TensorFunction, inputs: tuple[Any, ...], dtype: torch.dtype) -> Tensor:  # noqa: N802
    """Compute on signed integers in the same order."""
    signed = _SIGNED[dtype]
    lowest = torch.iinfo(signed).min
    got = function(*(_map(x, dtype, lambda t: t.view(signed) ^ lowest) for x in inputs))
    return (got ^ lowest).view(dtype) if got.dtype == signed else got


def WIDER(function: TensorFunction, inputs: tuple[Any, ...], dtype: torch.dtype) -> Tensor:  # noqa: N802
    """Compute on a signed type that holds every value."""
    wider = _WIDER.get(dtype)
    if wider is None:
        raise NotImplementedError(f"{dtype} fits in no signed type of torch")
    return _back(function(*(_map(x, dtype, lambda t: t.to(wider)) for x in inputs)), dtype)


def direct(op_type: str, function: TensorFunction, *, since: int, detour: Detour = WIDER) -> None:
    """Register a function of torch as a kernel, with a detour for unsigned integers."""

    def run(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except (NotImplementedError, TypeError) as cause:
            return _take(op_type, function, inputs, detour, cause)

    run.__name__ = op_type.lower()
    register(op_type, since=since)(run)


def through_wider(op_type: str, function: TensorFunction, *inputs: Tensor) -> Tensor:
    """Apply a function of torch, on a wider type where it refuses unsigned integers."""
    try:
        return function(*inputs)
    except NotImplementedError as cause:
        return _take(op_type, function, inputs, WIDER, cause)


def same_bits(function: TensorFunction, x: Tensor, *others: Any) -> Tensor:
    """Apply a function that only moves elements, whatever their type."""
    try:
        return function(x, *others)
    except NotImplementedError:
        return function(x.view(_OF_SIZE[x.element_size()]), *others).view(x.dtype)


def _take(
    op_type: str,
    function: TensorFunction,
    inputs: tuple[Any, ...],
    detour: Detour,
    cause: Exception,
) -> Tensor:
    found = {x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _SIGNED}
    try:
        if len(found) == 1:
            return detour(function, inputs, found.pop())
    except NotImplementedError as second:
        cause = second
    raise UnsupportedError(
        f"{op_type}: given {describe(*inputs)}; accepted: what torch implements ({cause})"
    ) from cause


def _map(x: Any, dtype: torch.dtype, function: Callable[[Tensor], Tensor]) -> Any:
    return function(x) if isinstance(x, Tensor) and x.dtype == dtype else x


def _back(result: Tensor, dtype: torch.dtype) -> Tensor:
    if result.dtype == _SIGNED[dtype]:
        return result.view(dtype)
    return result.to(dtype) if result.dtype == torch.int64 else result
