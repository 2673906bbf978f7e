"""How far a layer normalization may be from the exact one, whatever the order of its additions."""

from typing import Any

import numpy as np

from ortmeter.discrepancy.bounds._checks import check_finite, check_values
from ortmeter.discrepancy.bounds._growth import divide, error_of_sum, round_result, roundings
from ortmeter.discrepancy.summation import BLOCK
from ortmeter.dtypes import DTypeLike, float_info, unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["layer_norm_error_bound"]


def layer_norm_error_bound(
    values: Any,
    *,
    dtype: DTypeLike,
    epsilon: float = 1e-5,
    scale: Any = 1.0,
    bias: Any = 0.0,
    accumulate: DTypeLike = "float32",
) -> np.ndarray:
    r"""Bound the error of a layer normalization over the last axis, element by element.

    Parameters
    ----------
    values : array of shape (..., n)
        Input, in the floating-point type that the kernel reads.
    dtype : dtype
        Type of the result, to which the accumulator is rounded once.
    epsilon : float
        Added to the variance.
    scale, bias : array of shape (n,) or number
        What the normalized values are multiplied by, then added to.
    accumulate : dtype
        Type of everything that is computed before the last rounding.

    Returns
    -------
    numpy.ndarray
        float64, shape (..., n), in the unit of the result: an upper bound of
        ``|computed - exact|``, infinite where the variance is lost in the errors.

    Raises
    ------
    InvalidArgumentError
        See :func:`mean_error_bound`; or *epsilon* is negative.

    Notes
    -----
    It holds for any order of the additions, for both formulas of the variance,
    :math:`\overline{(x - \mu)^2}` and :math:`\overline{x^2} - \mu^2`, and for both ways to apply
    it, :math:`(x - \mu) r` and :math:`x r - \mu r`, where *r* is the inverse of the standard
    deviation, within 4 roundings. With *u* the unit roundoff of the accumulator, *n* terms and to
    first order, the error is at most

    .. math:: \frac{|scale|}{\sigma} \left( \Delta_\mu + \frac{\Delta_v}{2 \sigma^2} |x - \mu|
        + 8 u (|x| + |\mu|) \right) + 8 u |bias|

    where :math:`\sigma^2 = v + \epsilon`, :math:`\Delta_\mu = (n + 2) u \overline{|x|}` and
    :math:`\Delta_v = (n + 7) u (\overline{x^2} + \mu^2) + 2 |\mu| \Delta_\mu`, computed with the
    products of these terms. A large mean beside the standard deviation is what loses digits.
    The error of Welford's update has the same form [1]_ and is checked by tests, not derived. The
    bound does not cover overflow.

    References
    ----------
    .. [1] Chan, Golub and LeVeque, *Algorithms for computing the sample variance: analysis and
       recommendations*, The American Statistician 37(3), 1983.

    Examples
    --------
    >>> centered = np.float32([-1, 1] * 32)
    >>> bound = layer_norm_error_bound(centered, dtype="float32")
    >>> shifted = layer_norm_error_bound(centered + 100, dtype="float32")
    >>> bound.shape, bool((shifted > 1000 * bound).all())
    ((64,), True)
    """
    if epsilon < 0:
        raise InvalidArgumentError(f"epsilon={epsilon!r}. Accepted: zero or more")
    values = check_values(values, accumulate, least=1)
    x = values.astype(np.float64)
    scale, bias = (as_numpy(operand).astype(np.float64) for operand in (scale, bias))
    check_finite(scale, bias)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    total = x.sum(-1)
    error = error_of_sum(values, total, accumulate, "any", BLOCK)
    _, error = divide(total, error, x.shape[-1], accumulate)
    error = error[..., None]
    sigma, loss = _deviation(x, mean, variance, error, epsilon=epsilon, accumulate=accumulate)

    u = unit_roundoff(accumulate)
    centered = np.abs(x - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = error * (1 + loss) + loss * centered
        spread += roundings(8, u) * (1 + loss) * (np.abs(x) + np.abs(mean) + error)
        spread = np.abs(scale) * np.where(np.isfinite(loss), spread / sigma, np.inf)
        spread += roundings(8, u) * np.abs(bias)
        expected = np.where(sigma > 0, (x - mean) / sigma, 0) * scale + bias
    return round_result(expected, spread, dtype, accumulate)


def _deviation(
    x: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    error_of_mean: np.ndarray,
    *,
    epsilon: float,
    accumulate: DTypeLike,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard deviation, and the relative error of its inverse due to the variance."""
    u, tiny = unit_roundoff(accumulate), float(float_info(accumulate).smallest_subnormal)
    squares = np.square(x).mean(-1, keepdims=True)
    growth = (x.shape[-1] - 1) * u
    growth += roundings(6, u) * (1 + growth)
    excess = error_of_mean * (2 * np.abs(mean) + error_of_mean)  # of the square of the mean
    error = growth * (squares + np.square(mean) + excess) + excess + 2 * tiny
    total = variance + epsilon
    error += 2 * u * (total + error) + tiny
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(error < total, error / total, 1.0)
        return np.sqrt(total), np.expm1(-0.5 * np.log1p(-relative))
