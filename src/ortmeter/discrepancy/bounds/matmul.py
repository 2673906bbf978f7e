"""How far a matrix product in finite precision may be from the exact one."""

import math
from typing import Any

import numpy as np

from ortmeter.discrepancy.bounds._checks import check_accumulator, check_finite
from ortmeter.dtypes import DTypeLike, float_info, short_name, unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["matmul_error_bound"]

_TF32_ROUNDOFF = 2.0**-11


def matmul_error_bound(
    a: Any,
    b: Any,
    *,
    dtype: DTypeLike,
    accumulate: DTypeLike = "float32",
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
        Type of the result, to which the accumulator is rounded once.
    accumulate : dtype
        Type of the accumulator, at least as precise as the operands: ``"float64"`` for float64.
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
        multiplied; a type is not a real floating-point type; the accumulator is less precise than
        the operands.

    Notes
    -----
    To first order the bound is

    .. math:: (2 u_{in} + K u_{acc}) \, |A||B| + u_{out} \, |AB|

    where :math:`u_{out}` and :math:`u_{acc}` are the unit roundoffs of `dtype` and `accumulate`,
    and :math:`u_{in}` is zero, or that of TF32, :math:`2^{-11}`. It holds for any order of the
    additions [1]_, and includes the products of these terms and gradual underflow.

    * Round to nearest (float64, float32 without TF32): the factor :math:`K u_{acc}` holds for any
      *K* [2]_, while the classical :math:`K u / (1 - K u)` needs :math:`K u < 1`.
    * Operands for tensor cores (TF32, 16 bits and less): these truncate where others round [3]_,
      so :math:`u_{acc}` and :math:`u_{in}` are doubled, and the factor becomes
      :math:`(1 + 2 u_{acc})^K - 1`, which holds for any *K* too.

    A factor above 1 says that no digit is guaranteed, as it happens with a float16 accumulator
    from *K* about 700. The bound covers neither overflow, nor partial sums stored in a type
    narrower than `accumulate`, nor the float8 kernels that keep fewer bits than they declare.

    References
    ----------
    .. [1] Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002,
       section 3.1.
    .. [2] Jeannerod and Rump, *Improved error bounds for inner products in floating-point
       arithmetic*, SIAM Journal on Matrix Analysis and Applications 34(2), 2013.
    .. [3] Fasi, Higham, Mikaitis and Pranesh, *Numerical behavior of NVIDIA tensor cores*, PeerJ
       Computer Science 7:e330, 2021.

    Examples
    --------
    >>> a, b = np.ones((2, 8), np.float32), np.ones((8, 3), np.float32)
    >>> bound = matmul_error_bound(a, b, dtype="float32")
    >>> print(bound.shape, f"{bound[0, 0] / (8 * 2.0**-24):.4f}")  # K u |A||B| + u |AB| = 9 u 8
    (2, 3) 9.0000
    """
    a, b = as_numpy(a), as_numpy(b)
    _check_operands(a, b, accumulate)
    depth = a.shape[-1]
    converted = tf32 and short_name(a.dtype) == "f32"
    tensor_cores = converted or unit_roundoff(a.dtype) > unit_roundoff("float32")

    u_in = 2 * _TF32_ROUNDOFF if converted else 0.0
    u_acc, u_out = unit_roundoff(accumulate), unit_roundoff(dtype)
    tiny_acc, tiny_out = (
        float(float_info(kind).smallest_subnormal) for kind in (accumulate, dtype)
    )
    growth = depth * u_acc
    if tensor_cores:  # the cap avoids an overflow, long after the bound stopped being useful
        growth = math.expm1(min(depth * math.log1p(2 * u_acc), 100.0))
    factor = u_in * (2 + u_in) + (1 + u_in) ** 2 * growth

    a, b = a.astype(np.float64), b.astype(np.float64)
    error = factor * (np.abs(a) @ np.abs(b)) + depth * tiny_acc
    error += u_out * (np.abs(a @ b) + error) + tiny_out / 2
    return np.asarray(error)


def _check_operands(a: np.ndarray, b: np.ndarray, accumulate: DTypeLike) -> None:
    if a.dtype != b.dtype:
        raise InvalidArgumentError(
            f"The operands have types {a.dtype} and {b.dtype}: one type is expected"
        )
    check_accumulator(a.dtype, accumulate)
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        compatible = a.shape[-1] == b.shape[max(b.ndim - 2, 0)]
    except (ValueError, IndexError):
        compatible = False
    if not compatible:
        raise InvalidArgumentError(
            f"Shapes {a.shape} and {b.shape} cannot be multiplied. Accepted: (..., M, K) and "
            "(..., K, N)"
        )
    check_finite(a, b)
