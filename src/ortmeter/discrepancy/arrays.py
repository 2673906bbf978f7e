"""An array of any library, read by pieces, where its elements are or on the host; its type."""

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.dtypes import float_info, short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy, device_of

if TYPE_CHECKING:
    import torch

Reader = Callable[[int, int], np.ndarray]
"""Reads the elements between two positions of the flat array."""

# Elements compared at once. Between two operations a thread waits for the interpreter, about as
# long as a short operation takes: these last tens of microseconds, in arrays of 2 MiB.
_LENGTH = 1 << 18
_LENGTH_WITHOUT_BUFFERS = 1 << 15

_LONG = {"i64", "u64"}
_COMPLEX = {"c64": "f32", "c128": "f64"}

_short_name = functools.cache(short_name)  # it would be asked for every array


@dataclass(frozen=True)
class Side:
    """One of the two arrays of a comparison, readable by pieces on the host."""

    array: Any
    dtype: str
    shape: tuple[int, ...]
    device: str
    read: Reader

    @classmethod
    def of(cls, value: Any) -> "Side":
        """Describe an array; a tensor that is not on the host stays where it is."""
        if is_on_device(value):
            read_there = tensor_reader(value)
            dtype, shape, device = _short_name(value.dtype), tuple(value.shape), device_of(value)
            return cls(value, dtype, shape, device, lambda *piece: as_numpy(read_there(*piece)))
        if np.ma.is_masked(value):
            raise InvalidArgumentError(
                "A masked array cannot be compared: its masked elements have no value. Accepted: "
                "array.compressed(), array.filled(value)"
            )
        array = np.array(value, object) if isinstance(value, str | bytes) else as_numpy(value)
        dtype, read = _short_name(array.dtype), _array_reader(array)
        if dtype == "s":
            read = functools.partial(_read_text, read)
        return cls(array, dtype, array.shape, device_of(value), read)

    def item(self, position: int) -> Any:
        """Return the element at a flat position, as a Python object."""
        element = self.read(position, position + 1)[0]
        if self.dtype == "s":
            return element
        if self.dtype[0] == "c":
            return complex(element)
        kind = bool if self.dtype == "b8" else int if is_integer(self.dtype) else float
        value = kind(element)
        return math.nan if math.isnan(value) else value  # one object, equal to itself in a tuple

    def index(self, position: int) -> tuple[int, ...]:
        """Return the index of the element at a flat position."""
        return tuple(int(i) for i in np.unravel_index(position, self.shape))


def _array_reader(array: np.ndarray) -> Reader:
    """Read an array by pieces, without a copy when it is contiguous."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        return lambda start, stop: flat[start:stop]
    return lambda start, stop: array.flat[start:stop]


def _read_text(read: Reader, start: int, stop: int) -> np.ndarray:
    texts = read(start, stop).tolist()
    if not all(isinstance(text, str | bytes) for text in texts):
        types = sorted({type(value).__name__ for value in texts})
        raise InvalidArgumentError(
            f"An array of objects ({', '.join(types)}) cannot be compared. Accepted: booleans, "
            "integers, floats, complex numbers and strings"
        )
    decoded = [t.decode("utf-8", "backslashreplace") if isinstance(t, bytes) else t for t in texts]
    return np.array(decoded, object)


def is_on_device(value: Any) -> bool:
    """Return whether a value is a torch tensor in the memory of a GPU, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and bool(value.is_cuda)


def tensor_reader(tensor: "torch.Tensor") -> Callable[[int, int], "torch.Tensor"]:
    """Read a tensor by flat pieces on its device, without ever copying it whole."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        return lambda start, stop: flat[start:stop]
    dtype = tensor.dtype
    if not dtype.is_complex:  # torch.take refuses some types, but not their bits
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        tensor = tensor.view(bits[dtype.itemsize])

    def gather(start: int, stop: int) -> "torch.Tensor":
        return torch.take(tensor, torch.arange(start, stop, device=tensor.device)).view(dtype)

    return gather


def is_integer(name: str) -> bool:
    """Return whether a short name is one of integers or booleans."""
    return name == "b8" or name[0] in "iu"


@dataclass(frozen=True)
class Arithmetic:
    """How arrays of two element types are compared."""

    wide: np.dtype[Any]  # where they are subtracted without losing a digit
    is_exact: bool  # both are integers, or strings: so are the figures
    n_bits: int | None = None  # after the point of a significand of *got*, None for an integer
    smallest_normal: float = 0.0  # of the type of *got*

    def spacing(self, magnitude: float) -> float:
        """Distance between consecutive numbers of *got*, as if exponents had no upper limit."""
        if self.n_bits is None:
            return 1.0
        _, exponent = math.frexp(max(magnitude, self.smallest_normal))
        return math.ldexp(1.0, exponent - 1 - self.n_bits)

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Cut arrays of this size into what is read at once: first position, and end."""
        length = _LENGTH if self.wide == np.float64 else _LENGTH_WITHOUT_BUFFERS
        return [(start, min(start + length, size)) for start in range(0, size, length)]


@functools.cache
def arithmetic(expected: str, got: str) -> Arithmetic:
    """Choose how two element types are compared.

    Integers below 64 bits are exact in float64. Python integers are the only ones that hold the
    difference of a signed and of an unsigned integer of 64 bits.
    """
    types = {expected, got}
    if all(name == "s" or is_integer(name) for name in types):
        wide: Any = np.float64
        if types & _LONG:
            signed = any(name[0] == "i" for name in types)
            wide = np.int64 if "u64" not in types else object if signed else np.uint64
        return Arithmetic(np.dtype(wide), is_exact=True)
    wide = np.longdouble if types & _LONG else np.float64
    wide = np.result_type(wide, np.complex64) if types & _COMPLEX.keys() else np.dtype(wide)
    if is_integer(got):
        return Arithmetic(wide, is_exact=False)
    info = float_info(_COMPLEX.get(got, got))
    return Arithmetic(wide, False, int(info.nmant), 2.0 ** int(info.minexp))
