"""The two arrays of a comparison, whatever the library that holds them."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.discrepancy._device import compare_on_device, device_reader, is_on_device
from ortmeter.discrepancy._figures import Figures, Options
from ortmeter.discrepancy._pieces import Reader, compare_pieces, reader
from ortmeter.discrepancy.elementwise import is_integer, wide_dtype
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy, device_of

__all__ = ["Side", "compare_sides"]

_short_name = functools.cache(short_name)  # it would be asked for every array


@dataclass(frozen=True)
class Side:
    """An array, readable by pieces on the host."""

    array: Any
    dtype: str
    shape: tuple[int, ...]
    device: str
    read: Reader

    @classmethod
    def of(cls, value: Any) -> "Side":
        """Describe an array; a tensor that is not on the host stays where it is.

        Raises
        ------
        InvalidArgumentError
            It cannot be read, some elements are masked, or it is neither an array of numbers nor
            of strings.
        """
        if is_on_device(value):
            return cls._of_device(value)
        if np.ma.is_masked(value):
            raise InvalidArgumentError(
                "A masked array cannot be compared: its masked elements have no value. Accepted: "
                "array.compressed(), array.filled(value)"
            )
        array = np.array(value, object) if isinstance(value, str | bytes) else as_numpy(value)
        dtype, read = _short_name(array.dtype), reader(array)
        if dtype == "s":
            read = functools.partial(_read_text, read)
        return cls(array, dtype, array.shape, device_of(value), read)

    @classmethod
    def _of_device(cls, tensor: Any) -> "Side":
        read = device_reader(tensor)
        return cls(
            tensor,
            _short_name(tensor.dtype),
            tuple(tensor.shape),
            device_of(tensor),
            lambda start, stop: as_numpy(read(start, stop)),
        )

    def item(self, position: int) -> Any:
        """Return the element at a flat position, as a Python object."""
        element = self.read(position, position + 1)[0]
        if self.dtype == "s":
            return element
        kind = bool if self.dtype == "b8" else int if is_integer(self.dtype) else float
        return complex(element) if self.dtype[0] == "c" else kind(element)


def compare_sides(expected: Side, got: Side, options: Options) -> Figures:
    """Compare two arrays of the same shape, both of numbers or both of strings."""
    types = expected.dtype, got.dtype
    if (
        (is_on_device(expected.array) and is_on_device(got.array))
        and expected.array.device == got.array.device
        and wide_dtype(*types) == np.float64
    ):
        return compare_on_device(expected.array, got.array, types, options)
    size = math.prod(got.shape)
    if got.dtype != "s":
        return compare_pieces(expected.read, got.read, size, types, options)

    def same(start: int, stop: int) -> np.ndarray:
        return np.equal(expected.read(start, stop), got.read(start, stop), dtype=object)

    # The error of a string that differs is 1: true was expected.
    truth = np.array(True)
    return compare_pieces(
        lambda start, stop: np.broadcast_to(truth, stop - start), same, size, ("b8", "b8"), options
    )


def _read_text(read: Reader, start: int, stop: int) -> np.ndarray:
    found = read(start, stop).tolist()
    if not all(isinstance(text, str | bytes) for text in found):
        types = sorted({type(value).__name__ for value in found})
        raise InvalidArgumentError(
            f"An array of objects ({', '.join(types)}) cannot be compared. Accepted: booleans, "
            "integers, floats, complex numbers and strings"
        )
    decoded = [t.decode("utf-8", "backslashreplace") if isinstance(t, bytes) else t for t in found]
    return np.array(decoded, object)
