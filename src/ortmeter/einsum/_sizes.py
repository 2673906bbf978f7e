"""Sizes of the letters of an equation, and which operands are broadcast along them."""

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ortmeter.einsum.errors import EinsumError
from ortmeter.einsum.parse import Equation

__all__ = ["Axes", "Dim", "Shape", "Sizes", "letter_sizes"]

Dim: TypeAlias = int | str | None
Shape: TypeAlias = tuple[Dim, ...]
#: Each axis of a tensor is the letters that were merged into it; none has size 1.
Axes: TypeAlias = tuple[str, ...]

# What stands for an unknown size where orders of magnitude are compared.
_TYPICAL = 16


@dataclass(frozen=True)
class Sizes:
    """Size of every letter.

    Parameters
    ----------
    of : mapping of str to int, str or None
        Size of each letter: known, symbolic or unknown.
    stretched : tuple of str
        For each operand, the letters along which its size is 1 and that of another is not.
    """

    of: Mapping[str, Dim]
    stretched: tuple[str, ...]

    def axis(self, letters: str) -> Dim:
        """Size of an axis where letters are merged, None when it does not have a name."""
        if len(letters) == 1:
            return self.of[letters]
        return self.count(letters)

    def shape(self, axes: Axes) -> Shape:
        """Shape of a tensor."""
        return tuple(self.axis(letters) for letters in axes)

    def count(self, letters: str) -> int | None:
        """Elements of a tensor with these letters, None when a size is not known."""
        sizes = [self.of[letter] for letter in letters]
        if 0 in sizes:
            return 0
        known = [size for size in sizes if isinstance(size, int)]
        return math.prod(known) if len(known) == len(sizes) else None

    def weight(self, letters: str) -> int:
        """Elements of a tensor with these letters, sizes that are not known being typical ones."""
        sizes = (self.of[letter] for letter in letters)
        return math.prod(size if isinstance(size, int) else _TYPICAL for size in sizes)


def letter_sizes(equation: Equation, shapes: Sequence[Shape]) -> Sizes:
    """Find the size of every letter.

    Parameters
    ----------
    equation : Equation
        The equation.
    shapes : sequence of tuple of int, str or None
        Shape of each operand.

    Returns
    -------
    Sizes
        Known sizes win over symbolic ones, which win over unknown ones. Sizes that are not known
        are supposed to be equal: only a known 1 is stretched.

    Raises
    ------
    EinsumError
        Two sizes of a letter differ and neither is 1.
    """
    found: dict[str, Dim] = {}
    for letters, shape, places in zip(equation.inputs, shapes, equation.places, strict=True):
        own: dict[str, Dim] = {}
        for letter, size, place in zip(letters, shape, places, strict=True):
            # Along a diagonal nothing is stretched.
            own[letter] = _unify(equation, letter, own.get(letter, size), size, place)
        for letter, size in own.items():
            known = found.get(letter, size)
            if known == 1:
                found[letter] = size
            elif size != 1:
                place = places[letters.index(letter)]
                found[letter] = _unify(equation, letter, known, size, place)
    return Sizes(
        found,
        tuple(
            "".join(
                letter
                for letter, size in dict(zip(letters, shape, strict=True)).items()
                if size == 1 and found[letter] != 1
            )
            for letters, shape in zip(equation.inputs, shapes, strict=True)
        ),
    )


def _unify(equation: Equation, letter: str, known: Dim, size: Dim, place: int) -> Dim:
    if isinstance(known, int) and isinstance(size, int) and known != size:
        is_letter = letter in string.ascii_letters
        what = f"{letter!r}" if is_letter else "a dimension of '...'"
        raise EinsumError(
            f"{what} has size {size} here, {known} before. Accepted: equal sizes, or 1 in another "
            "operand",
            equation.text,
            place,
            1 if is_letter else 3,
        )
    if isinstance(known, int) or size is None:
        return known
    return size if isinstance(size, int) or known is None else known
