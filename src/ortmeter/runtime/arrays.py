"""One view of the arrays of every library, as NumPy arrays, without importing these libraries."""

import ctypes
import math
import sys
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.dtypes import numpy_dtype, onnx_type
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider

__all__ = ["as_numpy"]

_ACCEPTED = (
    "Accepted: a numpy array, a Python number, a torch tensor, an OrtValue, a TensorProto, or "
    "anything with __array__ or __dlpack__"
)
_DLPACK_CUDA = 2
#: Memory that DLPack names, and torch shares with ONNX Runtime.
DLPACK_DEVICES = ("cpu", "cuda")
_NUMERIC = (np.ndarray, np.generic, bool, int, float, complex)


def device_of(value: Any) -> str:
    """Name the device that holds an array."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return "cpu"
    if _is_ortvalue(value) and value.device_name() not in DLPACK_DEVICES:
        return str(value.device_name())
    kind, index = value.__dlpack_device__()
    return str(Provider("cuda", int(index))) if kind == _DLPACK_CUDA else "cpu"


def is_array(value: Any) -> bool:
    """Whether a value is meant to be an array of some library, a number or a string."""
    return (
        isinstance(value, (*_NUMERIC, str, bytes, onnx.TensorProto))
        or _is_ortvalue(value)
        or hasattr(value, "__array__")
        or hasattr(value, "__dlpack__")
    )


def as_numpy(value: Any) -> np.ndarray:
    """View an array of any library as a NumPy array of the same element type.

    The memory is shared when *value* is on CPU and its library allows it: do not write into the
    result. bfloat16 and float8 stay what they are, on a dtype of ``ml_dtypes``.

    Parameters
    ----------
    value : array of any shape
        Of numpy, torch or ONNX Runtime, a number, or anything with ``__array__`` or ``__dlpack__``.

    Returns
    -------
    numpy.ndarray
        Array of the same shape.

    Raises
    ------
    InvalidArgumentError
        The value is no array.

    Examples
    --------
    >>> as_numpy(onnx.numpy_helper.from_array(np.float32([1, 2]))).tolist()
    [1.0, 2.0]
    """
    try:
        return _convert(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as cause:
        if isinstance(cause, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"{type(value).__name__} cannot be read as an array: {cause}. {_ACCEPTED}"
        ) from cause


def _convert(value: Any) -> np.ndarray:
    if isinstance(value, _NUMERIC):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch)
    if _is_ortvalue(value):
        return _from_ortvalue(value)
    if isinstance(value, onnx.TensorProto):
        return np.asarray(onnx.numpy_helper.to_array(value))
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise InvalidArgumentError(f"{type(value).__name__} is not an array. {_ACCEPTED}")


def _is_ortvalue(value: Any) -> bool:
    return type(value).__module__.startswith("onnxruntime") and hasattr(value, "data_ptr")


def _from_torch(tensor: Any, torch: Any) -> np.ndarray:
    dtype = numpy_dtype(tensor.dtype)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dtype.isbuiltin != 1:  # torch refuses to export what NumPy does not define: export the bits
        bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        tensor = tensor.view(bits)
    return np.asarray(tensor.numpy()).view(dtype)


def _from_ortvalue(value: Any) -> np.ndarray:
    dtype = numpy_dtype(value.data_type())
    if dtype.isbuiltin == 1:
        return np.asarray(value.numpy())
    # numpy() fails for bfloat16 and gives float8 as uint8, and DLPack refuses both: view the bits.
    shape, size = tuple(value.shape()), value.tensor_size_in_bytes()
    if value.device_name() != "cpu":
        raise InvalidArgumentError(
            f"An OrtValue of {value.data_type()} on {value.device_name()} cannot be read. "
            "Accepted for this type: cpu"
        )
    if size == 0:
        return np.empty(shape, dtype)
    bits = (ctypes.c_ubyte * size).from_address(value.data_ptr())
    if size < math.prod(shape) * dtype.itemsize:  # 4 or 2 bits: several elements in a byte
        packed = onnx.TensorProto(data_type=onnx_type(dtype), dims=shape, raw_data=bytes(bits))
        return np.asarray(onnx.numpy_helper.to_array(packed))
    bits.owner = value  # the memory lives as long as what is made of it
    return np.frombuffer(bits, dtype).reshape(shape)
