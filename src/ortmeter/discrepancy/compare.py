"""Measure how far results are from expected ones, and fail beyond a tolerance."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ortmeter.discrepancy.arrays import Side, arithmetic, is_on_device
from ortmeter.discrepancy.device import compare_on_device
from ortmeter.discrepancy.measure import THRESHOLDS, Figures, add_up, measure_arrays
from ortmeter.discrepancy.result import EXACT, Difference, Discrepancy, Tolerance, Violation
from ortmeter.discrepancy.structure import Pair, pairs
from ortmeter.errors import InvalidArgumentError, ShapeMismatchError

_COUNTS = ("n", "n_finite", "n_nan", "n_inf", "n_same_nan")


def max_diff(
    expected: Any,
    got: Any,
    *,
    tolerance: Tolerance | None = None,
    on_mismatch: Literal["raise", "report"] = "raise",
) -> Discrepancy:
    """Measure how far *got* is from *expected*.

    Parameters
    ----------
    expected : array of shape (...), number, string, or nested mapping, list, tuple, dataclass
        Reference, preferably float64. An array is a NumPy array, a torch tensor on any device, an
        OrtValue, a TensorProto, or any object with ``__array__`` or ``__dlpack__``. Caches of
        transformers are accepted as structures.
    got : array of shape (...), number, string, or nested mapping, list, tuple, dataclass
        Tested output, of the same structure; a list matches a tuple. The element type of each array
        defines its ulp.
    tolerance : Tolerance, optional
        Tolerance; elements beyond it are counted, for its
        :meth:`~ortmeter.discrepancy.Tolerance.check`.
    on_mismatch : {"raise", "report"}
        What to do if structures or shapes differ: raise, or list these places in `differences` and
        compare the rest.

    Returns
    -------
    Discrepancy
        Largest and summed errors where both values are finite, counts of mismatched NaN and
        infinities, and the position of the worst element. A NaN matches a NaN; in complex numbers,
        the same part must hold it, and the other part be equal. Different element types and devices
        are reported but accepted.

    Raises
    ------
    ShapeMismatchError
        Structures or shapes differ; the message gives the path. Nothing is broadcast.
    InvalidArgumentError
        A value is not an array of numbers or strings, or is a masked array, or an option is not
        accepted.

    Notes
    -----
    Integers and booleans of any width are compared exactly; strings are equal or not. Other types
    are compared in float64, or in the extended precision of the platform for a 64-bit integer and
    a float.

    All cores read the arrays once, piece by piece: temporary memory stays below 64 MiB. Two tensors
    on the same CUDA device are compared there. Otherwise, and for 64-bit integers and complex
    numbers, tensors are copied to the host piece by piece.

    The ulp follows Goldberg [1]_, extended to differences of any size: consecutive numbers are 1
    ulp apart, half an ulp if the larger is a power of two. It may be fractional if *expected* is
    more precise than *got*.

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
    largest error 1 at (1,); 1 of 2 values differ
    >>> max_diff({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}).path
    "['a'][1]"
    """
    if not isinstance(tolerance, Tolerance | None):
        raise InvalidArgumentError(f"tolerance={tolerance!r}. Accepted: a Tolerance, or None")
    compared: list[_Compared] = []
    differences: list[Difference] = []
    for place in pairs(expected, got):
        result = _compare_pair(place, tolerance) if isinstance(place, Pair) else place
        if isinstance(result, _Compared):
            compared.append(result)
            differences += result.differences
        elif on_mismatch == "raise":
            raise ShapeMismatchError(f"{result}; nothing is broadcast")
        else:
            differences.append(result)
    return _put_together(compared, differences, tolerance)


class _Compared(NamedTuple):
    """Figures of two arrays, which are not kept, and what tells where the worst elements are."""

    figures: Figures
    ulp_at_max: float
    where: dict[str, Any]
    over: Violation | None
    differences: list[Difference]

    def severity(self) -> tuple[float, bool]:
        """Without errors, the arrays with mismatches come first."""
        counts = self.figures.counts
        return self.figures.worst[0], counts["n_nan"] + counts["n_inf"] > 0


def _compare_pair(pair: Pair, tolerance: Tolerance | None) -> _Compared | Difference:
    """Compare two arrays, or tell why they cannot be."""
    try:
        expected, got = Side.of(pair.expected), Side.of(pair.got)
        if expected.shape != got.shape:
            return Difference("shape", pair.path, str(expected.shape), str(got.shape))
        if (expected.dtype == "s") != (got.dtype == "s"):
            return Difference("structure", pair.path, _kind(expected), _kind(got))
        kind = arithmetic(expected.dtype, got.dtype)
        arrays = expected.array, got.array
        same_device = expected.device == got.device and all(map(is_on_device, arrays))
        if same_device and kind.wide == np.float64:
            figures = compare_on_device(*arrays, kind, tolerance)
        else:
            figures = measure_arrays(expected, got, kind, tolerance)
    except InvalidArgumentError as cause:
        if not pair.path:
            raise
        raise InvalidArgumentError(f"{pair.path}: {cause}") from cause

    def values(position: int) -> tuple[Any, Any]:
        return expected.item(position), got.item(position)

    error, at = figures.worst[0], -figures.worst[1]
    share, over_at = figures.over[0], -figures.over[1]
    unit = 1 if isinstance(error, int) else kind.spacing(figures.largest)
    over = Violation(pair.path, got.index(over_at), *values(over_at)) if share > 0 else None
    where = {
        "path": pair.path,
        "argmax": got.index(at) if error else None,
        "worst": values(at) if error else None,
        "dtype_expected": expected.dtype,
        "dtype_got": got.dtype,
        "shape": got.shape,
    }
    sides = ("dtype", expected.dtype, got.dtype), ("device", expected.device, got.device)
    differences = [Difference(name, pair.path, e, g) for name, e, g in sides if e != g]
    at_max = error if unit == 1 else error / unit
    return _Compared(figures, at_max, where, over, differences)


def _kind(side: Side) -> str:
    return "strings" if side.dtype == "s" else f"numbers ({side.dtype})"


def _put_together(
    compared: Sequence[_Compared], differences: Sequence[Difference], tolerance: Tolerance | None
) -> Discrepancy:
    parts = [arrays.figures for arrays in compared] or [Figures.of_nothing(exact=True)]
    figures = parts[0] if len(parts) == 1 else add_up(parts)
    worst = max(compared, key=_Compared.severity, default=None)
    over = max(compared, key=lambda arrays: arrays.figures.over[0], default=None)
    counts: dict[str, Any] = {name: figures.counts[name] for name in _COUNTS}
    return Discrepancy(
        abs=figures.worst[0],
        rel=figures.rel,
        ulp=figures.ulp,
        ulp_at_max=max((arrays.ulp_at_max for arrays in compared), default=0),
        sum=figures.sum,
        largest=figures.largest,
        **counts,
        histogram={threshold: figures.counts[threshold] for threshold in THRESHOLDS},
        **(worst.where if worst else {}),
        differences=tuple(differences),
        tolerance=tolerance,
        n_over=figures.counts["n_over"] if tolerance else None,
        over=over and over.over,
    )


def assert_close(expected: Any, got: Any, tolerance: Tolerance = EXACT) -> Discrepancy:
    """Assert that *got* is within a tolerance of *expected*.

    Parameters
    ----------
    expected, got : array or structure
        As in :func:`~ortmeter.discrepancy.max_diff`.
    tolerance : Tolerance
        Tolerance, by default equality.

    Returns
    -------
    Discrepancy
        Measured discrepancy.

    Raises
    ------
    AssertionError
        Results are not close, or their shapes or structures differ. The message has the worst
        element of both.
    InvalidArgumentError
        A value is not an array of numbers or strings.

    Examples
    --------
    >>> assert_close([1.0, 2.0], [1.0, 2.5], Tolerance(atol=1)).abs
    0.5
    """
    diff = max_diff(expected, got, tolerance=tolerance, on_mismatch="report")
    verdict = tolerance.check(diff)
    if verdict:
        return diff
    raise AssertionError(f"{verdict}\n{diff}")
