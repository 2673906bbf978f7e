"""Comparison of two arrays by pieces, in every core, in a memory that does not grow with them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ortmeter._elementwise import wide_dtype
from ortmeter.discrepancy._comparer import Comparer
from ortmeter.discrepancy._figures import Figures, Options
from ortmeter.environment import usable_cores

__all__ = ["Reader", "compare_pieces", "piece_length", "reader"]

Reader = Callable[[int, int], np.ndarray]
"""Gives the elements between two positions of the flat array."""

# Elements compared at once. Between two operations a thread waits for the interpreter, about as
# long as a short operation takes: these last tens of microseconds, in arrays of 1 MiB.
_LENGTH = 1 << 17
_LENGTH_WITHOUT_BUFFERS = 1 << 15
_MAX_THREADS = 8  # of 5 MiB
# The quantiles of a large array are those of a sample: counting every error would take a third of
# the time. The step divides few dimensions of tensors.
_MANY = 1 << 17
_SAMPLING = 13


def compare_pieces(
    expected: Reader, got: Reader, size: int, types: tuple[str, str], options: Options
) -> Figures:
    """Measure how far an array is from another one.

    Parameters
    ----------
    expected, got : Reader
        The arrays.
    size : int
        Number of elements of each.
    types : tuple of str
        Short names of their element types.
    options : Options
        What the caller chose.

    Returns
    -------
    Figures
        The same whatever the number of threads.
    """
    length = piece_length(types)
    starts = range(0, size, length)
    sampling = 1 if size <= _MANY else _SAMPLING
    threads = min(len(starts), usable_cores(), _MAX_THREADS) if len(starts) > 1 else 1

    def compare_some(first: int) -> Figures:
        comparer = Comparer(types, min(size, length), options, sampling)
        with np.errstate(all="ignore"):  # signalling NaN, overflows, divisions by zero
            for start in starts[first::threads]:
                stop = min(start + length, size)
                comparer.add(start, expected(start, stop), got(start, stop))
        return comparer.figures

    if threads == 1:
        return compare_some(0)
    with ThreadPoolExecutor(threads) as pool:
        figures, *others = pool.map(compare_some, range(threads))
    for other in others:
        figures.merge(other)
    return figures


def piece_length(types: tuple[str, str]) -> int:
    """Return how many elements of two types are compared at once."""
    return _LENGTH if wide_dtype(*types) == np.float64 else _LENGTH_WITHOUT_BUFFERS


def reader(array: np.ndarray) -> Reader:
    """Read an array by pieces, without a copy when it is contiguous."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        return lambda start, stop: flat[start:stop]
    return lambda start, stop: _read_strided(array, start, stop)


def _read_strided(array: np.ndarray, start: int, stop: int) -> np.ndarray:
    pieces: Any = np.nditer(  # its published types lack the setter of iterrange
        array,
        ["external_loop", "buffered", "ranged", "refs_ok"],
        order="C",
        buffersize=stop - start,
    )
    pieces.iterrange = (start, stop)
    out = np.empty(stop - start, array.dtype)
    end = 0
    for piece in pieces:
        out[end : end + piece.size] = piece
        end += piece.size
    return out
