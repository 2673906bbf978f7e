"""Which transpositions are slow, and how two fast ones replace one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["BYTE_S", "Split", "merge_axes", "split_transpose", "transpose_seconds"]

#: Seconds to read or write a byte in order.
BYTE_S = 3e-11
_RUN = 8e-9  # start of a run of contiguous elements
_TILED = 6e-11  # byte of a matrix that is transposed by tiles
_SCATTERED = 3.5e-9  # element that is moved alone
_BETWEEN = 6e-6  # four more nodes
_GAIN = 1.5  # a smaller one is within the error of the model


class Split(NamedTuple):
    """Two transpositions that make one.

    Parameters
    ----------
    shape : tuple of int
        Shape of what is transposed, axes that stay side by side merged.
    first, second : tuple of int
        Orders, one after the other.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    def seconds(self, itemsize: int) -> float:
        """Estimate the time of both."""
        middle = [self.shape[axis] for axis in self.first]
        first = transpose_seconds(self.shape, self.first, itemsize)
        return _BETWEEN + first + transpose_seconds(middle, self.second, itemsize)


def transpose_seconds(shape: Sequence[int], order: Sequence[int], itemsize: int) -> float:
    """Estimate the time of a transposition.

    Parameters
    ----------
    shape : sequence of int
        Shape of what is transposed.
    order : sequence of int
        Its axes in the order of the result.
    itemsize : int
        Bytes of an element.

    Notes
    -----
    Axes that stay side by side count as one. ONNX Runtime then copies runs of elements when the
    last axis stays, transposes matrices by tiles when the last two are exchanged, and
    otherwise moves element by element, ten times slower.

    Examples
    --------
    >>> runs = transpose_seconds((20, 20, 20, 20), (0, 2, 1, 3), 4)
    >>> tiles = transpose_seconds((20, 20, 20, 20), (0, 2, 3, 1), 4)
    >>> scattered = transpose_seconds((20, 20, 20, 20), (0, 3, 2, 1), 4)
    >>> tiles < runs < scattered
    True
    """
    count = math.prod(shape)
    sizes, moved = merge_axes(shape, order)
    in_order = 2 * count * itemsize * BYTE_S
    if moved == tuple(range(len(moved))):
        return in_order
    last = len(sizes) - 1
    if moved[-1] == last:
        return in_order + count / sizes[last] * _RUN
    if moved == (*range(last - 1), last, last - 1):
        return 2 * count * itemsize * _TILED
    return count * _SCATTERED


def merge_axes(
    shape: Sequence[int], order: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Merge the axes that a transposition keeps side by side, drop those of size 1.

    Parameters
    ----------
    shape, order : sequence of int
        As in :func:`transpose_seconds`.

    Returns
    -------
    tuple
        Shape and order of the same transposition with the fewest axes.

    Examples
    --------
    >>> merge_axes((2, 3, 4, 5), (2, 3, 0, 1))
    ((6, 20), (1, 0))
    """
    groups: list[list[int]] = []
    kept = [axis for axis in range(len(shape)) if shape[axis] != 1]
    rank = {axis: i for i, axis in enumerate(kept)}
    for axis in (rank[axis] for axis in order if axis in rank):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ordered = sorted(groups)
    sizes = tuple(math.prod(shape[kept[axis]] for axis in group) for group in ordered)
    return sizes, tuple(ordered.index(group) for group in groups)


def split_transpose(shape: Sequence[int], order: Sequence[int], itemsize: int) -> Split | None:
    """Find two transpositions that are faster than one.

    Parameters
    ----------
    shape, order, itemsize
        As in :func:`transpose_seconds`.

    Returns
    -------
    Split or None
        One of the two keeps the last axis, which copies runs of elements, the other one exchanges
        the last two, which goes by tiles. None when one transposition is as fast.

    Examples
    --------
    >>> split_transpose((20, 20, 20, 20), (0, 3, 2, 1), 4)
    Split(shape=(20, 20, 20, 20), first=(0, 2, 3, 1), second=(0, 2, 1, 3))
    >>> split_transpose((20, 20, 20, 20), (0, 2, 1, 3), 4)
    """
    merged, moved = merge_axes(shape, order)
    if math.prod(merged) == 0 or len(moved) < 3:  # noqa: PLR2004 - two axes are a matrix
        return None
    last = len(moved) - 1
    candidates = [
        (*(axis for axis in range(len(moved)) if axis != moved[-1]), moved[-1]),
        (*(axis for axis in moved if axis != last), last),
    ]
    splits = [Split(merged, first, _after(first, moved)) for first in candidates]
    best = min(splits, key=lambda split: split.seconds(itemsize))
    single = transpose_seconds(merged, moved, itemsize)
    return best if single > _GAIN * best.seconds(itemsize) else None


def _after(first: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Order that gives *wanted* after *first*."""
    return tuple(first.index(axis) for axis in wanted)
