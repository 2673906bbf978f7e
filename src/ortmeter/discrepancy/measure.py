"""Figures of two arrays: errors of their pieces, in every core, in a memory that does not grow.

A piece is compared in a few passes over buffers that stay in the caches. Figures of pieces add up
in any order.
"""

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortmeter.discrepancy.arrays import Arithmetic, Side
from ortmeter.discrepancy.result import Tolerance
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.cpu import usable_cores

#: Absolute errors above which elements are counted.
THRESHOLDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)

_EXPONENT = 0x7FF << 52  # bits of the exponent of a float64; 0x7FF is twice its bias, plus one
_MAX_THREADS = 8  # of 10 MiB at most


@dataclass
class Figures:
    """Figures of a piece, of an array or of several. Those of integers are exact integers."""

    ulp: float
    sum: float
    # Largest error and minus its position: the maximum of equal errors is the first one.
    worst: tuple[float, int]
    # The same, of errors beside their limit, if beyond it; infinite for a mismatch, and only there.
    over: tuple[float, int] = (0.0, 0)
    rel: float = 0.0
    largest: float = 0.0  # finite magnitude of expected
    counts: Counter[str | float] = field(default_factory=Counter)  # and errors above thresholds

    @classmethod
    def of_nothing(cls, *, exact: bool) -> "Figures":
        """Return the figures of no element, integers if those of the elements would be."""
        zero = 0 if exact else 0.0
        return cls(zero, zero, (zero, 0))


def add_up(parts: Sequence[Figures]) -> Figures:
    """Put together figures of pieces or of arrays, one at least; the sums are rounded once."""
    sums = [part.sum for part in parts]
    return Figures(
        ulp=max(part.ulp for part in parts),
        sum=sum(sums) if all(isinstance(value, int) for value in sums) else math.fsum(sums),
        worst=max(part.worst for part in parts),
        over=max(part.over for part in parts),
        rel=max(part.rel for part in parts),
        largest=max(part.largest for part in parts),
        counts=sum((part.counts for part in parts), Counter()),
    )


def measure_arrays(
    expected: Side, got: Side, kind: Arithmetic, tolerance: Tolerance | None
) -> Figures:
    """Compare two arrays of one shape, both of numbers or both of strings, on the host.

    The figures are the same whatever the number of threads.
    """
    readers = expected.read, got.read
    if got.dtype == "s":  # two strings are equal, 1, or not, 0: 1 is expected
        readers = (
            lambda start, stop: np.ones(stop - start, np.bool_),
            lambda *piece: np.equal(expected.read(*piece), got.read(*piece), dtype=object),
        )
    todo = kind.pieces(math.prod(got.shape))

    def measure_some(first: int, threads: int) -> list[Figures]:
        comparer = _Comparer(kind, todo[0][1], tolerance)
        with np.errstate(all="ignore"):  # signalling NaN, overflows, divisions by zero
            return [
                comparer.compare(piece[0], *(read(*piece) for read in readers))
                for piece in todo[first::threads]
            ]

    if not todo:
        return Figures.of_nothing(exact=kind.is_exact)
    if len(todo) == 1:
        return measure_some(0, 1)[0]
    threads = min(len(todo), usable_cores(), _MAX_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        shares = pool.map(measure_some, range(threads), itertools.repeat(threads))
        return add_up(list(itertools.chain.from_iterable(shares)))


class _Comparer:
    """Compare pieces of two arrays, one after the other. One per thread."""

    def __init__(self, kind: Arithmetic, length: int, tolerance: Tolerance | None) -> None:
        self._kind, self._tolerance = kind, tolerance
        self._wide = np.empty((2 if kind.wide == np.float64 else 0, length))
        self._ulp = 0.0  # the largest of the pieces until now

    def compare(self, start: int, expected: np.ndarray, got: np.ndarray) -> Figures:
        """Return the figures of the piece that starts at a flat position.

        Its ulp is the largest of the pieces until now.
        """
        figures = Figures.of_nothing(exact=self._kind.is_exact)
        figures.counts["n"] = got.size
        e, g = self._widen(expected, got)
        error, index = distance(e, g, g if self._kind.wide == np.float64 else None), None
        worst = int(error.argmax())  # a NaN if there is one
        if error.dtype.kind == "f" and not math.isfinite(error[worst]):
            e, g = self._widen(expected, got)  # the errors were written over got
            finite, nan, inf, same = non_finite(e, g, np)
            index, mismatched = np.flatnonzero(finite), np.flatnonzero(nan | inf)
            counts = {"n_nan": nan, "n_inf": inf, "n_same_nan": same}
            figures.counts.update({name: int(mask.sum()) for name, mask in counts.items()})
            if mismatched.size:  # no tolerance accepts them
                figures.counts["n_over"] = mismatched.size
                figures.over = math.inf, -start - int(mismatched[0])
            expected, got, e, g = expected[index], got[index], e[index], g[index]
            error = distance(e, g)
            worst = int(error.argmax()) if error.size else 0
        figures.counts["n_finite"] = error.size
        if error.size == 0:
            return figures
        if e.dtype.kind == "c" and not np.isfinite(np.abs([e, g])).all():
            raise InvalidArgumentError(
                "The modulus of a complex number overflows float64. Accepted: smaller numbers"
            )
        e = _magnitude(e)  # may be written over
        figures.largest = float(np.maximum.reduce(e))
        if error[worst] == 0:
            return figures

        def position(rank: int) -> int:
            return start + (rank if index is None else int(index[rank]))

        number, add = (int, _exact_sum) if self._kind.is_exact else (float, np.add.reduce)
        figures.ulp, figures.sum = number(error[worst]), number(add(error))
        figures.worst = figures.ulp, -position(worst)
        error = error.astype(np.float64, copy=False)
        self._add_errors(figures, error, e, (expected, got), position)
        return figures

    def _widen(self, e: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._kind.wide != np.float64:
            return e.astype(self._kind.wide), g.astype(self._kind.wide)
        wide_e, wide_g = self._wide[:, : e.size]
        wide_e[:], wide_g[:] = e, g
        return wide_e, wide_g

    def _add_errors(
        self,
        figures: Figures,
        error: np.ndarray,
        e: np.ndarray,
        sides: Sequence[np.ndarray],
        position: Callable[[int], int],
    ) -> None:
        """Read errors that are not all zero, writing over the magnitudes."""
        for threshold in THRESHOLDS:  # from the smallest
            if figures.worst[0] <= threshold:
                break
            figures.counts[threshold] = int(np.count_nonzero(error > threshold))
        limits: list[tuple[np.ndarray, np.ndarray]] = []
        tolerance = self._tolerance
        if tolerance and (terms := tolerance.absolute_and_relative) is not None:
            limit = e * terms[1]
            limits.append((error, np.add(limit, terms[0], out=limit)))
        relative = np.divide(error, e, out=e)
        figures.rel = float(np.fmax.reduce(relative))  # without 0/0
        in_ulp, unit = self._add_ulp(figures, error, relative, sides)
        if tolerance and tolerance.ulp is not None:
            limits.append((in_ulp, np.broadcast_to(tolerance.ulp / unit, error.size)))
        over = [value > limit for value, limit in limits]
        index = np.flatnonzero(np.any(over, axis=0)) if over else np.empty(0, np.int64)
        if index.size:
            share = np.fmax.reduce([value[index] / limit[index] for value, limit in limits])
            worst = int(share.argmax())
            figures.counts["n_over"] += index.size
            most = min(float(share[worst]), sys.float_info.max)
            figures.over = max(figures.over, (most, -position(int(index[worst]))))

    def _add_ulp(
        self, figures: Figures, error: np.ndarray, relative: np.ndarray, sides: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, float]:
        """Divide the errors by the spacing of the larger values, one power of two each.

        The exponent of the spacing is that of the value, less the number of bits of the
        significand. Its opposite is made in the bits, plus one to stay in the range of float64.
        The product of the array and of the number that are returned is the errors in ulp. Those
        that cannot be the largest are left out when they are many and nobody asked for each: the
        spacing of a value is above this value over four units.
        """
        if self._kind.n_bits is None:
            return error, 1.0
        unit = 2.0 ** (self._kind.n_bits - 1)
        likely = relative >= self._ulp / (4 * unit)
        all_asked = self._tolerance is not None and self._tolerance.ulp is not None
        if not all_asked and np.count_nonzero(likely) < error.size // 8:
            error, sides = error[likely], [side[likely] for side in sides]
        larger, other = (_magnitude(side.astype(self._kind.wide)) for side in sides)
        np.maximum(larger, other, out=larger)
        np.maximum(larger, self._kind.smallest_normal, out=larger)
        bits = larger.view(np.int64)
        np.bitwise_and(bits, _EXPONENT, out=bits)
        np.subtract(_EXPONENT, bits, out=bits)
        halves = np.multiply(error, larger, out=larger)
        figures.ulp = self._ulp = max(self._ulp, float(halves.max(initial=0)) * unit)
        return halves, unit


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


def non_finite(expected: Any, got: Any, library: Any) -> tuple[Any, ...]:
    """Mask what is finite on both sides, NaN and inf that do not match, NaN that do.

    The library is NumPy or torch. The same infinities match, and NaN match NaN. A complex number
    with a NaN is a NaN, and matches when each of its parts does.
    """
    nan_e, nan_g = library.isnan(expected), library.isnan(got)
    inf_e, inf_g = library.isinf(expected) & ~nan_e, library.isinf(got) & ~nan_g
    either, nan = nan_e | nan_g, nan_e ^ nan_g
    if library is np and np.iscomplexobj(expected):
        nan = either & ~(_same(expected.real, got.real) & _same(expected.imag, got.imag))
    inf = (inf_e | inf_g) & ~either & (expected != got)
    return ~(either | inf_e | inf_g), nan, inf, either & ~nan


def _same(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    same: np.ndarray = (expected == got) | (np.isnan(expected) & np.isnan(got))
    return same
