"""Measure how far results are from the expected ones, and fail when that is too far."""

import functools
import heapq
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ortmeter.discrepancy.arrays import Side, is_on_device, pieces, spacing, wide_dtype
from ortmeter.discrepancy.device import compare_on_device
from ortmeter.discrepancy.measure import (
    COUNTS,
    Figures,
    Options,
    distance,
    exact_total,
    measure_arrays,
    set_aside,
)
from ortmeter.discrepancy.result import Difference, Discrepancy, Violation
from ortmeter.discrepancy.structure import Pair, pairs
from ortmeter.discrepancy.tolerance import EXACT, Tolerance
from ortmeter.errors import InvalidArgumentError, ShapeMismatchError

THRESHOLDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""Absolute errors above which elements are counted."""


def max_diff(
    expected: Any,
    got: Any,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    equal_nan: bool = True,
    tolerance: Tolerance | None = None,
    on_mismatch: Literal["raise", "report"] = "raise",
) -> Discrepancy:
    """Measure how far *got* is from *expected*.

    Parameters
    ----------
    expected : array of shape (...), number, string, or nested mapping, list, tuple, dataclass
        Reference, preferably float64. An array is a NumPy array, a torch tensor on any device, an
        OrtValue, a TensorProto, anything with ``__array__`` or ``__dlpack__``. The caches of
        transformers are structures as well.
    got : array of shape (...), number, string, or nested mapping, list, tuple, dataclass
        Tested output, of the same structure: a list and a tuple match. The element type of each
        array defines its ulp.
    thresholds : sequence of float
        Absolute errors above which the elements are counted.
    equal_nan : bool
        Whether a NaN matches a NaN.
    tolerance : Tolerance, optional
        What is accepted: the elements beyond it are counted, for its
        :meth:`~ortmeter.discrepancy.Tolerance.check` to read.
    on_mismatch : {"raise", "report"}
        What to do where the structures or shapes differ. ``report`` lists these places in the
        `differences` of the result, and compares the rest.

    Returns
    -------
    Discrepancy
        Largest and summed errors where both values are finite, counts of NaN and infinities that
        do not match, and where the worst element is. Element types and devices that differ are
        reported, not refused.

    Raises
    ------
    ShapeMismatchError
        The structures or shapes differ, with the path of the place; nothing is broadcast.
    InvalidArgumentError
        Something is not an array of numbers or strings, some of its elements are masked, or an
        option is not accepted.

    Notes
    -----
    Integers and booleans are compared exactly, whatever their width; strings are equal or not.
    Everything else is compared in float64, or in the extended precision of the platform when a
    64-bit integer meets a float.

    The arrays are read once, by pieces, in every core: the temporary memory stays below 64 MiB
    whatever their size. Two tensors of one CUDA device are reduced there; when one of them is
    elsewhere, or for 64-bit integers and complex numbers, tensors of a device are copied to the
    host by pieces.

    The ulp is the one of Goldberg [1]_, extended to a difference of any size: consecutive numbers
    are 1 ulp apart, half an ulp when the larger is a power of two. It may be a fraction when
    *expected* is more precise than *got*.

    References
    ----------
    .. [1] Goldberg, *What every computer scientist should know about floating-point arithmetic*,
       ACM Computing Surveys 23(1), 1991.

    Examples
    --------
    >>> diff = max_diff(np.float32([1, 2, 4]), np.float32([1, 2, 4.000001]))
    >>> diff.ulp, diff.argmax
    (2.0, (2,))
    >>> print(max_diff(np.array([1, 2**62 + 1]), np.array([1, 2**62])))
    abs 1, rel 2.17e-19, 1 ulp, 1 ulp at the largest value, n=2, 1 above 0.1, at (1,)
    >>> max_diff({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}).path
    "['a'][1]"
    """
    total = _Total(_checked(tuple(thresholds), equal_nan, tolerance, on_mismatch))
    for found in pairs(expected, got):
        difference = total.compare(found) if isinstance(found, Pair) else found
        if difference is not None:
            if on_mismatch == "raise":
                raise ShapeMismatchError(f"{difference}; nothing is broadcast")
            total.differences.append(difference)
    return total.discrepancy()


@functools.lru_cache
def _checked(
    thresholds: tuple[float, ...], equal_nan: bool, tolerance: Tolerance | None, on_mismatch: str
) -> Options:
    if on_mismatch not in {"raise", "report"}:
        raise InvalidArgumentError(f"on_mismatch={on_mismatch!r}. Accepted: 'raise', 'report'")
    if not isinstance(tolerance, Tolerance | None):
        raise InvalidArgumentError(f"tolerance={tolerance!r}. Accepted: a Tolerance, or None")
    ordered = tuple(sorted({float(threshold) for threshold in thresholds}))
    if not all(0 <= threshold < math.inf for threshold in ordered):
        raise InvalidArgumentError(f"thresholds={thresholds!r}. Accepted: finite numbers >= 0")
    return Options(ordered, equal_nan, tolerance)


class _Total:
    """Figures of the arrays compared so far, which are not kept, but for where the worst is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._figures: Figures | None = None
        self._severity = (-1.0, False)
        self._where: dict[str, Any] = _NOWHERE
        self._over: Violation | None = None
        self._share = 0.0
        self._ulp_at_max: float = 0
        self._n_arrays = 0
        self.differences: list[Difference] = []

    def compare(self, pair: Pair) -> Difference | None:
        """Compare two arrays, or tell why they cannot be."""
        try:
            expected, got = Side.of(pair.expected), Side.of(pair.got)
            if expected.shape != got.shape:
                return Difference("shape", pair.path, str(expected.shape), str(got.shape))
            if (expected.dtype == "s") != (got.dtype == "s"):
                return Difference("structure", pair.path, _kind(expected), _kind(got))
            self._add(pair.path, expected, got, _measure(expected, got, self._options))
        except InvalidArgumentError as cause:
            if not pair.path:
                raise
            raise InvalidArgumentError(f"{pair.path}: {cause}") from cause
        return None

    def _add(self, path: str, expected: Side, got: Side, figures: Figures) -> None:
        self._n_arrays += 1
        unit = 1 if isinstance(figures.abs, int) else spacing(figures.largest, got.dtype)
        in_ulp = figures.abs if unit == 1 else figures.abs / unit
        self._ulp_at_max = max(self._ulp_at_max, in_ulp)
        for kind in ("dtype", "device"):
            kinds = getattr(expected, kind), getattr(got, kind)
            if kinds[0] != kinds[1]:
                self.differences.append(Difference(kind, path, *kinds))
        # Without errors, the arrays with mismatches come first.
        severity = figures.abs, figures.n_nan + figures.n_inf > 0
        if severity > self._severity:
            self._severity, self._where = severity, _where(path, expected, got, figures.position)
        position = figures.over_position
        if position is not None and self._options.tolerance and figures.over_share > self._share:
            values = expected.item(position), got.item(position)
            self._over = Violation(path, got.index(position), got.dtype, *values)
            self._share = figures.over_share
        if self._figures is None:
            self._figures = figures
        else:
            self._figures.add(figures)

    def discrepancy(self) -> Discrepancy:
        """Return the result."""
        figures = self._figures or Figures.of_nothing(self._options, exact=True)
        return Discrepancy(
            abs=figures.abs,
            rel=figures.rel,
            ulp=figures.ulp,
            ulp_at_max=self._ulp_at_max,
            sum=exact_total(figures.sums),
            sum_ulp=exact_total(figures.ulp_sums),
            largest=figures.largest,
            **{name: getattr(figures, name) for name in COUNTS},
            histogram=dict(zip(self._options.thresholds, figures.above.tolist(), strict=True)),
            quantiles=figures.quantiles(),
            **self._where,
            n_arrays=self._n_arrays,
            differences=tuple(self.differences),
            tolerance=self._options.tolerance,
            n_over=None if self._options.tolerance is None else figures.n_over,
            over=self._over,
        )


def _measure(expected: Side, got: Side, options: Options) -> Figures:
    """Measure where the arrays are: on their device when both are on it, else on the host."""
    types, arrays = (expected.dtype, got.dtype), (expected.array, got.array)
    on_device = all(map(is_on_device, arrays)) and arrays[0].device == arrays[1].device
    if on_device and wide_dtype(*types) == np.float64:
        return compare_on_device(*arrays, types, options)
    return measure_arrays(expected, got, options)


def _kind(side: Side) -> str:
    return "strings" if side.dtype == "s" else f"numbers ({side.dtype})"


_NOWHERE = {"path": ""} | dict.fromkeys(
    ("argmax", "worst", "dtype_expected", "dtype_got", "shape", "device_expected", "device_got")
)


def _where(path: str, expected: Side, got: Side, position: int | None) -> dict[str, Any]:
    """Return the attributes of the result that tell where its worst element is."""
    return {
        "path": path,
        "argmax": None if position is None else got.index(position),
        "worst": None if position is None else (expected.item(position), got.item(position)),
        "dtype_expected": expected.dtype,
        "dtype_got": got.dtype,
        "shape": got.shape,
        "device_expected": expected.device,
        "device_got": got.device,
    }


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
        What is accepted, equality by default.
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
    diff = max_diff(expected, got, equal_nan=equal_nan, tolerance=tolerance, on_mismatch="report")
    verdict = tolerance.check(diff)
    if not verdict:
        found = (
            row
            for pair in pairs(expected, got)
            if isinstance(pair, Pair)
            for row in _worst_of_pair(pair, n_worst, equal_nan=equal_nan)
        )
        rows = [row for _, row in heapq.nlargest(n_worst, found, key=operator.itemgetter(0))]
        raise AssertionError("\n".join([str(verdict), str(diff), *_table(rows)]))
    return diff


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    rows = [("where", "expected", "got", "error"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def _worst_of_pair(
    pair: Pair, count: int, *, equal_nan: bool
) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Find the largest errors of two arrays, infinite where they do not match, with their row."""
    expected, got = Side.of(pair.expected), Side.of(pair.got)
    if expected.shape != got.shape or (expected.dtype == "s") != (got.dtype == "s"):
        return
    for start, stop in pieces(math.prod(got.shape), expected.dtype, got.dtype):
        errors = _errors(expected, got, start, stop, equal_nan=equal_nan)
        for i in np.argsort(-errors, kind="stable")[:count]:
            if (error := float(errors[i])) > 0:
                position = start + int(i)
                where = f"{pair.path}{got.index(position) or ''}"
                values = (repr(side.item(position)) for side in (expected, got))
                yield error, (where, *values, f"{error:.3g}")


def _errors(expected: Side, got: Side, start: int, stop: int, *, equal_nan: bool) -> np.ndarray:
    e, g = expected.read(start, stop), got.read(start, stop)
    if got.dtype == "s":
        return np.not_equal(e, g).astype(np.float64)
    with np.errstate(all="ignore"):  # signalling NaN, overflows
        wide = wide_dtype(expected.dtype, got.dtype)
        e, g = e.astype(wide), g.astype(wide)
        error: np.ndarray = distance(e, g).astype(np.float64)
        if wide.kind in "fc":
            index, mismatched, _ = set_aside(e, g, equal_nan=equal_nan)
            finite, error = error, np.zeros_like(error)
            error[index], error[mismatched] = finite[index], math.inf
    return error
