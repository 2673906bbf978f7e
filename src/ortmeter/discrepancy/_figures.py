"""Figures of the pieces of two arrays, which add up in any order."""

import math
from dataclasses import dataclass, field, fields

import numpy as np

from ortmeter.discrepancy.elementwise import NonFinite
from ortmeter.discrepancy.tolerance import Tolerance

__all__ = ["CODE_SCALE", "CODE_SHIFT", "COUNTS", "QUANTILES", "Figures", "Options", "total"]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

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

    def count_non_finite(self, found: NonFinite) -> None:
        """Take into account the NaN and infinities of a piece."""
        for name in _COUNTS_OF_NON_FINITE:
            setattr(self, name, getattr(self, name) + getattr(found, name))

    def add_codes(self, codes: np.ndarray) -> None:
        """Take into account the number of errors of each code."""
        self.codes = _add(self.codes, codes)

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


_COUNTS_OF_NON_FINITE = tuple(f.name for f in fields(NonFinite) if f.name.startswith("n_"))
COUNTS = ("n", "n_finite", *_COUNTS_OF_NON_FINITE)


def total(sums: list[float]) -> float:
    """Add sums without rounding but the last one: integers stay integers."""
    return sum(sums) if all(isinstance(value, int) for value in sums) else math.fsum(sums)


def _add(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Add counts; those that the shorter array does not have are zero."""
    short, long = sorted((first, second), key=len)
    if not len(short):
        return long
    added = long.copy()
    added[: len(short)] += short
    return added
