"""How far two arrays are from each other."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ortmeter._elementwise import PieceErrors, choose_comparison, is_integer, spacing
from ortmeter.arrays import as_numpy
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError, ShapeMismatchError

__all__ = ["Discrepancy", "max_diff"]

_CHUNK = 1 << 12  # elements compared at once: the temporary arrays stay in the first-level cache


@dataclass(frozen=True)
class Discrepancy:
    """How far an array is from the expected one. It holds figures, not a verdict.

    The errors are taken where both values are finite. The other positions match when the values
    are equal, and are counted otherwise: read `n_nan` and `n_inf` before the errors.

    Attributes
    ----------
    abs : float
        Largest absolute error, ``|got - expected|``, the modulus of the difference for complex
        numbers. An exact ``int`` when both arrays hold integers or booleans. ``inf`` when a
        difference of finite values overflows.
    rel : float
        Largest relative error, ``|got - expected| / |expected|``: ``inf`` when *got* is not zero
        somewhere *expected* is.
    ulp : float
        Largest error in units in the last place, ``|got - expected| / spacing(max(|got|,
        |expected|))`` where *spacing* is the distance between consecutive numbers of the type of
        *got* at this magnitude, subnormal numbers included; 1 for integers. Equal to `abs` and an
        exact ``int`` when both arrays hold integers.
    ulp_at_max : float
        `abs` in units in the last place of the largest finite ``|expected|``: what to read after a
        reduction, whose rounding errors follow the largest terms while a result that cancels has a
        huge `rel` and `ulp`.
    sum : float
        Sum of the absolute errors; an exact ``int`` when both arrays hold integers.
    n_finite : int
        Positions where both values are finite, those the errors come from.
    n_nan : int
        Mismatches with a NaN: one of the values is NaN (either of them if not `equal_nan`).
    n_inf : int
        Mismatches with an infinity: no NaN, one of the values is infinite, and they differ.
    argmax : tuple of int or None
        First index of the largest absolute error, None when there is no error.
    dtype_expected, dtype_got : str
        Element types, :func:`~ortmeter.dtypes.short_name`. They may differ.
    shape : tuple of int
        Shape of both arrays.
    """

    abs: float
    rel: float
    ulp: float
    ulp_at_max: float
    sum: float
    n_finite: int
    n_nan: int
    n_inf: int
    argmax: tuple[int, ...] | None
    dtype_expected: str
    dtype_got: str
    shape: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def mean_abs(self) -> float:
        """Mean absolute error over the positions where both values are finite, 0 if none is."""
        return self.sum / self.n_finite if self.n_finite else 0.0

    def __str__(self) -> str:
        parts = [
            f"abs {_format(self.abs)}",
            f"rel {_format(self.rel)}",
            f"{_format(self.ulp)} ulp",
            f"{_format(self.ulp_at_max)} ulp at the largest value",
            f"n={self.n}",
        ]
        if self.argmax:  # a scalar has no index to show
            parts.append(f"at {self.argmax}")
        if self.n_finite < self.n:
            parts.append(f"{self.n_finite} finite")
        if self.n_nan or self.n_inf:
            parts.append(f"mismatches: {self.n_nan} NaN, {self.n_inf} inf")
        if self.dtype_expected != self.dtype_got:
            parts.append(f"expected {self.dtype_expected}, got {self.dtype_got}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON or a row of a table.

        Returns
        -------
        dict
            Every attribute, `n` and `mean_abs`, with lists in place of tuples. None stands for an
            infinite figure, that JSON cannot hold, and for no `argmax`.
        """
        row = {key: list(v) if isinstance(v, tuple) else v for key, v in self._figures().items()}
        infinite = [key for key, v in row.items() if isinstance(v, float) and math.isinf(v)]
        return row | dict.fromkeys(infinite)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{name}</th><td>{_format(value)}</td></tr>"
            for name, value in self._figures().items()
        )
        return f"<table>{rows}</table>"

    def _figures(self) -> dict[str, Any]:
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        return stored | {"n": self.n, "mean_abs": self.mean_abs}


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def max_diff(expected: Any, got: Any, *, equal_nan: bool = True) -> Discrepancy:
    """Measure how far *got* is from *expected*.

    Parameters
    ----------
    expected : array of shape (...) or number
        Reference, preferably float64: a NumPy array, a Python number, a torch tensor, an OrtValue,
        anything with ``__array__`` or ``__dlpack__``.
    got : array of shape (...) or number
        Tested output, of the same kinds. Its element type defines the ulp.
    equal_nan : bool
        Whether a NaN matches a NaN.

    Returns
    -------
    Discrepancy
        Largest and summed errors where both values are finite, counts of NaN and infinities that
        do not match. Element types that differ are reported, not refused.

    Raises
    ------
    ShapeMismatchError
        The shapes differ; nothing is broadcast.
    InvalidArgumentError
        One of the values is not an array of numbers.

    Notes
    -----
    Integers and booleans are compared exactly, whatever their width. Everything else is compared in
    float64 (extended precision where the platform has it when a 64-bit integer meets a float), by
    pieces: the temporary memory does not grow with the arrays.

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
    abs 1, rel 2.17e-19, 1 ulp, 1 ulp at the largest value, n=2, at (1,)
    """
    expected, got = as_numpy(expected), as_numpy(got)
    if expected.shape != got.shape:
        raise ShapeMismatchError(
            f"Expected an array of shape {expected.shape}, got {got.shape}; nothing is broadcast"
        )
    types = _numeric_type(expected), _numeric_type(got)
    compare = choose_comparison(*types, equal_nan=equal_nan)
    exact = is_integer(types[0]) and is_integer(types[1])
    total = _Total(exact=exact)
    flat = [a.reshape(-1) if a.flags.c_contiguous else a.flat for a in (expected, got)]
    with np.errstate(all="ignore"):  # signalling NaN, overflow of a difference, division by zero
        for start in range(0, expected.size, _CHUNK):
            total.add(start, compare(*(a[start : start + _CHUNK] for a in flat)))
    largest_ulp = float(spacing(np.asarray(total.largest), types[1]))
    return Discrepancy(
        abs=total.abs,
        rel=total.rel,
        ulp=total.ulp,
        ulp_at_max=total.abs if exact else total.abs / largest_ulp,
        sum=total.sum,
        n_finite=total.n_finite,
        n_nan=total.n_nan,
        n_inf=total.n_inf,
        argmax=total.argmax(expected.shape),
        dtype_expected=types[0],
        dtype_got=types[1],
        shape=expected.shape,
    )


def _numeric_type(array: np.ndarray) -> str:
    name = short_name(array.dtype)
    if name == "s":
        raise InvalidArgumentError(
            f"An array of {array.dtype} cannot be compared. Accepted: booleans, integers, floats "
            "and complex numbers"
        )
    return name


class _Total:
    """Figures of the pieces seen so far."""

    def __init__(self, *, exact: bool) -> None:
        self.number = int if exact else float
        self.abs = self.ulp = self.sum = self.number(0)
        self.rel = self.largest = 0.0
        self.position: int | None = None
        self.n_finite = self.n_nan = self.n_inf = 0

    def add(self, start: int, piece: PieceErrors) -> None:
        """Take into account the piece that starts at a flat position."""
        self.n_nan += piece.n_nan
        self.n_inf += piece.n_inf
        self.n_finite += piece.error.size
        if piece.error.size == 0:
            return
        worst = int(piece.error.argmax())
        if piece.error[worst] > self.abs:
            self.abs = self.number(piece.error[worst])
            self.position = start + int(worst if piece.index is None else piece.index[worst])
        self.rel = max(self.rel, piece.max_rel())
        self.ulp = max(self.ulp, self.number(piece.ulp.max()))
        self.sum += piece.total()
        self.largest = max(self.largest, float(piece.expected.max()))

    def argmax(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the index of the largest error in arrays of a shape."""
        if self.position is None:
            return None
        return tuple(int(i) for i in np.unravel_index(self.position, shape))
