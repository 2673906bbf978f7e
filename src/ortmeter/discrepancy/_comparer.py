"""Figures of a piece of two arrays, in a few passes over buffers that stay in the caches."""

import math

import numpy as np

from ortmeter._elementwise import distance, float_limits, is_integer, set_aside, wide_dtype
from ortmeter.discrepancy._figures import CODE_SCALE, CODE_SHIFT, Figures, Options

__all__ = ["Comparer"]

_EXPONENT = 0x7FF << 52  # bits of the exponent of a float64; 0x7FF is twice its bias, plus one
_FEW = 1000


class Comparer:
    """Compare pieces of two arrays and add their figures up. One per thread.

    Parameters
    ----------
    types : tuple of str
        Short names of the element types, expected and got.
    length : int
        Number of elements of the largest piece.
    options : Options
        What the caller chose.
    sampling : int
        One error in `sampling` is looked at for the quantiles.
    """

    def __init__(
        self, types: tuple[str, str], length: int, options: Options, sampling: int = 1
    ) -> None:
        self._sampling = sampling
        self._options = options
        self._got = types[1]
        self._dtype = wide_dtype(*types)
        self._exact = is_integer(types[0]) and is_integer(types[1])
        self._wide = np.empty((3 if self._dtype == np.float64 else 0, length))
        self._bits = np.empty(length, np.int64)
        self._above = np.empty(length, np.bool_)
        self.figures = Figures.of_nothing(options, exact=self._exact)

    def add(self, start: int, e: np.ndarray, g: np.ndarray) -> None:
        """Take into account the piece that starts at a flat position."""
        index = None
        self.figures.n += e.size
        e, g, out = self._widen(e, g)
        error = distance(e, g, out)
        top = np.maximum.reduce(error)
        if error.dtype.kind == "f" and not math.isfinite(top):
            found = set_aside(e, g, equal_nan=self._options.equal_nan)
            self.figures.count_non_finite(found)
            index = found.index
            e, g = e[index], g[index]
            error = distance(e, g)
            top = error.max(initial=0)
        self.figures.n_finite += error.size
        if error.size == 0:
            return
        e = _magnitude(e)
        self.figures.largest = max(self.figures.largest, float(np.maximum.reduce(e)))
        if top == 0:
            self.figures.add_codes(np.array([error.size]))
            return
        if top >= self.figures.abs:
            worst = int(error.argmax())
            position = start + (worst if index is None else int(index[worst]))
            self.figures.see(int(top) if self._exact else float(top), position)
        self._add_errors(error, e, _magnitude(g))

    def _widen(
        self, e: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        if self._dtype != np.float64:
            return e.astype(self._dtype), g.astype(self._dtype), None
        wide_e, wide_g, out = self._wide[:, : e.size]
        np.copyto(wide_e, e, casting="unsafe")
        np.copyto(wide_g, g, casting="unsafe")
        return wide_e, wide_g, out

    def _add_errors(self, exact: np.ndarray, e: np.ndarray, g: np.ndarray) -> None:
        """Take into account errors that are not all zero, writing over the magnitudes."""
        error = exact.astype(np.float64, copy=False)
        self.figures.sums.append(_exact_sum(exact) if self._exact else float(np.add.reduce(error)))
        self._add_ulp(error, np.maximum(e, g, out=g))
        self._add_relative(error, e)
        self._count_above(error)
        scaled = error[:: self._sampling] * CODE_SCALE
        codes = np.right_shift(scaled.view(np.int64), CODE_SHIFT)
        self.figures.add_codes(np.bincount(codes) * self._sampling)

    def _add_ulp(self, error: np.ndarray, larger: np.ndarray) -> None:
        """Divide the errors by the spacing of the larger values, one power of two each.

        The exponent of the spacing is that of the value, less the number of bits of the
        significand. Its opposite is made in the bits, plus one to stay in the range of float64.
        """
        figures = self.figures
        if is_integer(self._got):
            figures.ulp = figures.abs
            figures.ulp_sums.append(figures.sums[-1])
            return
        n_bits, smallest_normal = float_limits(self._got)
        np.maximum(larger, smallest_normal, out=larger)
        bits = self._bits[: error.size]
        np.bitwise_and(larger.view(np.int64), _EXPONENT, out=bits)
        np.subtract(_EXPONENT, bits, out=bits)
        halves = np.multiply(error, bits.view(np.float64), out=larger)
        unit = 2.0 ** (n_bits - 1)
        figures.ulp = max(figures.ulp, _or_infinity(np.maximum.reduce(halves)) * unit)
        figures.ulp_sums.append(_or_infinity(np.add.reduce(halves)) * unit)

    def _add_relative(self, error: np.ndarray, expected: np.ndarray) -> None:
        if self._options.rtol_floor:
            np.maximum(expected, self._options.rtol_floor, out=expected)
        np.divide(error, expected, out=expected)
        largest = np.fmax.reduce(expected)  # ignores 0/0
        self.figures.rel = max(self.figures.rel, _or_infinity(largest))

    def _count_above(self, error: np.ndarray) -> None:
        """Count the errors above each threshold, from the smallest until there are none."""
        if error.size <= _FEW:  # to sort them once is faster than one pass per threshold
            below = np.sort(error).searchsorted(self._options.thresholds, side="right")
            self.figures.above += error.size - below
            return
        above = self._above[: error.size]
        for i, threshold in enumerate(self._options.thresholds):
            count = np.count_nonzero(np.greater(error, threshold, out=above))
            if count == 0:
                return
            self.figures.above[i] += count


def _magnitude(values: np.ndarray) -> np.ndarray:
    """Return absolute values in float64, in the same place when they already are."""
    if values.dtype.kind in "iuO":  # in their type, the smallest int64 has no opposite
        values = values.astype(np.float64)
    out = values if values.dtype == np.float64 else None
    magnitude: np.ndarray = np.absolute(values, out=out)
    return magnitude.astype(np.float64, copy=False)


def _exact_sum(error: np.ndarray) -> int:
    """Add integers, in float64 when those are below 64 bits."""
    if error.dtype.kind != "u":
        return int(error.sum())
    low = int((error & 0xFFFFFFFF).sum())
    return low + (int((error >> 32).sum()) << 32)


def _or_infinity(value: float) -> float:
    """Read NaN as what it comes from, the modulus of a finite complex number that overflows."""
    return math.inf if math.isnan(value) else float(value)
