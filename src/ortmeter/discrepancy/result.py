"""What a comparison found: figures, and why they are beyond a tolerance."""

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ortmeter.discrepancy.tolerance import Tolerance
from ortmeter.errors import InvalidArgumentError

_DERIVED = ("mean_abs", "mean_ulp", "same_dtype", "same_device", "same_structure")


@dataclass(frozen=True)
class Difference:
    """Something that is not the same on the two sides, beside the values.

    Parameters
    ----------
    kind : str
        ``dtype``, ``device``, ``shape`` (arrays that were not compared) or ``structure``.
    path : str
        Where, the Python expression that follows the name of the object: ``['past'].layers[0]``.
    expected, got : str
        What is on each side.

    Examples
    --------
    >>> print(Difference("dtype", "['logits']", "f32", "f16"))
    dtype of ['logits']: expected f32, got f16
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
    """An element that is beyond a tolerance.

    Parameters
    ----------
    path : str
        Which array, see :class:`Discrepancy`.
    index : tuple of int
        Where in this array.
    dtype : str
        Element type of *got*, :func:`~ortmeter.dtypes.short_name`.
    expected, got : bool, int, float, complex or str
        The two values.

    Examples
    --------
    >>> print(Violation("['logits']", (0, 2), "f32", 1.0, 1.5))
    ['logits'](0, 2): expected 1.0, got 1.5
    """

    path: str
    index: tuple[int, ...]
    dtype: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        where = f"{self.path}{self.index or ''}"
        values = f"expected {self.expected!r}, got {self.got!r}"
        return f"{where}: {values}" if where else values


@dataclass(frozen=True)
class Discrepancy:
    """How far arrays are from the expected ones. It holds figures, not a verdict.

    The errors are taken where both values are finite. The other positions match when the values
    are equal, and are counted otherwise: read `n_nan` and `n_inf` before the errors. Of several
    arrays (a dictionary, a list...), the figures are the largest ones, or sums.

    Attributes
    ----------
    abs : float
        Largest absolute error, ``|got - expected|``, the modulus of the difference for complex
        numbers, 1 for strings that differ. An exact ``int`` when both sides hold integers or
        booleans. ``inf`` when a difference of finite values overflows.
    rel : float
        Largest relative error, ``|got - expected| / |expected|``. ``inf`` when *got* is not zero
        somewhere *expected* is.
    ulp : float
        Largest error in units in the last place, ``|got - expected| / spacing(max(|got|,
        |expected|))`` where *spacing* is the distance between consecutive numbers of the type of
        *got* at this magnitude, subnormal numbers included; 1 for integers. Equal to `abs` and an
        exact ``int`` when both sides hold integers.
    ulp_at_max : float
        `abs` in units in the last place of `largest`, taken array by array: what to
        read after a reduction, whose rounding errors follow the largest terms while a result that
        cancels has a huge `rel` and `ulp`.
    sum, sum_ulp : float
        Sums of the absolute errors and of the errors in ulp; exact ``int`` for integers.
    largest : float
        Largest ``|expected|`` where both values are finite.
    n : int
        Number of elements compared.
    n_finite : int
        Positions where both values are finite, those the errors come from.
    n_nan : int
        Mismatches with a NaN: one of the values is NaN (either of them if not `equal_nan`).
    n_inf : int
        Mismatches with an infinity: no NaN, one of the values is infinite, and they differ.
    n_nan_expected, n_nan_got, n_inf_expected, n_inf_got : int
        NaN and infinities of each side, those that match included.
    histogram : dict of float to int
        Number of absolute errors above each threshold.
    quantiles : dict of str to float
        ``p50``, ``p90``, ``p99`` of the absolute errors, zeros included: the smallest error that
        this share of the errors does not exceed, rounded down to 5 significant bits, hence at most
        1/16 too low. Of an array of more than 131072 elements, one error in 13 is looked at.
    path : str
        Which of the arrays has the largest error: the Python expression that follows the name of
        the object, ``['past'].layers[0]``. Empty for a single array.
    argmax : tuple of int or None
        First index of the largest absolute error in this array, None when there is no error.
    worst : tuple of (expected, got) or None
        The two values there.
    dtype_expected, dtype_got : str or None
        Element types of this array, :func:`~ortmeter.dtypes.short_name`. None without any array.
    shape : tuple of int or None
        Shape of this array.
    device_expected, device_got : str or None
        ``cpu``, ``cuda``, ``cuda:1``.
    n_arrays : int
        Number of pairs of arrays that were compared.
    differences : tuple of Difference
        Everything that is not the same beside the values, for every array.
    tolerance : Tolerance or None
        The one it was measured with.
    n_over : int or None
        Number of elements beyond the limits of `tolerance`, mismatched NaN and infinities
        included; `ulp_at_max`, whose unit is known once the array was read, is left to
        :meth:`~ortmeter.discrepancy.Tolerance.check`. None without a tolerance.
    over : Violation or None
        The one of these elements whose error is the largest beside its limit, the first of equals.
    """

    abs: float
    rel: float
    ulp: float
    ulp_at_max: float
    sum: float
    sum_ulp: float
    largest: float
    n: int
    n_finite: int
    n_nan: int
    n_inf: int
    n_nan_expected: int
    n_nan_got: int
    n_inf_expected: int
    n_inf_got: int
    histogram: dict[float, int]
    quantiles: dict[str, float]
    path: str
    argmax: tuple[int, ...] | None
    worst: tuple[Any, Any] | None
    dtype_expected: str | None
    dtype_got: str | None
    shape: tuple[int, ...] | None
    device_expected: str | None
    device_got: str | None
    n_arrays: int = 1
    differences: tuple[Difference, ...] = ()
    tolerance: Tolerance | None = None
    n_over: int | None = None
    over: Violation | None = None

    @property
    def mean_abs(self) -> float:
        """Mean absolute error over the positions where both values are finite, 0 if none is."""
        return self.sum / self.n_finite if self.n_finite else 0.0

    @property
    def mean_ulp(self) -> float:
        """Mean error in units in the last place, over the same positions."""
        return self.sum_ulp / self.n_finite if self.n_finite else 0.0

    @property
    def same_dtype(self) -> bool:
        """Whether every array has the expected element type."""
        return not self._differs("dtype")

    @property
    def same_device(self) -> bool:
        """Whether every array is on the same device on both sides."""
        return not self._differs("device")

    @property
    def same_structure(self) -> bool:
        """Whether everything was compared: same keys, lengths and shapes."""
        return not self._differs("shape", "structure")

    def _differs(self, *kinds: str) -> bool:
        return any(difference.kind in kinds for difference in self.differences)

    def failures(self, tolerance: Tolerance) -> tuple[str, ...]:
        """Say why this is beyond a tolerance, one reason each, see :meth:`Tolerance.check`."""
        failures = [
            f"{count} mismatched {what}"
            for what, count in (("NaN", self.n_nan), ("inf", self.n_inf))
            if count
        ]
        failures += [str(d) for d in self.differences if d.kind in {"shape", "structure"}]
        if self.tolerance != tolerance or self.n_over is None:
            failures += self._failures_of_largest(tolerance, is_known=bool(failures))
        elif count := self.n_over - self.n_nan - self.n_inf:
            failures.append(
                f"{count} of {self.n} elements beyond {tolerance}, the worst {self.over}"
            )
        limit = tolerance.ulp_at_max
        if limit is not None and self.ulp_at_max > limit:
            failures.append(f"ulp_at_max {self.ulp_at_max:.6g} > {limit:g}")
        return tuple(failures)

    def _failures_of_largest(self, tolerance: Tolerance, *, is_known: bool) -> list[str]:
        """Judge the largest errors, unless the answer is known and they cannot tell."""
        failures = []
        if tolerance.ulp is not None and self.ulp > tolerance.ulp:
            failures.append(f"ulp {self.ulp:.6g} > {tolerance.ulp:g}")
        if tolerance.absolute_and_relative is None:
            return failures
        atol, rtol = tolerance.absolute_and_relative
        if self.abs <= atol or self.rel <= rtol:
            return failures
        if rtol == 0:
            failures.append(f"abs {self.abs:.6g} > {atol:g}")
        elif atol == 0:
            failures.append(f"rel {self.rel:.6g} > {rtol:g}")
        elif self.abs > (limit := atol + rtol * _magnitude(self.worst)):
            failures.append(f"abs {self.abs:.6g} > {limit:.6g} ({tolerance})")
        elif not failures and not is_known:
            raise InvalidArgumentError(
                f"the largest errors (abs {self.abs:.6g}, rel {self.rel:.6g}) do not tell whether "
                f"every element is within {tolerance}. Accepted: a discrepancy measured by "
                "max_diff(expected, got, tolerance=...) with this tolerance"
            )
        return failures

    def __str__(self) -> str:
        parts = [
            f"abs {_format(self.abs)}",
            f"rel {_format(self.rel)}",
            f"{_format(self.ulp)} ulp",
            f"{_format(self.ulp_at_max)} ulp at the largest value",
            f"n={self.n}",
        ]
        above = [(count, threshold) for threshold, count in self.histogram.items() if count]
        parts += [f"{count} above {threshold:g}" for count, threshold in above[-1:]]
        if self.path or self.argmax:  # a scalar has no index to show
            parts.append(f"at {self.path}{self.argmax or ''}")
        if self.n_finite < self.n:
            parts.append(f"{self.n_finite} finite")
        if self.n_nan or self.n_inf:
            parts.append(f"mismatches: {self.n_nan} NaN, {self.n_inf} inf")
        if self.n_over:
            parts.append(f"{self.n_over} beyond {self.tolerance}")
        return ", ".join([*parts, *map(str, self.differences)])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON or a row of a table.

        Returns
        -------
        dict
            Every attribute and property. Tuples become lists, keys strings, and what JSON does not
            hold a string that Python reads: ``inf``, ``nan``, ``(1+2j)``.
        """
        return {key: _to_json(value) for key, value in self._figures().items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Discrepancy":
        """Read what :meth:`to_dict` wrote.

        Parameters
        ----------
        row : mapping
            With all the keys of the attributes; those of a tolerance may be missing.

        Returns
        -------
        Discrepancy
            Equal to the one that was written, but for a NaN in `worst`, which no NaN equals.

        Raises
        ------
        InvalidArgumentError
            An attribute is missing.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        row = {"tolerance": None, "n_over": None, "over": None, **row}
        if missing := [name for name in names if name not in row]:
            raise InvalidArgumentError(
                f"{', '.join(missing)} missing from {sorted(row)}. Expected: what to_dict returns"
            )
        values: dict[str, Any] = {name: row[name] for name in names}
        for name in ("abs", "rel", "ulp", "ulp_at_max", "sum", "sum_ulp", "largest"):
            values[name] = _number(row[name])
        values["histogram"] = {float(key): count for key, count in row["histogram"].items()}
        values["quantiles"] = {key: _number(value) for key, value in row["quantiles"].items()}
        for name in ("argmax", "shape"):
            values[name] = None if row[name] is None else tuple(row[name])
        if row["worst"] is not None:
            values["worst"] = _elements(row["worst"], row["dtype_got"])
        if row["tolerance"] is not None:
            values["tolerance"] = Tolerance(**row["tolerance"])
        if (over := row["over"]) is not None:
            pair = _elements((over["expected"], over["got"]), over["dtype"])
            values["over"] = Violation(over["path"], tuple(over["index"]), over["dtype"], *pair)
        values["differences"] = tuple(Difference(**found) for found in row["differences"])
        return cls(**values)

    def _figures(self) -> dict[str, Any]:
        names = (*(field.name for field in dataclasses.fields(self)), *_DERIVED)
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{name}</th><td>{html.escape(_cell(value))}</td></tr>"
            for name, value in self._figures().items()
        )
        return f"<table>{rows}</table>"


def _magnitude(worst: tuple[Any, Any] | None) -> float:
    """Return the magnitude of the expected value where the largest error is; 1 for a string."""
    expected = 0 if worst is None else worst[0]
    return 1.0 if isinstance(expected, str) else float(abs(expected))


def _format(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_cell(key)}: {_cell(v)}" for key, v in value.items())
    if isinstance(value, tuple) and any(isinstance(v, float | Difference) for v in value):
        return ", ".join(map(_cell, value))
    return _format(value)


def _to_json(value: Any) -> Any:
    if isinstance(value, Difference | Violation | Tolerance):
        return _to_json(dataclasses.asdict(value))
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(key): _to_json(v) for key, v in value.items()}
    is_json = not isinstance(value, float | complex) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return value if is_json else str(value)


def _elements(pair: Iterable[Any], dtype: str) -> tuple[Any, ...]:
    """Read two elements, which are numbers unless their type is that of strings."""
    return tuple(pair) if dtype == "s" else tuple(map(_number, pair))


def _number(value: Any) -> Any:
    """Read a number that JSON may have held as a string."""
    if not isinstance(value, str):
        return value
    return complex(value) if value.endswith(("j", "j)")) else float(value)
