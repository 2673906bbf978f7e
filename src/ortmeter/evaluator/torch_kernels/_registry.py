"""The table of kernels: operator and opset to function, and the error of what a kernel refuses."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from ortmeter.errors import OrtMeterError

__all__ = [
    "Kernel",
    "TensorFunction",
    "UnsupportedError",
    "describe",
    "find_kernel",
    "kernel",
    "register",
]

Kernel: TypeAlias = Callable[..., Any]
TensorFunction: TypeAlias = Callable[..., torch.Tensor]
Function = TypeVar("Function", bound=Kernel)


class UnsupportedError(OrtMeterError, NotImplementedError):
    """A kernel cannot compute what is asked for these types, attributes or devices."""


@dataclass(frozen=True)
class _Entry:
    since: int
    until: int | None
    function: Kernel


_ENTRIES: dict[tuple[str, str], list[_Entry]] = {}


def register(
    op_type: str, *, since: int, until: int | None = None, domain: str = ""
) -> Callable[[Function], Function]:
    """Register a function that raises `UnsupportedError` by itself; decorator."""

    def add(function: Function) -> Function:
        _ENTRIES.setdefault((domain, op_type), []).append(_Entry(since, until, function))
        return function

    return add


def kernel(
    op_type: str, *, since: int = 1, until: int | None = None, domain: str = ""
) -> Callable[[Function], Function]:
    """Register a function as the kernel of an operator between two opsets; decorator.

    Parameters
    ----------
    op_type : str
        Operator.
    since : int
        First opset whose semantics the function has.
    until : int, optional
        Last one, included; without it, until the next kernel of this operator.
    domain : str
        Domain of the operator.

    Notes
    -----
    What torch declares as not implemented, and types that it has no tensor for, become
    `UnsupportedError`. Any other error is a failure, whatever its text: the node must not go to
    another library without a word.
    """

    def add(function: Function) -> Function:
        register(op_type, since=since, until=until, domain=domain)(_guard(op_type, function))
        return function

    return add


def find_kernel(domain: str, op_type: str, opset: int) -> Kernel | None:
    """Give the kernel of an operator.

    Parameters
    ----------
    domain, op_type : str
        Operator; ``"ai.onnx"`` and ``""`` are the same domain.
    opset : int
        Version of the domain that the model imports.

    Returns
    -------
    callable or None
        ``kernel(*inputs, **attributes)``; None when no kernel has the semantics of this opset.
    """
    entries = _ENTRIES.get(("" if domain == "ai.onnx" else domain, op_type), ())
    found = max((e for e in entries if e.since <= opset), key=lambda e: e.since, default=None)
    if found is None or (found.until is not None and opset > found.until):
        return None
    return found.function


def describe(*inputs: Any) -> str:
    """Tell the types and shapes of the inputs of a kernel, in a few words."""
    return ", ".join(_describe_one(x) for x in inputs) or "nothing"


def _describe_one(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"
    if isinstance(x, np.ndarray):
        return f"strings{list(x.shape)}"
    return "nothing" if x is None else f"{type(x).__name__} of {len(x)}"


def _guard(op_type: str, function: Kernel) -> Kernel:
    """Turn the refusals of torch into `UnsupportedError`; what is wrong with a model stays."""

    @functools.wraps(function)
    def guarded(*inputs: Any, **attributes: Any) -> Any:
        try:
            return function(*inputs, **attributes)
        except UnsupportedError:
            raise
        except (RuntimeError, TypeError, AttributeError) as cause:
            if not _is_refusal(cause, (*inputs, *attributes.values())):
                raise
            raise UnsupportedError(
                f"{op_type}: given {describe(*inputs)} and {attributes}; accepted: what torch "
                f"implements ({cause})"
            ) from cause

    return guarded


def _is_refusal(cause: Exception, given: tuple[Any, ...]) -> bool:
    if isinstance(cause, RuntimeError):
        return isinstance(cause, NotImplementedError)
    return any(isinstance(x, np.ndarray) for x in given)
