"""Bounds of the rounding errors of matrix products and layer normalizations.

References are cited by the names of their authors:

* Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002;
* Jeannerod and Rump, *Improved error bounds for inner products in floating-point arithmetic*, SIAM
  Journal on Matrix Analysis and Applications 34(2), 2013;
* Fasi, Higham, Mikaitis and Pranesh, *Numerical behavior of NVIDIA tensor cores*, PeerJ Computer
  Science 7:e330, 2021;
* Chan, Golub and LeVeque, *Algorithms for computing the sample variance: analysis and
  recommendations*, The American Statistician 37(3), 1983.
"""

import math
from typing import Any

import numpy as np

from ortmeter.dtypes import DTypeLike, float_info, short_name, unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["layer_norm_error_bound", "matmul_error_bound"]

_TF32_ROUNDOFF = 2.0**-11


def matmul_error_bound(
    a: Any,
    b: Any,
    *,
    dtype: DTypeLike,
    tf32: bool = False,
) -> np.ndarray:
    r"""Bound the error of a matrix product in finite precision, element by element.

    Parameters
    ----------
    a : array of shape (..., M, K)
        Left operand, in the floating-point type that the kernel reads.
    b : array of shape (..., K, N)
        Right operand, of the same type. Shapes combine as in :func:`numpy.matmul`.
    dtype : dtype
        Type of the result, to which the accumulator is rounded once. The accumulator is float64
        for operands of float64, and float32 for others.
    tf32 : bool
        Whether the kernel may convert float32 operands to TF32; without effect on other types.

    Returns
    -------
    numpy.ndarray
        float64, shape (..., M, N), in the unit of the result: an upper bound of
        ``|computed - a @ b|``, where ``a @ b`` is the exact product of the operands as given.

    Raises
    ------
    InvalidArgumentError
        The operands have different types, values that are not finite, or shapes that cannot be
        multiplied; a type is not a real floating-point one.

    Notes
    -----
    To first order the bound is

    .. math:: (2 u_{in} + K u_{acc}) \, |A||B| + u_{out} \, |AB|

    where :math:`u_{out}` and :math:`u_{acc}` are the unit roundoffs of `dtype` and of the
    accumulator, and :math:`u_{in}` is zero, or that of TF32, :math:`2^{-11}`. It holds for any
    order of the additions (Higham, section 3.1), and includes the products of these terms and
    gradual underflow.

    * Round to nearest (float64, float32 without TF32): the factor :math:`K u_{acc}` holds for any
      *K* (Jeannerod and Rump), while the classical :math:`K u / (1 - K u)` needs :math:`K u < 1`.
    * Operands for tensor cores (TF32, 16 bits and less): these truncate where others round (Fasi),
      so :math:`u_{acc}` and :math:`u_{in}` are doubled, and the factor becomes
      :math:`(1 + 2 u_{acc})^K - 1`, which holds for any *K* too.

    If the factor exceeds 1, no digit is guaranteed. The bound does not cover overflow, partial
    sums stored in a type narrower than the accumulator, or float8 kernels that keep fewer bits than
    they declare.

    Examples
    --------
    >>> a, b = np.ones((2, 8), np.float32), np.ones((8, 3), np.float32)
    >>> bound = matmul_error_bound(a, b, dtype="float32")
    >>> print(bound.shape, f"{bound[0, 0] / (8 * 2.0**-24):.4f}")  # K u |A||B| + u |AB| = 9 u 8
    (2, 3) 9.0000
    """
    a, b = as_numpy(a), as_numpy(b)
    if a.dtype != b.dtype:
        raise InvalidArgumentError(
            f"The operands have types {a.dtype} and {b.dtype}: one type is expected"
        )
    _check_finite(a, b)
    accumulate = _accumulator(a.dtype)
    converted = tf32 and short_name(a.dtype) == "f32"
    tensor_cores = converted or unit_roundoff(a.dtype) > unit_roundoff("float32")
    a, b = a.astype(np.float64), b.astype(np.float64)
    try:
        magnitude, product = np.matmul(np.abs(a), np.abs(b)), np.abs(np.matmul(a, b))
    except ValueError as cause:
        raise InvalidArgumentError(
            f"Shapes {a.shape} and {b.shape} cannot be multiplied. Accepted: (..., M, K) and "
            "(..., K, N)"
        ) from cause

    depth = a.shape[-1]
    u_in = 2 * _TF32_ROUNDOFF if converted else 0.0
    u_acc, u_out = unit_roundoff(accumulate), unit_roundoff(dtype)
    growth = _roundings(depth, 2 * u_acc) if tensor_cores else depth * u_acc
    factor = u_in * (2 + u_in) + (1 + u_in) ** 2 * growth
    error = factor * magnitude + depth * _tiny(accumulate)
    error += u_out * (product + error) + _tiny(dtype) / 2
    return np.asarray(error)


def layer_norm_error_bound(
    values: Any,
    *,
    dtype: DTypeLike,
    epsilon: float = 1e-5,
    scale: Any = 1.0,
    bias: Any = 0.0,
) -> np.ndarray:
    r"""Bound the error of a layer normalization over the last axis, element by element.

    Parameters
    ----------
    values : array of shape (..., n)
        Input, in the floating-point type that the kernel reads.
    dtype : dtype
        Type of the result, to which the accumulator is rounded once. All that precedes is computed
        in float64 for values of float64, and in float32 for others.
    epsilon : float
        Added to the variance.
    scale, bias : array of shape (n,) or number
        What the normalized values are multiplied by, then added to.

    Returns
    -------
    numpy.ndarray
        float64, shape (..., n), in the unit of the result: an upper bound of
        ``|computed - exact|``, infinite where the variance is lost in the errors.

    Raises
    ------
    InvalidArgumentError
        The values are not finite.

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
    :math:`\Delta_v = (n + 7) u (\overline{x^2} + \mu^2) + 2 |\mu| \Delta_\mu + 2 u \epsilon`,
    computed with the products of these terms. A mean that is large compared with the standard
    deviation loses digits. The error of Welford's update has the same form (Chan) and is checked by
    tests, not derived. The bound does not cover overflow.

    Examples
    --------
    >>> centered = np.float32([-1, 1] * 32)
    >>> bound = layer_norm_error_bound(centered, dtype="float32")
    >>> shifted = layer_norm_error_bound(centered + 100, dtype="float32")
    >>> bound.shape, bool((shifted > 1000 * bound).all())
    ((64,), True)
    """
    values = as_numpy(values)
    float_info(values.dtype)  # refuses what is not a floating-point type
    if values.ndim == 0:
        raise InvalidArgumentError(f"{values} has no axis to sum. Accepted: shape (..., n)")
    _check_finite(values)
    accumulate = _accumulator(values.dtype)
    x, n = values.astype(np.float64), values.shape[-1]
    scale, bias = (as_numpy(operand).astype(np.float64) for operand in (scale, bias))
    _check_finite(scale, bias)
    mean, mean_error = (array[..., None] for array in _mean(values, accumulate))
    u, tiny = unit_roundoff(accumulate), _tiny(accumulate)

    growth = (n - 1) * u
    growth += _roundings(6, u) * (1 + growth)
    of_square = mean_error * (2 * np.abs(mean) + mean_error)
    squares = np.square(x).mean(-1, keepdims=True) + np.square(mean) + of_square
    variance = x.var(-1, keepdims=True) + epsilon
    error = growth * squares + of_square + 2 * tiny
    error += 2 * u * (variance + error) + tiny
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(error < variance, error / variance, 1.0)
        sigma = np.sqrt(variance)
        loss = np.expm1(-0.5 * np.log1p(-relative))  # the relative error of its inverse

        spread = mean_error * (1 + loss) + loss * np.abs(x - mean)
        spread += _roundings(8, u) * (1 + loss) * (np.abs(x) + np.abs(mean) + mean_error)
        spread = np.abs(scale) * np.where(np.isfinite(loss), spread / sigma, np.inf)
        spread += _roundings(8, u) * np.abs(bias)
        expected = np.where(sigma > 0, (x - mean) / sigma, 0) * scale + bias
    if short_name(dtype) == short_name(accumulate):
        return np.asarray(spread)
    # The last rounding, from the accumulator to the type of the result.
    rounding = unit_roundoff(dtype) * (np.abs(expected) + spread)
    return np.asarray(spread + rounding + _tiny(dtype) / 2)


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Kernels add numbers of 32 bits and less in float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _mean(values: np.ndarray, accumulate: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Return a mean, and the bound of its error in the accumulator."""
    x, n = values.astype(np.float64), values.shape[-1]
    total = np.array([math.fsum(row) for row in x.reshape(-1, n).tolist()]).reshape(x.shape[:-1])
    rounding = _roundings(3, unit_roundoff(accumulate))
    # Of a sum in any order (Jeannerod): n - 1 roundings of the sum of the absolute values.
    error = (n - 1) * unit_roundoff(accumulate) * np.abs(x).sum(-1)
    error = rounding * np.abs(total / n) + (1 + rounding) * error / n
    return total / n, error + _tiny(accumulate)


def _tiny(dtype: DTypeLike) -> float:
    return float(float_info(dtype).smallest_subnormal)


def _roundings(count: int, u: float) -> float:
    """Return (1 + u)**count - 1; the cap avoids an overflow, long after digits are lost."""
    return math.expm1(min(count * math.log1p(u), 100.0))


def _check_finite(*arrays: np.ndarray) -> None:
    """Refuse NaN and infinities; ml_dtypes has no isfinite for every type."""
    if not all(np.isfinite(array.astype(np.float64)).all() for array in arrays):
        raise InvalidArgumentError("The values hold NaN or infinities: finite ones are expected")
