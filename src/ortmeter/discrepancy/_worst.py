"""The elements with the largest errors, for a message."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter._elementwise import distance, set_aside, wide_dtype
from ortmeter.discrepancy._arrays import Side
from ortmeter.discrepancy._pieces import piece_length
from ortmeter.discrepancy._structure import Pair, pairs

__all__ = ["Element", "worst_elements"]


@dataclass(frozen=True)
class Element:
    """An element whose two values differ. Its error is infinite for a mismatched NaN or inf."""

    where: str
    expected: Any
    got: Any
    error: float


def worst_elements(expected: Any, got: Any, count: int, *, equal_nan: bool) -> list[Element]:
    """Find the elements with the largest errors, in arrays of the same shape.

    Parameters
    ----------
    expected, got : array or structure
        What :func:`~ortmeter.discrepancy.max_diff` compares. Places where they differ in shape or
        structure are left out.
    count : int
        Number of elements, at most.
    equal_nan : bool
        Whether a NaN matches a NaN.

    Returns
    -------
    list of Element
        By decreasing error.
    """
    found = (
        element
        for pair in pairs(expected, got)
        if isinstance(pair, Pair)
        for element in _worst_of_pair(pair, count, equal_nan=equal_nan)
    )
    return heapq.nlargest(count, found, key=lambda element: element.error)


def _worst_of_pair(pair: Pair, count: int, *, equal_nan: bool) -> Iterator[Element]:
    expected, got = Side.of(pair.expected), Side.of(pair.got)
    if expected.shape != got.shape or (expected.dtype == "s") != (got.dtype == "s"):
        return
    size, length = math.prod(got.shape), piece_length((expected.dtype, got.dtype))
    for start in range(0, size, length):
        error = _errors(expected, got, start, min(start + length, size), equal_nan=equal_nan)
        for i in np.argsort(-error, kind="stable")[:count]:
            if error[i] > 0:
                position = start + int(i)
                index = tuple(int(k) for k in np.unravel_index(position, got.shape))
                where = f"{pair.path}{index or ''}"
                values = expected.item(position), got.item(position)
                yield Element(where, *values, float(error[i]))


def _errors(expected: Side, got: Side, start: int, stop: int, *, equal_nan: bool) -> np.ndarray:
    e, g = expected.read(start, stop), got.read(start, stop)
    if got.dtype == "s":
        return np.not_equal(e, g).astype(np.float64)
    with np.errstate(all="ignore"):  # signalling NaN, overflows
        wide = wide_dtype(expected.dtype, got.dtype)
        e, g = e.astype(wide), g.astype(wide)
        error: np.ndarray = distance(e, g).astype(np.float64)
        if wide.kind in "fc":
            found = set_aside(e, g, equal_nan=equal_nan)
            finite = error[found.index]
            error[:] = 0
            error[found.index] = finite
            error[found.mismatched] = math.inf
    return error
