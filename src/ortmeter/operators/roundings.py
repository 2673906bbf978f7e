"""Bounds of rounding errors that operators share.

A sum of products is bounded without knowing its operator: with the magnitudes of its operands, the
operator returns the sum of the magnitudes of its terms, and with ones, their number (Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002, section 3.1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ortmeter.dtypes import float_info, numpy_dtype, unit_roundoff
from ortmeter.operators.late import Array

Change: TypeAlias = Callable[[Array], Array]

_ACCUMULATOR = "float32"
_SCALINGS = 4  # roundings beside those of a sum: alpha, beta, the inverse of a number of terms


@dataclass(frozen=True)
class Run:
    """An operator, what it read, and what it should return.

    ``on`` runs it on changed operands, integers excepted.
    """

    options: Mapping[str, Any]
    inputs: list[Array]
    exact: Array
    dtype: np.dtype[Any]
    on: Callable[[Change], Array | None]


Bound: TypeAlias = Callable[[Run], Array | None]


def once(run: Run) -> Array:
    """Half an ulp: IEEE 754 rounds it correctly."""
    info = float_info(run.dtype)
    _, exponent = np.frexp(run.exact)
    return np.asarray(np.ldexp(0.5, np.maximum(exponent - 1, info.minexp) - info.nmant))


def product(count: Callable[[Run], float]) -> Bound:
    """Make the rule of results without cancellation, from the number of roundings they need."""

    def bound(run: Run) -> Array:
        roundings = count(run)
        return rounded(growth(roundings) * np.abs(run.exact) + roundings * tiny(), run)

    return bound


def rounded(error: Array, run: Run) -> Array:
    """Add the rounding from the accumulator to the type of the result."""
    if run.dtype == numpy_dtype(_ACCUMULATOR):
        return np.asarray(error)
    last = unit_roundoff(run.dtype) * (np.abs(run.exact) + error) + tiny(run.dtype) / 2
    return np.asarray(error + last)


def sum_of_products(run: Run) -> Array | None:
    """Roundings of a sum of products, of the magnitudes of its terms."""
    ones = run.on(np.ones_like)
    return None if ones is None else _sum(run, float(ones.max(initial=1)))


def mean(run: Run) -> Array | None:
    """Roundings of a sum, of the mean magnitude."""
    window = run.options.get("kernel_shape")
    size = sum(array.size for array in run.inputs)
    return _sum(run, math.prod(window) if window else size / run.exact.size)


def _sum(run: Run, terms: float) -> Array | None:
    magnitudes = run.on(np.abs)
    if magnitudes is None:
        return None
    return rounded(growth(terms + _SCALINGS) * magnitudes + terms * tiny(), run)


def growth(count: float) -> float:
    return math.expm1(count * math.log1p(unit_roundoff(_ACCUMULATOR)))


def tiny(dtype: Any = _ACCUMULATOR) -> float:
    return float(float_info(dtype).smallest_subnormal)
