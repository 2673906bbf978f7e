"""Measure how far results are from the expected ones."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ortmeter._elementwise import spacing
from ortmeter.discrepancy._arrays import Side, compare_sides
from ortmeter.discrepancy._figures import COUNTS, Figures, Options, total
from ortmeter.discrepancy._structure import Pair, pairs
from ortmeter.discrepancy.result import Difference, Discrepancy
from ortmeter.errors import InvalidArgumentError, ShapeMismatchError

__all__ = ["THRESHOLDS", "max_diff"]

THRESHOLDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""Absolute errors above which elements are counted."""


def max_diff(
    expected: Any,
    got: Any,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    equal_nan: bool = True,
    rtol_floor: float = 0.0,
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
    rtol_floor : float
        Smallest magnitude that an error is relative to. 0 for the relative error of textbooks,
        infinite where zero is expected and not got.
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
        Something is not an array of numbers or strings, or an option is not accepted.

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
    options = _checked(tuple(thresholds), equal_nan, rtol_floor, on_mismatch)
    results = _Total(options)
    for found in pairs(expected, got):
        result = _compare_pair(found, options) if isinstance(found, Pair) else found
        if isinstance(result, _Compared):
            results.add(result)
        elif on_mismatch == "report":
            results.differences.append(result)
        else:
            raise ShapeMismatchError(f"{result}; nothing is broadcast")
    return results.discrepancy()


@functools.lru_cache
def _checked(
    thresholds: tuple[float, ...], equal_nan: bool, rtol_floor: float, on_mismatch: str
) -> Options:
    if on_mismatch not in {"raise", "report"}:
        raise InvalidArgumentError(f"on_mismatch={on_mismatch!r}. Accepted: 'raise', 'report'")
    if not 0 <= rtol_floor < math.inf:
        raise InvalidArgumentError(f"rtol_floor={rtol_floor!r}. Accepted: a finite number >= 0")
    ordered = tuple(sorted({float(threshold) for threshold in thresholds}))
    if not all(0 <= threshold < math.inf for threshold in ordered):
        raise InvalidArgumentError(f"thresholds={thresholds!r}. Accepted: finite numbers >= 0")
    return Options(ordered, equal_nan, float(rtol_floor))


@dataclass(frozen=True)
class _Compared:
    """Two arrays once compared."""

    path: str
    expected: Side
    got: Side
    figures: Figures

    def ulp_at_max(self) -> float:
        """Return the largest error in ulp of the largest value."""
        error = self.figures.abs
        one = 1 if isinstance(error, int) else spacing(self.figures.largest, self.got.dtype)
        return error if one == 1 else error / one

    def severity(self) -> tuple[float, bool]:
        """Order arrays by largest error; without errors, those with mismatches come first."""
        return self.figures.abs, self.figures.n_nan + self.figures.n_inf > 0

    def differences(self) -> list[Difference]:
        """List what differs beside the values."""
        return [
            Difference(kind, self.path, getattr(self.expected, kind), getattr(self.got, kind))
            for kind in ("dtype", "device")
            if getattr(self.expected, kind) != getattr(self.got, kind)
        ]

    def where(self) -> dict[str, Any]:
        """Return the attributes of the result that tell where its worst element is."""
        position, argmax, worst = self.figures.position, None, None
        if position is not None:
            argmax = tuple(int(i) for i in np.unravel_index(position, self.got.shape))
            worst = self.expected.item(position), self.got.item(position)
        return {
            "path": self.path,
            "argmax": argmax,
            "worst": worst,
            "dtype_expected": self.expected.dtype,
            "dtype_got": self.got.dtype,
            "shape": self.got.shape,
            "device_expected": self.expected.device,
            "device_got": self.got.device,
        }


def _compare_pair(pair: Pair, options: Options) -> _Compared | Difference:
    """Compare two arrays, or tell why they cannot be."""
    try:
        expected, got = Side.of(pair.expected), Side.of(pair.got)
        if expected.shape != got.shape:
            return Difference("shape", pair.path, str(expected.shape), str(got.shape))
        if (expected.dtype == "s") != (got.dtype == "s"):
            return Difference("structure", pair.path, _kind(expected), _kind(got))
        return _Compared(pair.path, expected, got, compare_sides(expected, got, options))
    except InvalidArgumentError as cause:
        if not pair.path:
            raise
        raise InvalidArgumentError(f"{pair.path}: {cause}") from cause


def _kind(side: Side) -> str:
    return "strings" if side.dtype == "s" else f"numbers ({side.dtype})"


_NOWHERE = {"path": ""} | dict.fromkeys(
    ("argmax", "worst", "dtype_expected", "dtype_got", "shape", "device_expected", "device_got")
)


class _Total:
    """Figures of the arrays compared so far, which are not kept, but for where the worst is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._figures: Figures | None = None
        self._severity = (-1.0, False)
        self._where: dict[str, Any] = _NOWHERE
        self._ulp_at_max: float = 0
        self._n_arrays = 0
        self.differences: list[Difference] = []

    def add(self, compared: _Compared) -> None:
        """Take into account two arrays."""
        self._n_arrays += 1
        self._ulp_at_max = max(self._ulp_at_max, compared.ulp_at_max())
        self.differences += compared.differences()
        if compared.severity() > self._severity:
            self._severity, self._where = compared.severity(), compared.where()
        if self._figures is None:
            self._figures = compared.figures
        else:
            self._figures.add(compared.figures)

    def discrepancy(self) -> Discrepancy:
        """Return the result."""
        figures = self._figures or Figures.of_nothing(self._options, exact=True)
        return Discrepancy(
            abs=figures.abs,
            rel=figures.rel,
            ulp=figures.ulp,
            ulp_at_max=self._ulp_at_max,
            sum=total(figures.sums),
            sum_ulp=total(figures.ulp_sums),
            largest=figures.largest,
            **{name: getattr(figures, name) for name in COUNTS},
            histogram=dict(zip(self._options.thresholds, figures.above.tolist(), strict=True)),
            quantiles=figures.quantiles(),
            **self._where,
            n_arrays=self._n_arrays,
            differences=tuple(self.differences),
            rtol_floor=self._options.rtol_floor,
        )
