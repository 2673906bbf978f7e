"""Whether a discrepancy is close enough: the metric is measured once, judged as often as needed."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ortmeter.discrepancy._worst import worst_elements
from ortmeter.discrepancy.compare import max_diff
from ortmeter.discrepancy.result import Discrepancy
from ortmeter.errors import InvalidArgumentError

__all__ = ["Tolerance", "Verdict", "assert_close"]


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
    """Limits on the figures of a discrepancy. None is no limit; without any, equality is asked.

    The limits are alternatives, as in ``numpy.allclose`` where an error is small beside `atol` or
    beside the value: it is enough that one of them holds, but it must hold for all the elements.
    To let `atol` take over from `rtol` element by element, near zero, measure with
    ``rtol_floor=atol / rtol``, as :func:`assert_close` does: `rel` is then at most `rtol` if and
    only if each error is at most ``max(atol, rtol * |expected|)``.

    Parameters
    ----------
    atol : float, optional
        Largest `abs` accepted.
    rtol : float, optional
        Largest `rel` accepted.
    ulp : float, optional
        Largest `ulp` accepted.
    ulp_at_max : float, optional
        Largest `ulp_at_max` accepted: what to limit after a reduction.

    Raises
    ------
    InvalidArgumentError
        A limit is negative or NaN.

    Examples
    --------
    >>> diff = max_diff([1.0, 2.0], [1.0, 2.0 + 2**-51])
    >>> Tolerance(ulp=1).check(diff).passed, Tolerance(atol=0, rtol=0).check(diff).passed
    (True, False)
    """

    atol: float | None = None
    rtol: float | None = None
    ulp: float | None = None
    ulp_at_max: float | None = None

    def __post_init__(self) -> None:
        for name, limit in dataclasses.asdict(self).items():
            if limit is not None and not limit >= 0:
                raise InvalidArgumentError(f"{name}={limit!r}. Accepted: a number >= 0, or None")

    def check(self, diff: Discrepancy) -> Verdict:
        """Judge a discrepancy, fresh or read from a file.

        Parameters
        ----------
        diff : Discrepancy
            What :func:`~ortmeter.discrepancy.max_diff` returned.

        Returns
        -------
        Verdict
            A NaN or an infinity that does not match fails, and so does what could not be compared.
            Element types and devices that differ do not.
        """
        failures = [
            f"{count} mismatched {what}"
            for what, count in (("NaN", diff.n_nan), ("inf", diff.n_inf))
            if count
        ]
        failures += [str(d) for d in diff.differences if d.kind in {"shape", "structure"}]
        limits = {
            "abs": self.atol,
            "rel": self.rtol,
            "ulp": self.ulp,
            "ulp_at_max": self.ulp_at_max,
        }
        asked = {name: limit for name, limit in limits.items() if limit is not None} or {"abs": 0}
        over = [
            f"{name} {getattr(diff, name):.6g} > {limit:g}"
            for name, limit in asked.items()
            if getattr(diff, name) > limit
        ]
        if len(over) == len(asked):
            failures.append(" and ".join(over))
        return Verdict(not failures, tuple(failures), self)

    def rtol_floor(self) -> float:
        """Return the magnitude below which `atol` accepts more than `rtol`.

        Returns
        -------
        float
            The ``rtol_floor`` to measure with, 0 unless both limits are positive and finite.
        """
        floor = self.atol / self.rtol if self.atol and self.rtol else 0.0
        return floor if math.isfinite(floor) else 0.0


EXACT = Tolerance()


def assert_close(
    expected: Any,
    got: Any,
    tolerance: Tolerance = EXACT,
    *,
    equal_nan: bool = True,
    n_worst: int = 5,
) -> Discrepancy:
    """Fail unless *got* is within a tolerance of *expected*, for tests.

    Parameters
    ----------
    expected, got : array or structure
        What :func:`~ortmeter.discrepancy.max_diff` compares.
    tolerance : Tolerance
        What is accepted, equality by default. With `atol` and `rtol`, each error may be at most
        ``max(atol, rtol * |expected|)``.
    equal_nan : bool
        Whether a NaN matches a NaN.
    n_worst : int
        Number of elements that the message shows.

    Returns
    -------
    Discrepancy
        What was measured.

    Raises
    ------
    AssertionError
        The results are not close, or have other shapes or another structure. The message shows the
        worst elements side by side.
    InvalidArgumentError
        Something is not an array of numbers or strings.

    Examples
    --------
    >>> assert_close([1.0, 2.0], [1.0, 2.5], Tolerance(atol=1)).abs
    0.5
    """
    floor = tolerance.rtol_floor()
    diff = max_diff(expected, got, equal_nan=equal_nan, rtol_floor=floor, on_mismatch="report")
    verdict = tolerance.check(diff)
    if not verdict:
        worst = worst_elements(expected, got, n_worst, equal_nan=equal_nan)
        rows = [(e.where, repr(e.expected), repr(e.got), f"{e.error:.3g}") for e in worst]
        raise AssertionError("\n".join([str(verdict), str(diff), *_table(rows)]))
    return diff


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align the worst elements in columns."""
    if not rows:
        return []
    rows = [("where", "expected", "got", "error"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
