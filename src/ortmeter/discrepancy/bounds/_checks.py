"""What every bound asks of its arguments."""

from typing import Any

import numpy as np

from ortmeter.dtypes import DTypeLike, numpy_dtype, unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["check_accumulator", "check_finite", "check_values"]


def check_accumulator(dtype: np.dtype[Any], accumulate: DTypeLike) -> None:
    """Refuse an accumulator that is less precise than the operands."""
    if unit_roundoff(accumulate) > unit_roundoff(dtype):
        raise InvalidArgumentError(
            f"Operands of type {dtype} are rounded by an accumulator of type "
            f"{numpy_dtype(accumulate)}. Accepted: accumulate={str(dtype)!r} or more precise, "
            "with the operands in the type that the kernel reads"
        )


def check_finite(*operands: np.ndarray) -> None:
    """Refuse NaN and infinities; ml_dtypes has no isfinite for every type."""
    if not all(np.isfinite(operand.astype(np.float64)).all() for operand in operands):
        raise InvalidArgumentError(
            "The operands hold NaN or infinite values: finite ones are expected"
        )


def check_values(values: Any, accumulate: DTypeLike, *, least: int = 0) -> np.ndarray:
    """Read values whose last axis is reduced, *least* of them at least."""
    array = as_numpy(values)
    check_accumulator(array.dtype, accumulate)
    if array.ndim == 0 or array.shape[-1] < least:
        raise InvalidArgumentError(
            f"Values of shape {array.shape} cannot be reduced. Accepted: (..., n), n >= {least}"
        )
    check_finite(array)
    return array
