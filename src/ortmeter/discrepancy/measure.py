"""Figures of two arrays: errors of their pieces, in every core, in a memory that does not grow.

A piece is compared in a few passes over buffers that stay in the caches. Figures of pieces add up
in any order.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ortmeter.discrepancy.arrays import (
    Reader,
    Side,
    float_limits,
    is_integer,
    piece_length,
    pieces,
    wide_dtype,
)
from ortmeter.discrepancy.tolerance import Tolerance
from ortmeter.runtime.environment import usable_cores

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NON_FINITE = ("n_nan", "n_inf", "n_nan_expected", "n_nan_got", "n_inf_expected", "n_inf_got")
COUNTS = ("n", "n_finite", *NON_FINITE)

# The code of an error is the first bits of its float64, its exponent and 4 bits after the point:
# codes grow with the errors, 16 for each power of two. The errors are scaled first, so that the
# smallest ones worth telling apart, 2**-200, have the smallest codes: tables of them are short.
CODE_SCALE = 2.0**-823
CODE_SHIFT = 48


@dataclass(frozen=True)
class Options:
    """What the caller chose."""

    thresholds: tuple[float, ...]
    equal_nan: bool
    tolerance: Tolerance | None = None


@dataclass
class Figures:
    """Figures of the pieces seen so far. Those of integers are exact, Python integers."""

    abs: float
    ulp: float
    rel: float = 0.0
    largest: float = 0.0  # finite magnitude of expected
    position: int | None = None  # first one of the largest error
    sums: list[float] = field(default_factory=list)  # one per piece: their order does not matter
    ulp_sums: list[float] = field(default_factory=list)
    n: int = 0
    n_finite: int = 0
    n_nan: int = 0
    n_inf: int = 0
    n_nan_expected: int = 0
    n_nan_got: int = 0
    n_inf_expected: int = 0
    n_inf_got: int = 0
    n_over: int = 0
    over_share: float = 0.0  # largest error beside its limit, of those beyond it
    over_position: int | None = None  # first one of this share
    above: np.ndarray = field(kw_only=True)  # errors above each threshold
    codes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # of each code

    @classmethod
    def of_nothing(cls, options: Options, *, exact: bool) -> "Figures":
        """Return the figures of no piece, integers if those of the pieces will be."""
        zero = 0 if exact else 0.0
        return cls(zero, zero, above=np.zeros(len(options.thresholds), np.int64))

    def see(self, error: float, position: int) -> None:
        """Take into account the largest error of a piece, not zero, and its first position."""
        if error > self.abs or (error == self.abs and position < (self.position or 0)):
            self.abs, self.position = error, position

    def see_over(self, count: int, share: float, position: int) -> None:
        """Take into account elements beyond the tolerance, and the first of the largest share."""
        self.n_over += count
        is_first = share == self.over_share and position < (self.over_position or 0)
        if share > self.over_share or is_first:
            self.over_share, self.over_position = share, position

    def add_codes(self, codes: np.ndarray) -> None:
        """Take into account the number of errors of each code."""
        short, self.codes = sorted((self.codes, codes), key=len)
        if len(short):
            self.codes = self.codes.copy()
            self.codes[: len(short)] += short

    def merge(self, other: "Figures") -> None:
        """Take into account other pieces of the same arrays."""
        if other.position is not None:
            self.see(other.abs, other.position)
        if other.over_position is not None:
            self.see_over(0, other.over_share, other.over_position)
        self.add(other)

    def add(self, other: "Figures") -> None:
        """Take into account other arrays. The positions are left to the caller."""
        for name in ("abs", "rel", "ulp", "largest"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in ("sums", "ulp_sums", "n_over", *COUNTS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.above = self.above + other.above
        self.add_codes(other.codes)

    def quantiles(self) -> dict[str, float]:
        """Return the smallest error that each share of the errors does not exceed, rounded down.

        It is the first error of a code, with the 5 significant bits that a code keeps.
        """
        if self.n_finite == 0:
            return dict.fromkeys(QUANTILES, 0.0)
        counts = self.codes.cumsum()
        ranks = [math.ceil(share * int(counts[-1])) for share in QUANTILES.values()]
        codes = counts.searchsorted(ranks)
        found = ((codes << CODE_SHIFT).view(np.float64) / CODE_SCALE).tolist()
        return dict(zip(QUANTILES, found, strict=True))


def exact_total(sums: list[float]) -> float:
    """Add sums without rounding but the last one: integers stay integers."""
    return sum(sums) if all(isinstance(value, int) for value in sums) else math.fsum(sums)


_Over: TypeAlias = tuple[int, float, int]
_EXPONENT = 0x7FF << 52  # bits of the exponent of a float64; 0x7FF is twice its bias, plus one
_FEW = 1000
_MAX_THREADS = 8  # of 5 MiB
# The quantiles of a large array are those of a sample: counting every error would take a third of
# the time. The step divides few dimensions of tensors.
_MANY = 1 << 17
_SAMPLING = 13


def measure_arrays(expected: Side, got: Side, options: Options) -> Figures:
    """Compare two arrays of one shape, both of numbers or both of strings, on the host.

    The figures are the same whatever the number of threads.
    """
    if got.dtype != "s":
        types = expected.dtype, got.dtype
        return _measure(expected.read, got.read, math.prod(got.shape), types, options)

    def same(start: int, stop: int) -> np.ndarray:
        return np.equal(expected.read(start, stop), got.read(start, stop), dtype=object)

    # The error of a string that differs is 1: true was expected.
    truth = np.array(True)
    return _measure(
        lambda start, stop: np.broadcast_to(truth, stop - start),
        same,
        math.prod(got.shape),
        ("b8", "b8"),
        options,
    )


def _measure(
    expected: Reader, got: Reader, size: int, types: tuple[str, str], options: Options
) -> Figures:
    todo = list(pieces(size, *types))
    sampling = 1 if size <= _MANY else _SAMPLING
    threads = min(len(todo), usable_cores(), _MAX_THREADS) if len(todo) > 1 else 1

    def measure_some(first: int) -> Figures:
        comparer = _Comparer(types, min(size, piece_length(*types)), options, sampling)
        with np.errstate(all="ignore"):  # signalling NaN, overflows, divisions by zero
            for start, stop in todo[first::threads]:
                comparer.add(start, expected(start, stop), got(start, stop))
        return comparer.figures

    if threads == 1:
        return measure_some(0)
    with ThreadPoolExecutor(threads) as pool:
        figures, *others = pool.map(measure_some, range(threads))
    for other in others:
        figures.merge(other)
    return figures


class _Comparer:
    """Compare pieces of two arrays and add their figures up. One per thread."""

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
            index, mismatched, counts = set_aside(e, g, equal_nan=self._options.equal_nan)
            for name, count in counts.items():
                setattr(self.figures, name, getattr(self.figures, name) + count)
            if self._options.tolerance is not None and mismatched.size:  # no tolerance accepts them
                self.figures.see_over(mismatched.size, math.inf, start + int(mismatched[0]))
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
            position = _position(start, index, int(error.argmax()))
            self.figures.see(int(top) if self._exact else float(top), position)
        over = self._add_errors(error, e, _magnitude(g))
        if over is not None:
            count, share, worst = over
            self.figures.see_over(count, share, _position(start, index, worst))

    def _widen(
        self, e: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        if self._dtype != np.float64:
            return e.astype(self._dtype), g.astype(self._dtype), None
        wide_e, wide_g, out = self._wide[:, : e.size]
        np.copyto(wide_e, e, casting="unsafe")
        np.copyto(wide_g, g, casting="unsafe")
        return wide_e, wide_g, out

    def _add_errors(self, exact: np.ndarray, e: np.ndarray, g: np.ndarray) -> _Over | None:
        """Take into account errors that are not all zero, writing over the magnitudes."""
        error = exact.astype(np.float64, copy=False)
        self.figures.sums.append(_exact_sum(exact) if self._exact else float(np.add.reduce(error)))
        in_ulp, unit = self._add_ulp(error, np.maximum(e, g, out=g))
        over = self._find_over(error, e, in_ulp, unit)
        np.divide(error, e, out=e)
        self.figures.rel = max(self.figures.rel, _or_infinity(np.fmax.reduce(e)))  # without 0/0
        self._count_above(error)
        scaled = error[:: self._sampling] * CODE_SCALE
        codes = np.right_shift(scaled.view(np.int64), CODE_SHIFT)
        self.figures.add_codes(np.bincount(codes) * self._sampling)
        return over

    def _add_ulp(self, error: np.ndarray, larger: np.ndarray) -> tuple[np.ndarray, float]:
        """Divide the errors by the spacing of the larger values, one power of two each.

        The exponent of the spacing is that of the value, less the number of bits of the
        significand. Its opposite is made in the bits, plus one to stay in the range of float64.
        The product of the array and of the number that are returned is the errors in ulp.
        """
        figures = self.figures
        if is_integer(self._got):
            figures.ulp = figures.abs
            figures.ulp_sums.append(figures.sums[-1])
            return error, 1.0
        n_bits, smallest_normal = float_limits(self._got)
        np.maximum(larger, smallest_normal, out=larger)
        bits = self._bits[: error.size]
        np.bitwise_and(larger.view(np.int64), _EXPONENT, out=bits)
        np.subtract(_EXPONENT, bits, out=bits)
        halves = np.multiply(error, bits.view(np.float64), out=larger)
        unit = 2.0 ** (n_bits - 1)
        figures.ulp = max(figures.ulp, _or_infinity(np.maximum.reduce(halves)) * unit)
        figures.ulp_sums.append(_or_infinity(np.add.reduce(halves)) * unit)
        return halves, unit

    def _find_over(
        self, error: np.ndarray, expected: np.ndarray, in_ulp: np.ndarray, unit: float
    ) -> _Over | None:
        """Find the errors beyond the limits: their number, the largest share of a limit, where."""
        tolerance = self._options.tolerance
        if tolerance is None:
            return None
        over, shares = np.zeros(error.size, np.bool_), []
        if (terms := tolerance.absolute_and_relative) is not None:
            atol, rtol = terms
            limit = np.multiply(expected, rtol, out=self._bits[: error.size].view(np.float64))
            np.greater(error, np.add(limit, atol, out=limit), out=over)
            shares.append((error, limit))
        if tolerance.ulp is not None:
            over |= in_ulp > tolerance.ulp / unit
            shares.append((in_ulp, np.broadcast_to(tolerance.ulp / unit, error.size)))
        index = np.flatnonzero(over)
        if index.size == 0:
            return None
        share = np.fmax.reduce([found[index] / limit[index] for found, limit in shares])
        worst = int(share.argmax())
        return index.size, float(share[worst]), int(index[worst])

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


def _position(start: int, index: np.ndarray | None, rank: int) -> int:
    """Return the flat position of an element of a piece, some of which was set aside."""
    return start + (rank if index is None else int(index[rank]))


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


def set_aside(
    expected: np.ndarray, got: np.ndarray, *, equal_nan: bool
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Find where both values are finite, where others do not match; count NaN and infinities.

    The same infinities match, NaN match NaN if `equal_nan`. A complex number with a NaN is a NaN.
    """
    nan_e, nan_g = np.isnan(expected), np.isnan(got)
    inf_e, inf_g = np.isinf(expected) & ~nan_e, np.isinf(got) & ~nan_g
    nan = nan_e ^ nan_g if equal_nan else nan_e | nan_g
    inf = (inf_e | inf_g) & ~(nan_e | nan_g) & (expected != got)
    finite = ~(nan_e | nan_g | inf_e | inf_g)
    masks = zip(NON_FINITE, (nan, inf, nan_e, nan_g, inf_e, inf_g), strict=True)
    counts = {name: int(np.count_nonzero(mask)) for name, mask in masks}
    return np.flatnonzero(finite), np.flatnonzero(nan | inf), counts
