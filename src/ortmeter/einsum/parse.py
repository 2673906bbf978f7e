"""Parse an equation and its operands: letters, sizes, element type."""

import functools
import math
import operator
import re
import reprlib
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ortmeter.dtypes import DTypeLike, numpy_dtype
from ortmeter.errors import InvalidArgumentError

Shape: TypeAlias = tuple[int, ...]
#: Each axis of a tensor is the letters that were merged into it; none has size 1.
Axes: TypeAlias = tuple[str, ...]

_ITEM = re.compile(r" +|\.\.\.|->|[A-Za-z,]|(?P<wrong>.)", re.DOTALL)
_ELLIPSIS = "..."


class EinsumError(InvalidArgumentError):
    """An equation is not valid, or does not suit its operands.

    Parameters
    ----------
    message : str
        What is wrong, and what is accepted.
    equation : str
        The equation.
    start : int
        Position of the first wrong character.
    length : int
        Number of wrong characters.

    Examples
    --------
    >>> print(EinsumError("'?' is not a letter", "i?->i", 1))
    'i?->i': '?' is not a letter
      i?->i
       ^
    """

    def __init__(self, message: str, equation: str, start: int = 0, length: int = 1) -> None:
        caret = " " * start + "^" * max(length, 1)
        super().__init__(f"{equation!r}: {message}\n  {equation}\n  {caret}")
        self.equation = equation
        self.start = start


@dataclass(frozen=True)
class Equation:
    """An equation whose ellipsis and implicit result are spelled out.

    The dimensions of an ellipsis are ``0``, ``1``, ... and the last of them for a lower rank.
    """

    text: str  # as it was given
    inputs: tuple[str, ...]  # letters of each operand, one per dimension
    output: str
    places: tuple[tuple[int, ...], ...]  # in the text, of each letter of the inputs

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"

    def with_letters(self) -> str:
        """The explicit equation, where letters that are free name the dimensions of an ellipsis.

        When there are not enough letters, the others stay as they are.
        """
        text = str(self)
        free = (letter for letter in string.ascii_letters if letter not in text)
        hidden = sorted({x for x in text if x not in string.ascii_letters + ",->"})
        return text.translate({ord(x): letter for x, letter in zip(hidden, free, strict=False)})


@functools.lru_cache(1024)
def parse_equation(equation: str, ranks: tuple[int, ...]) -> Equation:
    """Read what :func:`numpy.einsum` accepts, for operands of these ranks."""
    terms, result = _split(equation)
    if len(terms) != len(ranks):
        raise EinsumError(
            f"the equation has {len(terms)} operands, {len(ranks)} were given",
            equation,
            terms[0].start,
            terms[-1].end - terms[0].start,
        )
    hidden = [_hidden_rank(equation, *pair) for pair in zip(terms, ranks, strict=True)]
    # No letter of an equation is a digit.
    broadcast = "".join(str(i) if i < 10 else chr(0x100 + i) for i in range(max(hidden)))  # noqa: PLR2004
    spelled = [
        _spell(term, broadcast[len(broadcast) - rank :])
        for term, rank in zip(terms, hidden, strict=True)
    ]
    return Equation(
        equation,
        tuple("".join(letter for letter, _ in places) for places in spelled),
        _output(equation, terms, result, broadcast),
        tuple(tuple(place for _, place in places) for places in spelled),
    )


@dataclass(frozen=True)
class _Term:
    """Tokens of an operand or of the result, and where they are."""

    start: int
    end: int
    items: tuple[tuple[str, int], ...]

    @property
    def letters(self) -> list[str]:
        return [item for item, _ in self.items if item != _ELLIPSIS]

    @property
    def has_ellipsis(self) -> bool:
        return len(self.letters) < len(self.items)


def _split(equation: str) -> tuple[list[_Term], _Term | None]:
    """Cut an equation into its operands and its result, None when it is implicit."""
    terms: list[_Term] = []
    items: list[tuple[str, int]] = []
    start, arrow = 0, False
    for match in _ITEM.finditer(equation):
        item, position = match[0], match.start()
        if match["wrong"]:
            raise EinsumError(
                f"{item!r} is not accepted. Accepted: letters a to z and A to Z, ',', '->' and "
                "'...'",
                equation,
                position,
            )
        if item in {",", "->"}:
            if arrow:
                raise EinsumError(
                    f"{item!r} comes after '->', where only the letters of the result are accepted",
                    equation,
                    position,
                )
            terms.append(_Term(start, position, tuple(items)))
            items, start, arrow = [], match.end(), item == "->"
        elif item.strip():
            if item == _ELLIPSIS and any(known == item for known, _ in items):
                message = "a second '...' in the same operand. Accepted: one"
                raise EinsumError(message, equation, position, len(item))
            items.append((item, position))
    last = _Term(start, len(equation), tuple(items))
    return (terms, last) if arrow else ([*terms, last], None)


def _hidden_rank(equation: str, term: _Term, rank: int) -> int:
    """Count the dimensions that the ellipsis of an operand stands for."""
    letters = len(term.letters)
    if rank < letters or (rank > letters and not term.has_ellipsis):
        raise EinsumError(
            f"this operand has {letters} letters{' or more' if term.has_ellipsis else ''}, its "
            f"array has {rank} dimensions",
            equation,
            term.start,
            term.end - term.start,
        )
    return rank - letters


def _spell(term: _Term, broadcast: str) -> list[tuple[str, int]]:
    return [
        (letter, place)
        for item, place in term.items
        for letter in (broadcast if item == _ELLIPSIS else item)
    ]


def _output(equation: str, terms: list[_Term], result: _Term | None, broadcast: str) -> str:
    counts = Counter(letter for term in terms for letter in term.letters)
    if result is None:
        return broadcast + "".join(sorted(x for x, count in counts.items() if count == 1))
    seen: set[str] = set()
    for item, place in result.items:
        if item in seen:
            raise EinsumError(f"{item!r} is repeated in the result", equation, place)
        if item != _ELLIPSIS and item not in counts:
            raise EinsumError(f"{item!r} is in no operand", equation, place)
        seen.add(item)
    if broadcast and not result.has_ellipsis:
        raise EinsumError(
            f"'...' stands for {len(broadcast)} of the dimensions, the result needs it",
            equation,
            result.start,
            result.end - result.start,
        )
    return "".join(letter for letter, _ in _spell(result, broadcast))


@dataclass(frozen=True)
class Sizes:
    """Size of every letter, and for each operand the letters along which its 1 is stretched."""

    of: Mapping[str, int]
    stretched: tuple[str, ...]

    def shape(self, axes: Axes) -> Shape:
        return tuple(map(self.count, axes))

    def count(self, letters: Iterable[str]) -> int:
        """Elements of a tensor with these letters."""
        return math.prod(map(self.of.__getitem__, letters))


@dataclass(frozen=True)
class Operands:
    """What an equation is applied to: shapes of the operands, sizes of the letters, one type."""

    equation: Equation
    shapes: tuple[Shape, ...]
    sizes: Sizes = field(compare=False)  # they follow from the shapes
    dtype: np.dtype[Any]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"X{i}" for i in range(len(self.shapes)))


def read_operands(
    equation: str, shapes_or_operands: tuple[Any, ...], dtype: DTypeLike | None
) -> Operands:
    """Read an equation and its operands, or their shapes."""
    if not isinstance(equation, str):  # the other form of numpy.einsum
        raise InvalidArgumentError(
            f"equation={reprlib.repr(equation)}. Accepted: a str such as 'ij,jk->ik'"
        )
    shapes = tuple(map(_shape, shapes_or_operands))
    parsed = parse_equation(equation, tuple(map(len, shapes)))
    kind = _dtype(shapes_or_operands) if dtype is None else numpy_dtype(dtype)
    return Operands(parsed, shapes, _letter_sizes(parsed, shapes), kind)


def _shape(operand: Any) -> Shape:
    if isinstance(operand, np.ndarray):
        return tuple(operand.shape)
    if isinstance(operand, int | float | complex):
        return ()
    shape = getattr(operand, "shape", operand)
    try:
        return tuple(map(_size, shape))
    except TypeError as cause:
        raise InvalidArgumentError(
            f"{operand!r} is neither an array nor a shape. Accepted in a shape: integers from 0"
        ) from cause


def _size(dimension: Any) -> int:
    size = operator.index(dimension)
    if size < 0:
        raise TypeError(f"{size} is negative")
    return size


def _dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    types = {numpy_dtype(kind) for kind in {x.dtype for x in operands if hasattr(x, "dtype")}}
    if len(types) > 1:
        names = ", ".join(sorted(kind.name for kind in types))
        raise InvalidArgumentError(f"Operands have several types: {names}. Accepted: one")
    return types.pop() if types else np.dtype(np.float32)


def _letter_sizes(equation: Equation, shapes: Sequence[Shape]) -> Sizes:
    """Find the size of every letter: a 1 is stretched to the size in other operands."""
    sizes: dict[str, int] = {}
    owned: list[dict[str, int]] = []
    for letters, shape, places in zip(equation.inputs, shapes, equation.places, strict=True):
        own: dict[str, int] = {}
        for letter, size, place in zip(letters, shape, places, strict=True):
            if own.setdefault(letter, size) != size:  # along a diagonal nothing is stretched
                raise _unequal(equation, letter, own[letter], size, place)
        for letter, size in own.items():
            known = sizes.get(letter, 1)
            if 1 not in {known, size} and known != size:
                raise _unequal(equation, letter, known, size, places[letters.index(letter)])
            sizes[letter] = size if known == 1 else known
        owned.append(own)
    return Sizes(
        sizes,
        tuple("".join(x for x, size in own.items() if size == 1 != sizes[x]) for own in owned),
    )


def _unequal(equation: Equation, letter: str, known: int, size: int, place: int) -> EinsumError:
    is_letter = letter in string.ascii_letters
    what = f"{letter!r}" if is_letter else "a dimension of '...'"
    return EinsumError(
        f"{what} has size {size} here, {known} before. Accepted: equal sizes, or 1 in another "
        "operand",
        equation.text,
        place,
        1 if is_letter else 3,
    )
