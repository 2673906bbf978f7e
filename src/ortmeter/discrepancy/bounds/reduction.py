"""How far a sum and a mean may be from the exact ones, whatever the order of the additions."""

from typing import Any

import numpy as np

from ortmeter.discrepancy.bounds._checks import check_values
from ortmeter.discrepancy.bounds._growth import divide, error_of_sum, round_result
from ortmeter.discrepancy.summation import BLOCK, exact_sum
from ortmeter.dtypes import DTypeLike

__all__ = ["mean_error_bound", "sum_error_bound"]


def sum_error_bound(
    values: Any,
    *,
    dtype: DTypeLike,
    accumulate: DTypeLike = "float32",
    summation: str = "any",
    block: int = BLOCK,
) -> np.ndarray:
    r"""Bound the error of a sum over the last axis.

    Parameters
    ----------
    values : array of shape (..., n)
        Terms, in the floating-point type that the kernel reads.
    dtype : dtype
        Type of the result, to which the accumulator is rounded once.
    accumulate : dtype
        Type of the accumulator, at least as precise as the values: ``"float64"`` for float64.
    summation : {"any", "naive", "blocked", "pairwise", "kahan", "exact"}
        *any* holds for every order of the additions, parallel ones included. The others are those
        of :func:`~ortmeter.discrepancy.summation.simulated_sum`, *exact* is rounded to the
        accumulator.
    block : int
        Number of partial sums of *blocked*.

    Returns
    -------
    numpy.ndarray
        float64, shape (...), in the unit of the result: an upper bound of ``|computed - exact|``.
        Two orders of the same terms differ by twice this at most. Infinite when nothing is
        guaranteed.

    Raises
    ------
    InvalidArgumentError
        An unknown summation; values that are not finite; a type that is not a real floating-point
        type; an accumulator less precise than the values.

    Notes
    -----
    With *u* the unit roundoff of the accumulator, the bound is a factor times :math:`\sum |x_i|`,
    and additions do not underflow [1]_:

    * *any*, *naive*: :math:`(n - 1) u`, without term of the second order [2]_;
    * *pairwise*, *blocked*: :math:`(1 + u)^h - 1`, where *h* is the largest number of additions
      that a term goes through, :math:`\lceil \log_2 n \rceil` or
      :math:`\lceil n / block \rceil - 1 + \lceil \log_2 block \rceil`;
    * *kahan*: :math:`3u + n u^2` to first order in each term. The classical
      :math:`2u + O(n u^2)` [3]_ hides a constant and bounds the sum with its last correction,
      which the algorithm does not add. Nothing is guaranteed once :math:`n u^2` reaches 1;
    * *exact*: *u* times the sum, instead of the sum of absolute values.

    The result is rounded once more when its type is not the accumulator. Rounding is to nearest.
    The bound does not cover overflow.

    References
    ----------
    .. [1] Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002,
       sections 4.2 and 2.8.
    .. [2] Jeannerod and Rump, *Improved error bounds for inner products in floating-point
       arithmetic*, SIAM Journal on Matrix Analysis and Applications 34(2), 2013.
    .. [3] Higham, the same, section 4.3.

    Examples
    --------
    >>> values = np.ones(1025, np.float32)
    >>> for name in ("any", "pairwise", "kahan"):
    ...     bound = sum_error_bound(values, dtype="float32", summation=name)
    ...     print(name, round(float(bound / (1025 * 2.0**-24)), 2))
    any 1024.0
    pairwise 11.0
    kahan 3.0
    """
    values = check_values(values, accumulate)
    total = exact_sum(values)
    error = error_of_sum(values, total, accumulate, summation, block)
    return round_result(total, error, dtype, accumulate)


def mean_error_bound(
    values: Any,
    *,
    dtype: DTypeLike,
    accumulate: DTypeLike = "float32",
    summation: str = "any",
    block: int = BLOCK,
) -> np.ndarray:
    """Bound the error of a mean over the last axis: that of the sum, and a division.

    Parameters
    ----------
    values : array of shape (..., n)
        Terms, in the floating-point type that the kernel reads, one at least.
    dtype : dtype
        Type of the result.
    accumulate : dtype
        Type of the accumulator, in which the division takes place as well.
    summation : {"any", "naive", "blocked", "pairwise", "kahan", "exact"}
        See :func:`sum_error_bound`.
    block : int
        Number of partial sums of *blocked*.

    Returns
    -------
    numpy.ndarray
        float64, shape (...), in the unit of the result: an upper bound of ``|computed - exact|``.

    Raises
    ------
    InvalidArgumentError
        See :func:`sum_error_bound`; or there is no value.

    Notes
    -----
    Three roundings are added to those of the sum: *n* in the type of the accumulator, its inverse,
    the product. A kernel that divides has fewer.

    Examples
    --------
    >>> bound = mean_error_bound(np.ones(5, np.float32), dtype="float32")
    >>> print(f"{bound / 2.0**-24:.4f}")  # 4 + 3
    7.0000
    """
    values = check_values(values, accumulate, least=1)
    total = exact_sum(values)
    error = error_of_sum(values, total, accumulate, summation, block)
    mean, error = divide(total, error, values.shape[-1], accumulate)
    return round_result(mean, error, dtype, accumulate)
