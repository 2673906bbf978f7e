"""Growth of rounding errors in a sum, and what is done with the sum."""

import math

import numpy as np

from ortmeter.discrepancy.summation import SUMMATIONS
from ortmeter.dtypes import DTypeLike, float_info, short_name, unit_roundoff
from ortmeter.errors import InvalidArgumentError

__all__ = ["divide", "error_of_sum", "round_result", "roundings"]


def error_of_sum(
    values: np.ndarray, total: np.ndarray, accumulate: DTypeLike, summation: str, block: int
) -> np.ndarray:
    """Bound the error of a sum in its accumulator."""
    u = unit_roundoff(accumulate)
    if summation == "exact":
        return np.asarray(u * np.abs(total))
    magnitude = np.abs(values.astype(np.float64)).sum(-1)
    growth = _growth(values.shape[-1], u, summation, block)
    # The growth may be infinite: zeros keep an exact sum.
    error = np.zeros(magnitude.shape)
    np.multiply(growth, magnitude, out=error, where=magnitude > 0)
    return error


def _growth(n: int, u: float, summation: str, block: int) -> float:
    """Return the error of a sum divided by the sum of the absolute values of its terms."""
    if summation not in {"any", *SUMMATIONS} or block < 1:
        raise InvalidArgumentError(
            f"summation={summation!r}, block={block!r}. Accepted: "
            f"{', '.join(map(repr, ('any', *SUMMATIONS)))}, a block of 1 or more"
        )
    if n < 2:  # noqa: PLR2004 - one term is its own sum
        return 0.0
    if summation == "kahan":
        return _growth_of_kahan(n, u)
    threads = {"pairwise": n, "blocked": min(block, n)}.get(summation, 1)
    height = math.ceil(n / threads) - 1 + math.ceil(math.log2(threads))
    return min((n - 1) * u, roundings(height, u))


def _growth_of_kahan(n: int, u: float) -> float:
    """Follow the algorithm step by step: y = x + e, s = s' + y, e = (s' - s) + y.

    The correction e is exact, hence |e| <= u |s|, when |s'| >= |y|. Otherwise its error is at most
    u (1 + 5u + 2u²) |y|, and zero unless |y| <= 2 |s|, so that |e| <= k |s|: then |e'| <= k |s'|
    < k |y| makes that error at most r |x|. The rounding of y adds u (|x| + |e'|). Summed over the
    steps, with S the largest |s| and A the sum of the |x|, these errors are at most
    (u + r + u r) A + (n - 1) u² S, and the last addition adds u |s|.
    """
    k = u * (3 + 10 * u + 4 * u * u)
    if u + (n - 1) * u * u >= 1 or (1 + u) * k >= 1:
        return math.inf
    r = u * (1 + 5 * u + 2 * u * u) * (1 + u) / (1 - (1 + u) * k)
    of_terms, of_sums = u + r + u * r, (n - 1) * u * u
    largest = (1 + of_terms) / (1 - u - of_sums)
    return (of_terms + of_sums * largest + u) / (1 - u)


def divide(
    total: np.ndarray, error: np.ndarray, n: int, accumulate: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return a mean, and the bound of its error in the accumulator."""
    rounding = roundings(3, unit_roundoff(accumulate))
    mean, tiny = total / n, float(float_info(accumulate).smallest_subnormal)
    return mean, rounding * np.abs(mean) + (1 + rounding) * error / n + tiny


def round_result(
    expected: np.ndarray, error: np.ndarray, dtype: DTypeLike, accumulate: DTypeLike
) -> np.ndarray:
    """Add the last rounding, from the accumulator to the type of the result."""
    if short_name(dtype) == short_name(accumulate):
        return np.asarray(error)
    tiny = float(float_info(dtype).smallest_subnormal)
    return np.asarray(error + unit_roundoff(dtype) * (np.abs(expected) + error) + tiny / 2)


def roundings(count: int, u: float) -> float:
    """Return (1 + u)**count - 1; the cap avoids an overflow, long after digits are lost."""
    return math.expm1(min(count * math.log1p(u), 100.0))
