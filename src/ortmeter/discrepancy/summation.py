"""Sums with a known order of additions, each one rounded to the type of the terms.

Pairwise and Kahan's are those of Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd
edition, SIAM, 2002, section 4.1 and algorithm 4.2.
"""

import math
from typing import Any

import numpy as np

from ortmeter.dtypes import float_info
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy

__all__ = ["SUMMATIONS", "exact_sum", "orders", "simulated_sum"]

BLOCK = 256  # partial sums of a blocked summation: the threads of a usual block of a GPU

#: Names of the summations, from the least to the most accurate.
SUMMATIONS = ("naive", "blocked", "pairwise", "kahan", "exact")


def simulated_sum(values: Any, summation: str) -> np.ndarray:
    """Sum the last axis by a given algorithm, rounding every operation to the type of the values.

    Parameters
    ----------
    values : array of shape (..., n)
        Terms, finite numbers of a floating-point type.
    summation : {"naive", "blocked", "pairwise", "kahan", "exact"}
        *naive* adds the terms one after the other. *blocked* imitates a block of 256 GPU threads:
        thread *t* adds the terms *t*, *t* + 256, ... in order, then a tree adds the partial sums.
        *pairwise* adds terms two by two, then these sums two by two, and so on. *kahan* adds the
        rounding error of each addition to the next term. *exact* rounds the result of
        :func:`exact_sum` to the type.

    Returns
    -------
    numpy.ndarray
        Shape (...), in the type of the values. Overflow gives an infinity or NaN, without a
        warning.

    Raises
    ------
    InvalidArgumentError
        Unknown summation, or values that are not finite floating-point numbers.

    Examples
    --------
    >>> values = np.float16([2048, 1, 1, 1])
    >>> {name: float(simulated_sum(values, name)) for name in SUMMATIONS}
    {'naive': 2048.0, 'blocked': 2050.0, 'pairwise': 2050.0, 'kahan': 2052.0, 'exact': 2052.0}
    """
    if summation not in SUMMATIONS:
        raise InvalidArgumentError(
            f"summation={summation!r}. Accepted: {', '.join(map(repr, SUMMATIONS))}"
        )
    values = check_terms(values)
    if summation == "exact":
        with np.errstate(over="ignore"):
            return exact_sum(values).astype(values.dtype)
    terms = np.ascontiguousarray(np.moveaxis(values, -1, 0))
    if len(terms) == 0:
        return np.zeros(terms.shape[1:], terms.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {"naive": _naive, "blocked": _blocked, "pairwise": _pairwise, "kahan": _kahan}
        return sums[summation](terms)


def _naive(terms: np.ndarray) -> np.ndarray:
    # accumulate has to write every partial sum, in the type of the terms: it cannot reorder them.
    return np.asarray(np.add.accumulate(terms, axis=0)[-1])


def _blocked(terms: np.ndarray) -> np.ndarray:
    threads = min(BLOCK, len(terms))
    missing = -len(terms) % threads
    # Adding zero changes nothing: the last round of additions may be incomplete.
    padding = np.zeros((missing, *terms.shape[1:]), terms.dtype)
    terms = np.concatenate([terms, padding])
    rounds = terms.reshape(len(terms) // threads, threads, *terms.shape[1:])
    return _pairwise(_naive(rounds))


def _pairwise(terms: np.ndarray) -> np.ndarray:
    while len(terms) > 1:
        even = len(terms) // 2 * 2
        terms = np.concatenate([terms[:even:2] + terms[1:even:2], terms[even:]])
    return np.asarray(terms[0])


def _kahan(terms: np.ndarray) -> np.ndarray:
    total = error = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        corrected = term + error
        previous, total = total, total + corrected
        error = (previous - total) + corrected
    return np.asarray(total)


def exact_sum(values: Any) -> np.ndarray:
    """Sum the last axis exactly and round once; the order of the terms does not matter.

    Parameters
    ----------
    values : array of shape (..., n)
        Terms, finite numbers of a floating-point type.

    Returns
    -------
    numpy.ndarray
        Shape (...), float64, correctly rounded as by ``math.fsum``.

    Raises
    ------
    InvalidArgumentError
        The values are not finite numbers of a floating-point type, or their sum overflows float64.

    Examples
    --------
    >>> float(exact_sum([1e16, 1.0, -1e16])), float(np.sum([1e16, 1.0, -1e16]))
    (1.0, 0.0)
    """
    values = check_terms(values).astype(np.float64)
    rows = values.reshape(math.prod(values.shape[:-1]), values.shape[-1]).tolist()
    try:
        sums = [math.fsum(row) for row in rows]
    except OverflowError as cause:
        raise InvalidArgumentError(
            "The sum of these values overflows float64: smaller ones are expected"
        ) from cause
    return np.array(sums, np.float64).reshape(values.shape[:-1])


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

    Raises
    ------
    InvalidArgumentError
        The values are not a vector, or *count* is below 1.

    Examples
    --------
    >>> values = np.float32([3, 1, 2])
    >>> values[orders(values, 2, np.random.default_rng(0))].tolist()
    [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
    """
    values = check_terms(values)
    if values.ndim != 1 or count < 1:
        raise InvalidArgumentError(
            f"{count} orders of values of shape {values.shape}. Accepted: 1 or more, of a vector"
        )
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
