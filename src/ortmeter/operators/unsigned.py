"""Detours for unsigned integers of 16, 32 and 64 bits, for which torch has few kernels.

Three are exact, each for its own family of functions. Modulo two to the number of bits, signed and
unsigned integers have the same sums and products (`BITS`). Flipping the sign bit maps unsigned
integers to signed ones in the same order (`ORDER`). A wider signed type holds all of them but those
of 64 (`WIDER`).
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from ortmeter.operators.late import Dtype, Tensor, TensorFunction, torch
from ortmeter.operators.registry import guard, register

# From an unsigned type: the type to compute in, how to go there, how to come back.
Way: TypeAlias = tuple[Any, TensorFunction, TensorFunction]
Detour: TypeAlias = Callable[[Any], Way]


@functools.cache
def _signed() -> dict[Dtype, Dtype]:
    return {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def BITS(dtype: Dtype) -> Way:  # noqa: N802
    """Compute on the signed integers of the same bits."""
    signed = _signed()[dtype]
    return signed, lambda x: x.view(signed), lambda y: y.view(dtype)


def ORDER(dtype: Dtype) -> Way:  # noqa: N802
    """Compute on signed integers in the same order."""
    signed = _signed()[dtype]
    lowest = torch.iinfo(signed).min
    return signed, lambda x: x.view(signed) ^ lowest, lambda y: (y ^ lowest).view(dtype)


def WIDER(dtype: Dtype) -> Way:  # noqa: N802
    """Compute on a signed type that holds every value."""
    if dtype == torch.uint64:
        raise NotImplementedError(f"{dtype} fits in no signed type of torch")
    return torch.int64, lambda x: x.to(torch.int64), lambda y: y.to(dtype)


def direct(op: str, function: TensorFunction | str, *, since: int, detour: Detour = WIDER) -> None:
    """Register a function, or the name of one of torch, with a detour for unsigned integers."""

    @functools.cache
    def find() -> TensorFunction:
        return operator.attrgetter(function)(torch) if isinstance(function, str) else function

    def run(*inputs: Any) -> Any:
        try:
            return find()(*inputs)
        except (NotImplementedError, TypeError):
            return guard(op, functools.partial(detoured, find(), detour))(*inputs)

    register(op, since, None, run)


def same_bits(function: TensorFunction, x: Tensor, *others: Any) -> Tensor:
    """Apply a function that only moves elements, whatever their type."""
    try:
        return function(x, *others)
    except NotImplementedError:
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return function(x.view(integers[x.element_size()]), *others).view(x.dtype)


def detoured(function: TensorFunction, detour: Detour, *inputs: Any) -> Tensor:
    """Apply a function of torch, on another type in place of unsigned integers."""
    dtypes = {x.dtype for x in inputs if isinstance(x, torch.Tensor) and x.dtype in _signed()}
    if len(dtypes) != 1:
        return function(*inputs)
    (unsigned,) = dtypes
    signed, there, back = detour(unsigned)
    moved = (there(x) if isinstance(x, torch.Tensor) and x.dtype == unsigned else x for x in inputs)
    got = function(*moved)
    return back(got) if got.dtype == signed else got
