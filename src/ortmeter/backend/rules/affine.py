"""Arrays whose elements are affine functions of their indices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Affine", "broadcast"]


@dataclass(frozen=True)
class Affine:
    """``offset + sum(slope * index)``, the element of an array at given indices.

    Parameters
    ----------
    offset : int
        The element at the first indices.
    slopes : mapping of int to int
        What an index adds, by axis: -1 is the last one. None is zero.

    Examples
    --------
    >>> rows, columns = Affine(0, {-2: 1}), Affine(0, {-1: 1})
    >>> rows.plus(columns, -1)
    Affine(offset=0, slopes={-2: 1, -1: -1})
    """

    offset: int
    slopes: Mapping[int, int] = field(default_factory=dict)

    def plus(self, other: "Affine", factor: int = 1) -> "Affine":
        """Add another one, times a factor."""
        slopes = dict(self.slopes)
        for axis, slope in other.slopes.items():
            slopes[axis] = slopes.get(axis, 0) + factor * slope
        kept = {axis: slope for axis, slope in slopes.items() if slope}
        return Affine(self.offset + factor * other.offset, kept)

    def at(self, axis: int, index: int) -> "Affine":
        """Fix an index."""
        others = {a: slope for a, slope in self.slopes.items() if a != axis}
        return Affine(self.offset + index * self.slopes.get(axis, 0), others)

    def moved(self, axes: Mapping[int, int]) -> "Affine":
        """Give the axes that have a slope other numbers."""
        return Affine(self.offset, {axes[axis]: slope for axis, slope in self.slopes.items()})


def broadcast(
    found: Affine | None, own: Sequence[Any] | None, shape: Sequence[Any] | None
) -> Affine | None:
    """Read an array as if it had a larger shape: an axis that matters must keep its size.

    Parameters
    ----------
    found : Affine, optional
        The elements of the array.
    own, shape : sequence of int or str, optional
        Its shape and the larger one; two dimensions are equal when their names are.

    Returns
    -------
    Affine or None
        None when it is not known.

    Examples
    --------
    >>> broadcast(Affine(0, {-1: 1}), ["n"], [4, "n"])
    Affine(offset=0, slopes={-1: 1})
    >>> broadcast(Affine(0, {-1: 1}), ["n"], [4, "m"]) is None
    True
    """
    if found is None or not found.slopes:
        return found
    if own is None or shape is None or len(shape) < len(own):
        return None
    return found if all(own[axis] == shape[axis] for axis in found.slopes) else None
