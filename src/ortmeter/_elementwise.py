"""Errors of two flat arrays, element by element."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ortmeter.dtypes import float_info

__all__ = ["PieceErrors", "choose_comparison", "is_integer", "spacing"]


def is_integer(name: str) -> bool:
    """Tell integers and booleans from their short name."""
    return name == "b8" or name[0] in "iu"


@dataclass
class PieceErrors:
    """Errors of a piece of the arrays, one value per position where both are finite."""

    error: np.ndarray
    expected: np.ndarray  # magnitude
    ulp: np.ndarray
    index: np.ndarray | None = None  # positions in the piece, None for all of them
    n_nan: int = 0
    n_inf: int = 0

    def max_rel(self) -> float:
        """Return the largest relative error, infinite where zero is expected and not got."""
        error = self.error.astype(np.float64)
        rel = np.divide(error, self.expected, out=np.zeros(error.shape), where=error > 0)
        largest = float(rel.max())
        return math.inf if math.isnan(largest) else largest  # a complex modulus overflowed

    def total(self) -> float:
        """Return the sum of the errors, exact for integers."""
        if self.error.dtype.kind == "f":
            return float(self.error.sum())
        fits = int(self.error.max()) * self.error.size < 2**64
        return int(self.error.sum(dtype=self.error.dtype if fits else object))


def choose_comparison(expected: str, got: str, *, equal_nan: bool) -> Callable[..., PieceErrors]:
    """Choose the arithmetic that compares two element types."""
    if is_integer(expected) and is_integer(got):
        return partial(_compare_integers, dtype=object if "u64" in {expected, got} else np.int64)
    dtype = np.dtype(np.longdouble if {expected, got} & {"i64", "u64"} else np.float64)
    if "c" in expected[0] + got[0]:
        dtype = np.result_type(dtype, np.complex64)
    return partial(_compare_floats, dtype=dtype, got_type=got, equal_nan=equal_nan)


def _compare_integers(expected: np.ndarray, got: np.ndarray, *, dtype: Any) -> PieceErrors:
    """Compare exactly: the difference of two int64 fits in uint64, uint64 needs Python integers."""
    e, g = expected.astype(dtype), got.astype(dtype)
    error = np.maximum(e, g) - np.minimum(e, g)
    if dtype is np.int64:
        error = error.view(np.uint64)
    return PieceErrors(error, np.abs(e.astype(np.float64)), error)


def _compare_floats(
    expected: np.ndarray, got: np.ndarray, *, dtype: Any, got_type: str, equal_nan: bool
) -> PieceErrors:
    e, g = expected.astype(dtype), got.astype(dtype)
    finite = np.isfinite(e) & np.isfinite(g)
    index, n_nan, n_inf = None, 0, 0
    if not finite.all():
        nan_e, nan_g = np.isnan(e), np.isnan(g)
        nan = nan_e | nan_g
        n_nan = int(np.count_nonzero(nan_e != nan_g if equal_nan else nan))
        n_inf = int(np.count_nonzero(~finite & ~nan & (e != g)))
        index = np.flatnonzero(finite)
        e, g = e[index], g[index]
    error, magnitude = np.abs(g - e), np.abs(e)
    ulp = error / spacing(np.maximum(magnitude, np.abs(g)), got_type)
    return PieceErrors(error, magnitude, ulp, index, n_nan, n_inf)


def spacing(magnitude: np.ndarray, name: str) -> np.ndarray:
    """Distance between consecutive numbers of a type, as if its exponent had no upper limit."""
    if is_integer(name):
        return np.ones(magnitude.shape)
    finfo = float_info({"c64": "f32", "c128": "f64"}.get(name, name))
    _, exponent = np.frexp(np.maximum(magnitude, 2.0**finfo.minexp))
    return np.asarray(np.ldexp(1.0, exponent - 1 - finfo.nmant))
