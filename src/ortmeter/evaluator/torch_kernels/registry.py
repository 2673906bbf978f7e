"""The table of kernels, what a kernel refuses, and what kernels of several themes share.

torch has few kernels for unsigned integers of 16, 32 and 64 bits. Three detours are exact, each for
its own family of functions. Modulo two to the number of bits, signed and unsigned integers have the
same sums and products (`BITS`). Flipping the sign bit maps unsigned integers to signed ones in the
same order (`ORDER`). A wider signed type holds them all, except those of 64 bits (`WIDER`).
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ortmeter import dtypes
from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator import values
from ortmeter.evaluator.kernels import RefusedError

Kernel: TypeAlias = Callable[..., Any]
TensorFunction: TypeAlias = Callable[..., Tensor]
Function = TypeVar("Function", bound=Kernel)


@dataclass(frozen=True)
class _Entry:
    since: int
    until: int | None
    function: Kernel


_ENTRIES: dict[str, list[_Entry]] = {}


def _register(op_type: str, since: int, until: int | None, function: Kernel) -> None:
    _ENTRIES.setdefault(op_type, []).append(_Entry(since, until, function))


def kernel(
    op_type: str, *, since: int = 1, until: int | None = None, options_of: Kernel | None = None
) -> Callable[[Function], Function]:
    """Register a function as the kernel of an operator between two opsets; decorator.

    A parameter that is an attribute in old opsets and an input in new ones is not keyword-only.
    ``**options`` stands for the keywords of *options_of*.
    """

    def add(function: Function) -> Function:
        if options_of is not None:
            documented: Any = function
            documented.__signature__ = _joined(function, options_of)
        _register(op_type, since, until, _guard(op_type, function))
        return function

    return add


def kernels(table: Iterable[tuple[str, int, Kernel]]) -> None:
    """Register several kernels: operator, first opset, function."""
    for op_type, since, function in table:
        kernel(op_type, since=since)(function)


def find_kernel(domain: str, op_type: str, opset: int) -> Kernel | None:
    """Return ``kernel(*inputs, **attributes)``, None when none has the semantics of this opset."""
    entries = () if domain not in {"", "ai.onnx"} else _ENTRIES.get(op_type, ())
    found = max((e for e in entries if e.since <= opset), key=lambda e: e.since, default=None)
    if found is None or (found.until is not None and opset > found.until):
        return None
    return found.function


def _joined(function: Kernel, options_of: Kernel) -> inspect.Signature:
    own = inspect.signature(function).parameters.values()
    given = [p for p in own if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in given}
    others = inspect.signature(options_of).parameters.values()
    added = [p for p in others if p.kind is p.KEYWORD_ONLY and p.name not in names]
    return inspect.Signature([*given, *added])


def describe(*inputs: Any) -> str:
    return values.describe(inputs)


def _guard(op_type: str, function: Kernel) -> Kernel:
    """Turn the refusals of torch into `RefusedError`; what is wrong with a model stays."""

    @functools.wraps(function)
    def guarded(*inputs: Any, **attributes: Any) -> Any:
        try:
            return function(*inputs, **attributes)
        except RefusedError:
            raise
        except (RuntimeError, TypeError, AttributeError) as cause:
            if not _is_refusal(cause, (*inputs, *attributes.values())):
                raise
            raise RefusedError(
                f"{op_type}: given {describe(*inputs)} and {attributes}; accepted: what torch "
                f"implements ({cause})"
            ) from cause

    return guarded


def _is_refusal(cause: Exception, given: tuple[Any, ...]) -> bool:
    if isinstance(cause, RuntimeError):
        return isinstance(cause, NotImplementedError)
    return any(isinstance(x, np.ndarray) for x in given)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# From an unsigned type: the type to compute in, how to go there, how to come back.
_Way: TypeAlias = tuple[torch.dtype, TensorFunction, TensorFunction]
Detour: TypeAlias = Callable[[torch.dtype], _Way]


def BITS(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on the signed integers of the same bits."""
    signed = _SIGNED[dtype]
    return signed, lambda x: x.view(signed), lambda y: y.view(dtype)


def ORDER(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on signed integers in the same order."""
    signed = _SIGNED[dtype]
    lowest = torch.iinfo(signed).min
    return signed, lambda x: x.view(signed) ^ lowest, lambda y: (y ^ lowest).view(dtype)


def WIDER(dtype: torch.dtype) -> _Way:  # noqa: N802
    """Compute on a signed type that holds every value."""
    if dtype == torch.uint64:
        raise NotImplementedError(f"{dtype} fits in no signed type of torch")
    return torch.int64, lambda x: x.to(torch.int64), lambda y: y.to(dtype)


def direct(op_type: str, function: TensorFunction, *, since: int, detour: Detour = WIDER) -> None:
    """Register a function of torch as a kernel, with a detour for unsigned integers."""
    otherwise = _guard(op_type, functools.partial(detoured, function, detour))

    def run(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except (NotImplementedError, TypeError):
            return otherwise(*inputs)

    _register(op_type, since, None, run)


def same_bits(function: TensorFunction, x: Tensor, *others: Any) -> Tensor:
    """Apply a function that only moves elements, whatever their type."""
    try:
        return function(x, *others)
    except NotImplementedError:
        return function(x.view(_OF_SIZE[x.element_size()]), *others).view(x.dtype)


def detoured(function: TensorFunction, detour: Detour, *inputs: Any) -> Tensor:
    """Apply a function of torch, on another type in place of unsigned integers."""
    found = {x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _SIGNED}
    if len(found) != 1:
        return function(*inputs)
    (unsigned,) = found
    signed, there, back = detour(unsigned)
    moved = (there(x) if isinstance(x, Tensor) and x.dtype == unsigned else x for x in inputs)
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
    if isinstance(values, Tensor):
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
