"""Results of a comparison: discrepancies, tolerances, verdicts."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import pd


@dataclass(frozen=True)
class Tolerance:
    """Limits on the error of every element. Without any limit, values must be equal.

    Each given limit must hold. `atol` and `rtol` form one limit, as in :func:`numpy.allclose`:
    ``|got - expected| <= atol + rtol * |expected|``, where a missing one is 0. Mismatched NaN and
    infinities exceed every limit.

    Parameters
    ----------
    atol : float, optional
        Absolute error accepted at each element, added to that of `rtol`.
    rtol : float, optional
        Error accepted at each element, relative to the expected value.
    ulp : float, optional
        Error accepted at each element, in units in the last place of that element.

    Raises
    ------
    InvalidArgumentError
        A limit is negative, infinite or NaN.

    Notes
    -----
    Errors and limits are computed in float64 for arrays of any type: they are not rounded to
    float16, and differences of integers do not wrap around.

    Examples
    --------
    >>> from ortmeter import max_diff
    >>> for limit in (Tolerance(ulp=1), Tolerance(ulp=1, rtol=0)):
    ...     diff = max_diff([1.0, 2.0], [1.0, 2.0 + 2**-51], tolerance=limit)
    ...     print(limit, limit.check(diff).passed)
    ulp=1 True
    rtol=0, ulp=1 False
    """

    atol: float | None = None
    rtol: float | None = None
    ulp: float | None = None

    def __post_init__(self) -> None:
        for name, limit in dataclasses.asdict(self).items():
            if limit is not None and not 0 <= limit < math.inf:
                raise InvalidArgumentError(
                    f"{name}={limit!r}. Accepted: a finite number >= 0, or None for no limit"
                )

    def __str__(self) -> str:
        given = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return ", ".join(f"{k}={v:g}" for k, v in given.items()) or "equality"

    @property
    def absolute_and_relative(self) -> tuple[float, float] | None:
        """The two terms of the limit on each error; None when only ulp are limited."""
        if self.atol is None and self.rtol is None and self.ulp is not None:
            return None
        return float(self.atol or 0), float(self.rtol or 0)

    def check(self, diff: "Discrepancy") -> "Verdict":
        """Judge a discrepancy.

        Parameters
        ----------
        diff : Discrepancy
            Result of ``max_diff(expected, got, tolerance=...)`` with this tolerance.

        Returns
        -------
        Verdict
            Mismatched NaN or infinities fail, and so do different shapes or structures. Different
            element types or devices do not.

        Raises
        ------
        InvalidArgumentError
            It was measured with another tolerance, or with none.

        Examples
        --------
        >>> from ortmeter import max_diff
        >>> tolerance = Tolerance(atol=1e-6, rtol=1e-3)
        >>> diff = max_diff([0.0, 1000.0], [1e-7, 1000.01], tolerance=tolerance)
        >>> print(tolerance.check(diff))
        close
        """
        if diff.tolerance != self or diff.n_over is None:
            raise InvalidArgumentError(
                f"the discrepancy was measured with {diff.tolerance or 'no tolerance'}. Accepted: "
                f"one of max_diff(expected, got, tolerance=...) with this tolerance, {self}"
            )
        failures = diff.mismatches
        if count := diff.n_over - diff.n_nan - diff.n_inf:
            failures.append(f"{count} of {diff.n} elements beyond {self}, the worst {diff.over}")
        return Verdict(tuple(failures))


EXACT = Tolerance()


@dataclass(frozen=True)
class Verdict:
    """Whether a discrepancy is within a tolerance; usable as a boolean.

    Parameters
    ----------
    failures : tuple of str
        Reasons why it is not, empty if it is.

    Examples
    --------
    >>> from ortmeter import max_diff
    >>> limit = Tolerance(atol=0.1)
    >>> print(limit.check(max_diff(1.0, 1.5, tolerance=limit)))
    not close: 1 of 1 elements beyond atol=0.1, the worst expected 1.0, got 1.5
    """

    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the discrepancy is within the tolerance."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "close" if self.passed else f"not close: {'; '.join(self.failures)}"


@dataclass(frozen=True)
class Difference:
    """A difference other than values, and where it is.

    The kind is ``dtype``, ``device``, ``shape`` or ``structure``. Arrays of different shapes are
    not compared.
    """

    kind: str
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f" of {self.path}" if self.path else ""
        return f"{self.kind}{where}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class Violation:
    """An element beyond a tolerance."""

    path: str
    index: tuple[int, ...]
    expected: Any
    got: Any

    def __str__(self) -> str:
        where = f"{self.path}{self.index or ''}"
        values = f"expected {self.expected!r}, got {self.got!r}"
        return f"{where}: {values}" if where else values


@dataclass(frozen=True)
class Discrepancy:
    """Errors of arrays compared with the expected ones, without a verdict.

    Errors are measured where both values are finite. Other positions match if the values are equal,
    else they are counted in `n_nan` and `n_inf`: read these first. For several arrays (a
    dictionary, a list...), each attribute is a maximum or a sum over all of them.

    Attributes
    ----------
    abs : float
        Largest absolute error, ``|got - expected|``, the modulus of the difference for complex
        numbers, 1 for strings that differ. An exact ``int`` when both sides hold integers or
        booleans. ``inf``, as `rel` and `ulp`, when a difference of finite values overflows.
    rel : float
        Largest relative error, ``|got - expected| / |expected|``. ``inf`` when *got* is not zero
        somewhere *expected* is.
    ulp : float
        Largest error in units in the last place, ``|got - expected| / spacing(max(|got|,
        |expected|))`` where *spacing* is the distance between consecutive numbers of the type of
        *got* at this magnitude, subnormal numbers included; 1 for integers. Equal to `abs` and an
        exact ``int`` when both sides hold integers.
    ulp_at_max : float
        `abs` in units in the last place of `largest`, array by array. It suits reductions: their
        rounding errors scale with the largest terms, while a result close to zero after
        cancellation has a huge `rel` and `ulp`.
    sum : float
        Sum of the absolute errors; an exact ``int`` for integers.
    largest : float
        Largest ``|expected|`` where both values are finite.
    n : int
        Number of elements compared.
    n_finite : int
        Positions where both values are finite, from which errors are computed.
    n_nan : int
        Mismatched NaN: exactly one value is NaN, or the parts of complex numbers that hold NaN do
        not match.
    n_same_nan : int
        NaN on both sides, which match.
    n_inf : int
        Mismatched infinities: no NaN, at least one value is infinite, and they differ.
    histogram : dict of float to int
        Number of absolute errors above each threshold: 0, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100.
    path : str
        Array with the largest error, as the Python expression that follows the name of the object:
        ``['past'].layers[0]``. Empty for a single array.
    argmax : tuple of int or None
        First index of the largest absolute error in this array, None when there is no error.
    worst : tuple of (expected, got) or None
        The two values there.
    dtype_expected, dtype_got : str or None
        Element types of this array, short names such as ``f32``. None without any array.
    shape : tuple of int or None
        Shape of this array.
    differences : tuple of Difference
        Differences other than values, for every array: `kind` (``dtype``, ``device``, ``shape`` or
        ``structure``), `path`, `expected` and `got` (texts).
    tolerance : Tolerance or None
        Tolerance given to the comparison.
    n_over : int or None
        Number of elements beyond `tolerance`, including mismatched NaN and infinities. None without
        a tolerance.
    over : Violation or None
        First element with the largest error relative to its limit: `path`, `index`, `expected` and
        `got`. The first mismatched NaN or infinity if there is one, also without a tolerance.
    """

    abs: int | float
    rel: float
    ulp: int | float
    ulp_at_max: int | float
    sum: int | float
    largest: float
    n: int
    n_finite: int
    n_nan: int
    n_inf: int
    n_same_nan: int
    histogram: dict[float, int]
    path: str = ""
    argmax: tuple[int, ...] | None = None
    worst: tuple[Any, Any] | None = None
    dtype_expected: str | None = None
    dtype_got: str | None = None
    shape: tuple[int, ...] | None = None
    differences: tuple[Difference, ...] = ()
    tolerance: Tolerance | None = None
    n_over: int | None = None
    over: Violation | None = None

    @property
    def mean_abs(self) -> float:
        """Mean absolute error where both values are finite, 0 if there are none."""
        return self.sum / self.n_finite if self.n_finite else 0.0

    @property
    def same_structure(self) -> bool:
        """Whether everything was compared: same keys, lengths and shapes."""
        return not any(d.kind in {"shape", "structure"} for d in self.differences)

    @property
    def mismatches(self) -> list[str]:
        """NaN, infinities, shapes and structures that do not match, in words."""
        shapes = [str(d) for d in self.differences if d.kind in {"shape", "structure"}]
        return self._mismatched() + shapes

    def _mismatched(self) -> list[str]:
        counts = {"NaN": self.n_nan, "inf": self.n_inf}
        return [f"{count} mismatched {what}" for what, count in counts.items() if count]

    def _same(self) -> list[str]:
        infinities = self.n - self.n_finite - self.n_nan - self.n_inf - self.n_same_nan
        counts = {"NaN": self.n_same_nan, "the same infinity": infinities}
        return [
            f"{count} of {self.n} values {'is' if count == 1 else 'are'} {what} on both sides"
            for what, count in counts.items()
            if count
        ]

    def measured(self, name: str) -> float:
        """Return one of the errors for a table, NaN where there was nothing finite to measure."""
        is_measured = self.n_finite or not (self.n or self.differences)
        return getattr(self, name) if is_measured else math.nan

    def ranked(self, name: str) -> float:
        """Return one of the errors to compare it with others, infinite with mismatches."""
        return math.inf if self.mismatches else getattr(self, name)

    def apart(self, got: str, expected: str) -> str:
        """Say how far *got* is from *expected*, the names of the two sides."""
        ulp = f"is {self.ulp_at_max:.3g} ulp"
        if not self.mismatches:
            return f"{got} {ulp} from {expected}"
        told = f"{got} differs from {expected} by {', '.join(self.mismatches)}"
        if self._mismatched() and self.over:
            told += f": it is {self.over.got:.4g} where {expected} is {self.over.expected:.4g}"
        return f"{told}; elsewhere it {ulp} away" if self.n_finite else told

    def __str__(self) -> str:
        parts = []
        if self.abs:
            ulp = "" if isinstance(self.abs, int) else f" ({_digits(self.ulp_at_max)} ulp)"
            place = f"{self.path}{self.argmax or ''}"  # empty for a scalar
            parts.append(
                f"largest error {_digits(self.abs)}{ulp}" + (f" at {place}" if place else "")
            )
        differ = self.histogram[0.0] + self.n_nan + self.n_inf
        values, differs = ("value", "differs") if self.n == 1 else ("values", "differ")
        if differ:
            parts.append(f"{differ} of {self.n} {values} {differs}")
        elif self.n or not self.differences:
            parts.append(f"no difference in {self.n} {values}")
        if mismatched := self._mismatched():
            parts += [*mismatched, f"{'' if self.n == 1 else 'first mismatch '}{self.over}"]
        parts += self._same()
        if self.n_over:
            parts.append(f"{self.n_over} beyond {self.tolerance}")
        return "; ".join([*parts, *map(str, self.differences)])

    def _repr_html_(self) -> str:
        errors = {name: self.measured(name) for name in ("abs", "rel", "ulp", "ulp_at_max", "sum")}
        shown = {name: _digits(value) for name, value in (vars(self) | errors).items()}
        shown["differences"] = ", ".join(map(str, self.differences))
        return str(pd.Series(shown).to_frame().to_html(header=False))


def _digits(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
