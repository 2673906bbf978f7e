"""Arrays of any library to and from the values of ONNX Runtime, without copies where possible."""

import atexit
import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.numpy_helper

from ortmeter.dtypes import DTypeLike, numpy_dtype, onnx_type, short_name, torch_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional, onnxruntime
from ortmeter.runtime.arrays import DLPACK_DEVICES, as_numpy, device_of
from ortmeter.runtime.providers import Provider

# Types that ONNX Runtime packs, several elements in a byte, and NumPy does not.
_PACKED = {"i4", "u4", "f4e2m1", "i2", "u2"}


def to_ortvalue(value: Any, provider: Provider) -> "onnxruntime.OrtValue":
    """Put an array on the device of a provider."""
    device, wanted = device_of(value), memory_name(provider)
    if device not in {"cpu", wanted}:
        raise InvalidArgumentError(f"it is on {device} while the session runs on {provider.place}")
    if isinstance(value, onnxruntime.OrtValue):
        return value if device == wanted else _copy(value, provider)
    return _from_host(value, provider) if device == "cpu" else _from_device(value)


@functools.cache
def on_plugin(provider: Provider) -> tuple["onnxruntime.OrtValue | None", Any]:
    """Return 16 bytes on the device of a plugin, and where a binding allocates outputs there.

    ONNX Runtime does not wait for such a device, whose queue is in order: reading the bytes does. A
    process that ends before the work is done would crash. None twice for memory that has a name.
    """
    memory = provider.memory
    if memory is None:
        return None, None
    fence = _from_host(np.zeros(4, np.float32), provider)
    atexit.register(fence.numpy)
    kind = provider.device.device.type.name.lower()
    kind = "gpu" if kind == "cpu" else kind  # a driver in software stands for one
    device = onnxruntime.OrtDevice.make(kind, memory.device_id, memory.device_vendor_id)
    return fence, device._get_c_device()  # noqa: SLF001


def memory_name(provider: Provider) -> str:
    """Name the memory of a provider as ``device_of`` names that of a value."""
    fence, _ = on_plugin(provider)
    named = provider.place if provider.on_cuda else "cpu"
    return named if fence is None else device_of(fence)


def _from_host(value: Any, provider: Provider) -> "onnxruntime.OrtValue":
    array = as_numpy(value)
    element_type = onnx_type(array.dtype)
    if array.dtype.kind in "OSUT":
        raise InvalidArgumentError(
            "strings cannot be bound by ONNX Runtime. Accepted: session.run, which takes them"
        )
    native = np.require(array, numpy_dtype(element_type), "C")
    if is_known_to_numpy(element_type):
        host = onnxruntime.OrtValue.ortvalue_from_numpy(native)
    elif short_name(element_type) in _PACKED:
        host = _pack(native, element_type)
    else:
        host = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(native, element_type)
    return _copy(host, provider) if provider.allocation else host


def _pack(array: np.ndarray, element_type: int) -> "onnxruntime.OrtValue":
    """Write elements of 4 or 2 bits as ONNX Runtime holds them, the first in the low bits."""
    packed = onnx.numpy_helper.from_array(array).raw_data
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, element_type)
    ctypes.memmove(value.data_ptr(), packed, len(packed))
    return value


def is_known_to_numpy(element_type: DTypeLike) -> bool:
    """Whether ONNX Runtime exchanges it with NumPy by itself: float32, not bfloat16."""
    return numpy_dtype(element_type).isbuiltin == 1


def _copy(value: "onnxruntime.OrtValue", provider: Provider) -> "onnxruntime.OrtValue":
    """Copy to the device of a provider, through what it registered to allocate and to copy."""
    kind = value.element_type()
    make = onnxruntime.OrtValue.ortvalue_from_shape_and_type
    copy = make(value.shape(), kind, **provider.allocation)
    try:
        onnxruntime.copy_tensors([value], [copy])
    except Exception:  # noqa: BLE001 - a provider of the wheel registers nothing: it copies itself
        copy.update_inplace(value)
    return copy


def _from_device(value: Any) -> "onnxruntime.OrtValue":
    if type(value).__module__.partition(".")[0] != "torch":
        return onnxruntime.OrtValue.from_dlpack(value)
    tensor = value.detach().contiguous()
    # Pending work of torch on its stream is not seen by the stream of ONNX Runtime.
    torch = import_optional("torch", "torch")
    torch.cuda.current_stream(tensor.device).synchronize()
    if tensor.dtype == torch.bool and booleans_are_bytes():
        return onnxruntime.OrtValue.from_dlpack(_BoolAsBytes(tensor.view(torch.uint8)))
    return onnxruntime.OrtValue.from_dlpack(tensor)


@functools.cache
def booleans_are_bytes() -> bool:
    """Whether ONNX Runtime reads booleans as bytes; since 1.32 it reads those of DLPack."""
    try:
        onnxruntime.OrtValue.from_dlpack(np.zeros(1, bool))
    except RuntimeError:
        return True
    return False


class _BoolAsBytes:
    """Booleans in the form that ONNX Runtime before 1.32 reads: bytes, their type beside them."""

    dtype = "bool"

    def __init__(self, data: Any) -> None:
        self._data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self._data.__dlpack__(**options)


def _export_numpy(value: "onnxruntime.OrtValue") -> Any:
    return as_numpy(value if device_of(value) == "cpu" else _copy(value, Provider("cpu")))


def _export_torch(value: "onnxruntime.OrtValue") -> Any:
    torch = import_optional("torch", "torch")
    dtype = torch_dtype(value.data_type())
    if value.device_name() not in DLPACK_DEVICES:
        value = _copy(value, Provider("cpu"))
    try:
        return torch.from_dlpack(value).view(dtype)
    except RuntimeError:  # float8 is not a type of DLPack: its bits travel as bytes
        host = torch.from_numpy(_export_numpy(value).view(np.uint8)).view(dtype)
        return host.to(device_of(value))


EXPORTS: dict[str, Callable[["onnxruntime.OrtValue"], Any]] = {
    "numpy": _export_numpy,
    "torch": _export_torch,
    "ortvalue": lambda value: value,
}
"""How an output becomes an array of each library."""
