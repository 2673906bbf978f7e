"""Values between the nodes: torch tensors, or NumPy arrays for what torch does not hold.

A value is a tensor, a list of values (an ONNX sequence) or ``None`` (an absent optional).
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortmeter.dtypes import numpy_dtype, torch_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional
from ortmeter.runtime.arrays import as_numpy, device_of
from ortmeter.runtime.providers import Provider

if TYPE_CHECKING:
    import torch

Signature: TypeAlias = tuple[Any, ...]
Address: TypeAlias = tuple[int | None, int]

# torch names these types, and computes nothing with them.
_NOT_IN_TORCH = {"int2", "int4", "uint2", "uint4"}

_native_dtype: Callable[[Any], np.dtype[Any]] = functools.cache(numpy_dtype)


class Memory:
    """Where values live: a device, and a library; torch leaves NumPy the types that it lacks."""

    def __init__(self, device: Provider, library: str, *, tf32: bool = False) -> None:
        self.device = device
        self.library = library
        self.tf32 = tf32
        # Without an index, torch takes the current device.
        self._place = f"{device.name}:{device.index}" if device.on_cuda else "cpu"
        self._torch: Any = import_optional("torch", "torch") if library == "torch" else None
        self._tensor = self._torch.Tensor if self._torch else None
        self._torch_device = (
            self._torch.empty(0, device=self._place).device if self._torch else None
        )

    def _is_here(self, value: Any) -> bool:
        """Check that there is nothing to do, at once: this is what every run pays."""
        return (
            type(value) is self._tensor
            and value.device == self._torch_device
            and not value.requires_grad
        )

    def hold(self, value: Any) -> Any:
        """Put a value of any library where the kernels expect it, without copy when possible."""
        if self._is_here(value):
            return value
        if value is None or isinstance(value, list | tuple):
            return None if value is None else [self.hold(item) for item in value]
        if self._torch is None:
            return _native(as_numpy(value))
        if isinstance(value, self._torch.Tensor):
            return value.detach().to(self._place)
        return self._from_numpy(as_numpy(value))

    def receive(self, value: Any) -> Any:
        """Take a value from the user; one of the wrong device is refused, the host is never."""
        if self._is_here(value):
            return value
        if isinstance(value, list | tuple):
            return [self.receive(item) for item in value]
        if value is not None and (device := device_of(value)) not in {"cpu", self.device.place}:
            raise InvalidArgumentError(f"it is on {device} while the model runs on {self.device}")
        return self.hold(value)

    def export(self, value: Any, library: str) -> Any:
        """Return a value for the user: NumPy arrays, or torch tensors on the device."""
        if value is None or isinstance(value, list):
            return None if value is None else [self.export(item, library) for item in value]
        if library == "numpy":
            return as_numpy(value)
        return value if is_torch(value) else Memory(self.device, "torch").hold(value)

    def policy(self) -> AbstractContextManager[Any]:
        """Compute without gradients, and on CUDA with the precision asked for."""
        if self._torch is None:
            return contextlib.nullcontext()
        return self._cuda_policy() if self.device.on_cuda else self._torch.no_grad()

    @contextlib.contextmanager
    def _cuda_policy(self) -> Iterator[None]:
        torch, cudnn = self._torch, self._torch.backends.cudnn
        set_precision = torch.set_float32_matmul_precision
        with contextlib.ExitStack() as stack, torch.no_grad():
            stack.callback(set_precision, torch.get_float32_matmul_precision())
            stack.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
            set_precision("high" if self.tf32 else "highest")
            cudnn.allow_tf32 = self.tf32
            yield

    def _from_numpy(self, array: np.ndarray) -> "torch.Tensor | np.ndarray":
        array = _native(array)
        name = array.dtype.name
        if array.dtype.kind == "O" or name in _NOT_IN_TORCH or not hasattr(self._torch, name):
            return array
        if array.dtype.isbuiltin == 1:
            return self._torch.from_numpy(array).to(self._place)  # type: ignore[no-any-return]
        bits = array.view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
        tensor = self._torch.from_numpy(bits).view(torch_dtype(array.dtype))
        return tensor.to(self._place)  # type: ignore[no-any-return]


def _native(array: np.ndarray) -> np.ndarray:
    """Make an array that torch accepts: writable, native byte order, strings as objects."""
    wanted = _native_dtype(array.dtype)
    ready = array.flags.writeable and array.flags.c_contiguous and array.dtype == wanted
    return array if ready else np.array(array, wanted, order="C")


def is_torch(value: Any) -> bool:
    """Recognise a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def fed_library(feeds: Iterable[Any]) -> str:
    """Library that the user works with: torch as soon as one value is a tensor of torch."""
    flat = (item for value in feeds for item in (value if isinstance(value, list) else [value]))
    return "torch" if any(map(is_torch, flat)) else "numpy"


def owned(value: Any, weights: Collection[Address], taken: set[Address]) -> Any:
    """Copy a result whose memory weights, inputs or other results share: a user may write it."""
    if value is None or isinstance(value, list):
        return None if value is None else [owned(item, weights, taken) for item in value]
    address = _address(value)
    # A broadcast repeats its elements: it is not contiguous.
    is_contiguous = value.is_contiguous() if is_torch(value) else value.flags.c_contiguous
    if address in taken or address in weights or not is_contiguous:
        value = value.clone() if is_torch(value) else value.copy()
        address = _address(value)
    taken.add(address)
    return value


def addresses(values: Iterable[Any]) -> Iterator[Address]:
    """Identify the memory of values: a device and an address."""
    for value in values:
        if isinstance(value, list):
            yield from addresses(value)
        elif value is not None:
            yield _address(value)


def _address(value: Any) -> Address:
    if is_torch(value):
        return value.device.index, value.untyped_storage().data_ptr()
    while isinstance(value.base, np.ndarray):
        value = value.base
    return None, value.ctypes.data


def stack(values: Sequence[Any], axis: int) -> Any:
    if is_torch(values[0]):
        import torch

        return torch.stack(list(values), axis)
    return np.stack(values, axis)


def pick(value: Any, axis: int, index: int) -> Any:
    """Take one element along an axis, which disappears."""
    if is_torch(value):
        return value.select(axis, index)
    return np.asarray(value[(slice(None),) * (axis % value.ndim) + (index,)], value.dtype)


def signature(values: Iterable[Any]) -> Signature:
    """Types and ranks of the inputs of a node: what its kernel is chosen from."""
    return tuple(
        None
        if value is None
        else signature(value[:1])
        if isinstance(value, list)
        else (value.dtype, value.ndim)
        for value in values
    )
