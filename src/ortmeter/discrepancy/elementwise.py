"""Arithmetic of two flat arrays, element by element: types, errors, what is not finite."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.dtypes import float_info

_LONG = {"i64", "u64"}
_COMPLEX = {"c64": "f32", "c128": "f64"}


@functools.cache
def float_limits(name: str) -> tuple[int, float]:
    """Return the bits after the point of a significand, and the smallest normal number."""
    info = float_info(_COMPLEX.get(name, name))
    return int(info.nmant), 2.0 ** int(info.minexp)


def is_integer(name: str) -> bool:
    """Tell integers and booleans from their short name."""
    return name == "b8" or name[0] in "iu"


def spacing(magnitude: float, name: str) -> float:
    """Distance between consecutive numbers of a type, as if its exponent had no upper limit."""
    if is_integer(name):
        return 1.0
    n_bits, smallest_normal = float_limits(name)
    _, exponent = math.frexp(max(magnitude, smallest_normal))
    return math.ldexp(1.0, exponent - 1 - n_bits)


@functools.cache
def wide_dtype(expected: str, got: str) -> np.dtype[Any]:
    """Choose the type in which two element types are subtracted without losing a digit.

    Integers below 64 bits are exact in float64. Python integers are the only ones that hold the
    difference of a signed and of an unsigned integer of 64 bits.
    """
    types = {expected, got}
    if is_integer(expected) and is_integer(got):
        if not types & _LONG:
            return np.dtype(np.float64)
        if "u64" not in types:
            return np.dtype(np.int64)
        signed = any(name[0] == "i" for name in types)
        return np.dtype(object if signed else np.uint64)
    wide = np.dtype(np.longdouble if types & _LONG else np.float64)
    return np.result_type(wide, np.complex64) if types & _COMPLEX.keys() else wide


def distance(expected: np.ndarray, got: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Compute ``|got - expected|`` of two arrays of the same wide type, exactly for integers."""
    error: np.ndarray
    if expected.dtype.kind in "iuO":
        error = np.maximum(expected, got) - np.minimum(expected, got)
        # The difference of two int64 wraps around, into its value once read as uint64.
        return error.view(np.uint64) if error.dtype.kind == "i" else error
    error = np.subtract(got, expected, out=out)
    error = np.absolute(error, out=out)
    return error


@dataclass(frozen=True)
class NonFinite:
    """NaN and infinities of a piece of the arrays, and where both values are finite."""

    index: np.ndarray
    mismatched: np.ndarray
    counts: dict[str, int]


NON_FINITE = ("n_nan", "n_inf", "n_nan_expected", "n_nan_got", "n_inf_expected", "n_inf_got")


def set_aside(expected: np.ndarray, got: np.ndarray, *, equal_nan: bool) -> NonFinite:
    """Count the NaN and the infinities of two arrays, those that do not match apart.

    The same infinities match, NaN match NaN if `equal_nan`. A complex number with a NaN is a NaN.
    """
    nan_e, nan_g = np.isnan(expected), np.isnan(got)
    inf_e, inf_g = np.isinf(expected) & ~nan_e, np.isinf(got) & ~nan_g
    nan = nan_e ^ nan_g if equal_nan else nan_e | nan_g
    inf = (inf_e | inf_g) & ~(nan_e | nan_g) & (expected != got)
    finite = ~(nan_e | nan_g | inf_e | inf_g)
    counts = [int(np.count_nonzero(m)) for m in (nan, inf, nan_e, nan_g, inf_e, inf_g)]
    return NonFinite(
        np.flatnonzero(finite),
        np.flatnonzero(nan | inf),
        dict(zip(NON_FINITE, counts, strict=True)),
    )
