"""Values of an input as a user writes them: numbers, booleans and texts, on a line or in JSON."""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from ortmeter.errors import FeedError
from ortmeter.runtime.arrays import as_numpy, is_array
from ortmeter.runtime.inputs import Input

_MOST_AXES = 32  # that iterators of numpy take
_PYTHON = (bool, int, float, str)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "float": (int, float),
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "integer": int,
    "float": float,
}


def as_declared(declared: Input, value: Any) -> np.ndarray:
    """Make the array of an input from Python values, checked one by one, or check an array."""
    if isinstance(value, np.generic):
        value = value.item()
    if is_array(value) and not isinstance(value, _PYTHON):
        array = as_numpy(value)
        refuse_misfit(declared, array)
        return array
    given = np.array(value, object)  # of lists when their lengths differ
    if given.ndim > _MOST_AXES:
        raise _refusal(declared, value)
    for element in given.flat:
        if not isinstance(element, _KINDS[declared.kind]) or (
            isinstance(element, bool) and declared.kind != "boolean"
        ):
            raise _refusal(declared, element)
    if declared.kind == "text":
        return given
    return _cast_to_declared(declared, given)


def _cast_to_declared(declared: Input, given: np.ndarray) -> np.ndarray:
    """Convert to the element type; a number out of its range is refused."""
    if declared.kind == "integer":
        low, high = _range(declared)
        for element in given.flat:
            if not low <= element <= high:
                raise _refusal(declared, element)
        return given.astype(np.uint64 if high >= 2**63 else np.int64).astype(declared.dtype)
    try:
        exact = given.astype(np.float64)
    except OverflowError:  # an integer of Python
        raise _refusal(declared, max(given.flat, key=abs)) from None
    with np.errstate(over="ignore", invalid="ignore"):
        array = exact.astype(declared.dtype)
        lost = np.isfinite(exact) & ~np.isfinite(array.astype(exact.dtype))
    if lost.any():
        raise _refusal(declared, exact[lost].flat[0].item())
    return array


def _range(declared: Input) -> tuple[int, int]:
    limits: Any = ml_dtypes.iinfo(declared.dtype)
    return int(limits.min), int(limits.max)


def _refusal(declared: Input, element: Any) -> FeedError:
    accepted = {
        "text": "texts",
        "boolean": "true or false",
        "float": "numbers that this type holds",
    }.get(declared.kind)
    if accepted is None:
        accepted = "integers from {} to {}".format(*_range(declared))
    return FeedError(f"value {reprlib.repr(element)} given for {declared}. Accepted: {accepted}")


def refuse_misfit(declared: Input, array: np.ndarray, origin: str = "") -> None:
    """Check the type and the rank of an array."""
    same_type = array.dtype == declared.dtype or (
        declared.kind == "text" and array.dtype.kind in "UO"
    )
    if not same_type or (declared.shape is not None and array.ndim != len(declared.shape)):
        where = f"{origin!r} has" if origin else "got"
        raise FeedError(
            f"{where} {declared.name!r} of type {array.dtype} and shape {array.shape}. "
            f"Accepted: {declared}"
        )


def parse_value(declared: Input, text: str) -> Any:
    """Read one value, values separated by commas, or nested lists in JSON."""
    if declared.shape == ():
        return _read_text(declared.kind, text)
    if text.startswith("["):
        return decode_json(text)
    values = [_read_text(declared.kind, part) for part in text.split(",")]
    return values[0] if len(values) == 1 else values


def _read_text(kind: str, text: str) -> Any:
    try:
        return _READERS[kind](text)
    except (ValueError, KeyError):
        return text  # which is rejected, with a list of the valid values


def decode_json(text: str | bytes) -> Any:
    """Read JSON as its standard defines it: no NaN."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as cause:
        raise FeedError(f"this is not JSON: {cause}") from cause
