"""Low-bit matrix products: how far rounding may take them."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ortmeter.discrepancy.bounds import matmul_error_bound
from ortmeter.dtypes import unit_roundoff

__all__ = ["quantized_matmul_bound"]

#: Bits of a grid of integers, the name of a floating-point type, or None for float32.
Grid: TypeAlias = int | str | None


def quantized_matmul_bound(x: np.ndarray, w: np.ndarray, grids: Sequence[Grid]) -> np.ndarray:
    r"""Bound the error of a low-bit matrix product, whose operands and result are rounded.

    Parameters
    ----------
    x : array of float32, of shape (M, K)
        Left operand.
    w : array of float32, of shape (K, N)
        Right operand.
    grids : sequence of three int, str or None
        What *x*, *w* and the result are rounded to: a number of bits, from 2, whose grid goes up to
        the largest element; the name of a type, ``"float16"``; None for float32.

    Returns
    -------
    array of float64, of shape (M, N)
        :math:`|x| \Delta w + \Delta x |w| + \Delta x \Delta w`, plus the bound of the product in
        float32, plus the rounding of the result. :math:`\Delta` is a whole step of a grid of *b*
        bits, :math:`\max|x| / (2^{b-1} - 1)`: half of it for the rounding, the rest for a zero
        point that is rounded, or a largest element that is clipped. In a floating-point type, it is
        the unit roundoff times :math:`|x|`.

    Examples
    --------
    >>> x, w = np.float32([[127, 1]]), np.float32([[1], [127]])
    >>> bound = quantized_matmul_bound(x, w, (8, 8, None))
    >>> bool(257 < bound[0, 0] < 259)  # steps of 1: 127 + 1, twice, and 2 for both at once
    True
    """
    left, right = x.astype(np.float64), w.astype(np.float64)
    dx, dw = _step(left, grids[0]), _step(right, grids[1])
    error: np.ndarray = np.abs(left) @ dw + dx @ np.abs(right) + dx @ dw
    error += matmul_error_bound(x.astype(np.float32), w.astype(np.float32), dtype="float32")
    # The largest result that a grid must hold, and that a type rounds, is itself inexact.
    total: np.ndarray = error + _step(np.abs(left @ right) + error, grids[2])
    return total


def _step(values: np.ndarray, grid: Grid) -> np.ndarray:
    """Return how far rounding may move each value."""
    if isinstance(grid, str):
        relative: np.ndarray = unit_roundoff(grid) * np.abs(values)
        return relative
    step = 0.0 if grid is None else np.abs(values).max() / (2 ** (grid - 1) - 1)
    return np.full_like(values, step)
