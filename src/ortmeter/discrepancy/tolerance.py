"""How close is close enough: limits, and whether a discrepancy is within them."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from ortmeter.errors import InvalidArgumentError


class Judged(Protocol):
    """What a tolerance judges, a :class:`~ortmeter.discrepancy.Discrepancy`."""

    def failures(self, tolerance: "Tolerance") -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Verdict:
    """Whether a discrepancy is within a tolerance. It is true when it is.

    Parameters
    ----------
    passed : bool
        The verdict.
    failures : tuple of str
        Why not, one reason each; empty when it passed.
    tolerance : Tolerance
        What was accepted.

    Examples
    --------
    >>> from ortmeter import max_diff
    >>> print(Tolerance(atol=0.1).check(max_diff(1.0, 1.5)))
    not close: abs 0.5 > 0.1
    """

    passed: bool
    failures: tuple[str, ...]
    tolerance: "Tolerance"

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "close" if self.passed else f"not close: {'; '.join(self.failures)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON.

        Returns
        -------
        dict
            ``passed``, ``failures`` and the limits of the tolerance.
        """
        return dataclasses.asdict(self) | {"failures": list(self.failures)}


@dataclass(frozen=True)
class Tolerance:
    """Limits that every element is within. None is no limit; without any, equality is asked.

    Each limit that is given must hold. `atol` and `rtol` make one limit, that of
    :func:`numpy.allclose`: ``|got - expected| <= atol + rtol * |expected|``, where the one that is
    not given is 0. NaN and infinities that do not match are beyond every limit.

    Parameters
    ----------
    atol : float, optional
        Absolute error accepted at each element, beside `rtol`.
    rtol : float, optional
        Error accepted at each element, relative to the expected value.
    ulp : float, optional
        Error accepted at each element, in units in the last place of this element.
    ulp_at_max : float, optional
        Error accepted at each element, in units in the last place of the largest expected value of
        its array: what to limit after a reduction.

    Raises
    ------
    InvalidArgumentError
        A limit is negative, infinite or NaN.

    Notes
    -----
    The arithmetic is that of float64 whatever the types of the arrays: an error and its limit are
    not rounded to float16, and the difference of two integers does not wrap around.

    Examples
    --------
    >>> from ortmeter import max_diff
    >>> diff = max_diff([1.0, 2.0], [1.0, 2.0 + 2**-51])
    >>> Tolerance(ulp=1).check(diff).passed, Tolerance(atol=0, rtol=0).check(diff).passed
    (True, False)
    >>> Tolerance(atol=1e-3, ulp=1).check(max_diff(1e-6, 9e-4)).passed
    False
    """

    atol: float | None = None
    rtol: float | None = None
    ulp: float | None = None
    ulp_at_max: float | None = None

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
        if self.atol is None and self.rtol is None and (self.ulp, self.ulp_at_max) != (None, None):
            return None
        return float(self.atol or 0), float(self.rtol or 0)

    def check(self, diff: Judged) -> Verdict:
        """Judge a discrepancy, fresh or read from a file.

        Parameters
        ----------
        diff : Discrepancy
            What :func:`~ortmeter.discrepancy.max_diff` returned. When it was measured with this
            tolerance, its count of elements is read. Otherwise its largest errors decide: each of
            them for its own limit, `rel` within its rounding for `rtol`. For `atol` and `rtol`
            together they may not tell.

        Returns
        -------
        Verdict
            A NaN or an infinity that does not match fails, and so does what could not be compared.
            Element types and devices that differ do not.

        Raises
        ------
        InvalidArgumentError
            The largest errors do not decide: measure with ``max_diff(..., tolerance=...)``.

        Examples
        --------
        >>> from ortmeter import max_diff
        >>> tolerance = Tolerance(atol=1e-6, rtol=1e-3)
        >>> diff = max_diff([0.0, 1000.0], [1e-7, 1000.01], tolerance=tolerance)
        >>> print(tolerance.check(diff))
        close
        """
        failures = diff.failures(self)
        return Verdict(not failures, failures, self)


EXACT = Tolerance()
