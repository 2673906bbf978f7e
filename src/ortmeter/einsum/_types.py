"""Element types that sums of products can use."""

import onnx

from ortmeter.dtypes import DTypeLike, onnx_type, short_name
from ortmeter.errors import InvalidArgumentError

__all__ = ["FUSED", "compute_type"]

_TENSOR = onnx.TensorProto

#: Types that com.microsoft.FusedMatMul takes.
FUSED: set[int] = {_TENSOR.FLOAT, _TENSOR.DOUBLE, _TENSOR.FLOAT16}

# The CPU provider of ONNX Runtime 1.31 has no kernel of MatMul, ReduceSum or Mul for some types
# that the operators accept. What replaces them gives the same result: integers are the same modulo
# a power of two, sums of booleans are positive when one is true.
_COMPUTE: dict[int, int] = {
    **{
        kind: kind
        for kind in (_TENSOR.FLOAT, _TENSOR.DOUBLE, _TENSOR.FLOAT16, _TENSOR.INT32, _TENSOR.INT64)
    },
    **dict.fromkeys((_TENSOR.INT8, _TENSOR.UINT8, _TENSOR.INT16, _TENSOR.UINT16), _TENSOR.INT32),
    **dict.fromkeys((_TENSOR.UINT32, _TENSOR.UINT64), _TENSOR.INT64),
    **dict.fromkeys((_TENSOR.BOOL, _TENSOR.BFLOAT16), _TENSOR.FLOAT),
}


def compute_type(dtype: DTypeLike, compute: DTypeLike | None = None) -> tuple[int, int]:
    """Choose the type that sums of products use.

    Parameters
    ----------
    dtype : dtype
        Type of the operands, see :mod:`ortmeter.dtypes`.
    compute : dtype, optional
        Type of the sums; by default it follows from that of the operands.

    Returns
    -------
    dtype, compute : int
        Values of ``onnx.TensorProto.DataType``.

    Raises
    ------
    InvalidArgumentError
        The operators of ONNX do not multiply elements of this type.

    Examples
    --------
    >>> compute_type("uint8") == (onnx.TensorProto.UINT8, onnx.TensorProto.INT32)
    True
    """
    kind = onnx_type(dtype)
    if kind not in _COMPUTE:
        raise InvalidArgumentError(
            f"Einsum of {short_name(kind)} is not possible: no ONNX operator multiplies matrices "
            f"of this type. Accepted: {', '.join(map(short_name, _COMPUTE))}"
        )
    return kind, _COMPUTE[kind] if compute is None else onnx_type(compute)
