"""Orders of addition of the same terms."""

from typing import Any

import numpy as np

from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["orders"]


def orders(values: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """List orders of addition of the same terms: sorted, reversed, then random.

    Parameters
    ----------
    values : array of shape (n,)
        Terms.
    count : int
        Number of orders, at least 1.
    rng : numpy.random.Generator
        Draws the random orders.

    Returns
    -------
    numpy.ndarray
        Positions, int64, shape (count, n). ``values[orders(...)]`` has one order per row.

    Examples
    --------
    >>> values = np.float32([3, 1, 2])
    >>> values[orders(values, 2, np.random.default_rng(0))].tolist()
    [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
    """
    values = check_terms(values)
    ascending = np.argsort(values, kind="stable").astype(np.int64)
    drawn = (rng.permutation(values.size) for _ in range(count - 2))
    return np.stack([ascending, ascending[::-1], *drawn][:count])


def check_terms(values: Any) -> np.ndarray:
    """Read finite terms, with an axis to sum."""
    array = np.asarray(values, np.float64) if isinstance(values, list) else as_numpy(values)
    float_info(array.dtype)  # refuses what is not a floating-point type
    if array.ndim == 0:
        raise InvalidArgumentError(f"{array} has no axis to sum. Accepted: shape (..., n)")
    check_finite(array)
    return array


def check_finite(*arrays: np.ndarray) -> None:
    """Refuse NaN and infinities; ml_dtypes has no isfinite for every type."""
    if not all(np.isfinite(array.astype(np.float64)).all() for array in arrays):
        raise InvalidArgumentError("The values hold NaN or infinities: finite ones are expected")
