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

Dim: TypeAlias = int | str | None
Shape: TypeAlias = tuple[Dim, ...]
#: Each axis of a tensor is the letters that were merged into it; none has size 1.
Axes: TypeAlias = tuple[str, ...]

_ITEM = re.compile(r" +|\.\.\.|->|[A-Za-z,]|(?P<wrong>.)", re.DOTALL)
_ELLIPSIS = "..."
# What stands for an unknown size where orders of magnitude are compared.
_TYPICAL = 16


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

    def error(self, message: str) -> EinsumError:
        """Make an error about the whole equation."""
        return EinsumError(message, self.text, length=len(self.text))

    def with_letters(self) -> str:
        """The explicit equation, where letters that are free name the dimensions of an ellipsis.

        When there are not enough letters, the others stay as they are.
        """
        text = str(self)
        free = (letter for letter in string.ascii_letters if letter not in text)
        hidden = sorted({x for x in text if x not in string.ascii_letters + ",->"})
        return text.translate({ord(x): letter for x, letter in zip(hidden, free, strict=False)})


@functools.lru_cache(1024)
def parse_equation(equation: str, ranks: tuple[int | None, ...]) -> Equation:
    """Read what :func:`numpy.einsum` accepts; a rank is None where no ellipsis needs it."""
    terms, result = _split(equation)
    if len(terms) != len(ranks):
        raise EinsumError(
            f"the equation has {len(terms)} operands, {len(ranks)} were given",
            equation,
            terms[0].start,
            terms[-1].end - terms[0].start,
        )
    hidden = list(map(_hidden_rank, terms, ranks))
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


@dataclass
class _Term:
    """Tokens of an operand or of the result, and where they are."""

    equation: str
    start: int
    end: int
    items: list[tuple[str, int]] = field(default_factory=list)

    @property
    def letters(self) -> list[str]:
        return [item for item, _ in self.items if item != _ELLIPSIS]

    @property
    def has_ellipsis(self) -> bool:
        return len(self.letters) < len(self.items)

    def error(self, message: str) -> EinsumError:
        """Make an error about all the tokens."""
        return EinsumError(message, self.equation, self.start, self.end - self.start)


def _split(equation: str) -> tuple[list[_Term], _Term | None]:
    """Cut an equation into its operands and its result, None when it is implicit."""
    terms, arrow = [_Term(equation, 0, len(equation))], False
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
            terms[-1].end, arrow = position, item == "->"
            terms.append(_Term(equation, match.end(), len(equation)))
        elif item.strip():
            if item == _ELLIPSIS and terms[-1].has_ellipsis:
                message = "a second '...' in the same operand. Accepted: one"
                raise EinsumError(message, equation, position, len(item))
            terms[-1].items.append((item, position))
    return (terms[:-1], terms[-1]) if arrow else (terms, None)


def _hidden_rank(term: _Term, rank: int | None) -> int:
    """Count the dimensions that the ellipsis of an operand stands for."""
    if rank is None:
        if not term.has_ellipsis:
            return 0
        raise term.error(
            "the shape of this operand is needed to know how many dimensions '...' stands for"
        )
    letters = len(term.letters)
    if rank < letters or (rank > letters and not term.has_ellipsis):
        raise term.error(
            f"this operand has {letters} letters{' or more' if term.has_ellipsis else ''}, its "
            f"array has {rank} dimensions"
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
        raise result.error(
            f"'...' stands for {len(broadcast)} of the dimensions, the result needs it"
        )
    return "".join(letter for letter, _ in _spell(result, broadcast))


@dataclass(frozen=True)
class Operands:
    """What an equation is applied to: shapes of the operands, and their type.

    The size of every letter, and for each operand the letters along which its 1 is stretched,
    follow from the shapes.
    """

    equation: Equation
    shapes: tuple[Shape, ...]
    dtype: np.dtype[Any]
    size_of: Mapping[str, Dim] = field(compare=False)
    stretched: tuple[str, ...] = field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"X{i}" for i in range(len(self.shapes)))

    @property
    def is_empty(self) -> bool:
        """Whether a size is known to be 0."""
        return 0 in self.size_of.values()

    @functools.cached_property
    def weights(self) -> dict[str, int]:
        """Sizes of the letters, those that are not known being typical ones."""
        return {x: y if isinstance(y, int) else _TYPICAL for x, y in self.size_of.items()}

    @functools.cached_property
    def _unknown(self) -> set[str]:
        return {letter for letter, size in self.size_of.items() if not isinstance(size, int)}

    def shape(self, axes: Axes) -> Shape:
        return tuple(self.size_of[x] if len(x) == 1 else self.count(x) for x in axes)

    def count(self, letters: str) -> int | None:
        """Elements of a tensor with these letters, None when a size is not known."""
        if self._unknown.isdisjoint(letters):
            return self.weight(letters)
        return 0 if 0 in {self.size_of[letter] for letter in letters} else None

    def weight(self, letters: Iterable[str]) -> int:
        """Elements of a tensor with these letters, sizes that are not known being typical ones."""
        return math.prod(map(self.weights.__getitem__, letters))


def read_operands(
    equation: str, shapes_or_operands: tuple[Any, ...], dtype: DTypeLike | None
) -> Operands:
    """Read an equation and its operands; without any, their ranks are those of the equation."""
    require_text(equation)
    given = shapes_or_operands or (None,) * (equation.count(",") + 1)
    shapes = [_shape(operand) for operand in given]
    parsed = parse_equation(equation, tuple(None if s is None else len(s) for s in shapes))
    known = tuple(
        (None,) * len(letters) if shape is None else shape
        for letters, shape in zip(parsed.inputs, shapes, strict=True)
    )
    kind = _dtype(given) if dtype is None else numpy_dtype(dtype)
    return Operands(parsed, known, kind, *_letter_sizes(parsed, known))


def require_text(equation: object) -> None:
    """Refuse the other form of :func:`numpy.einsum`, a list of subscripts after each operand."""
    if not isinstance(equation, str):
        raise InvalidArgumentError(
            f"equation={reprlib.repr(equation)}. Accepted: a str such as 'ij,jk->ik'"
        )


def _shape(operand: Any) -> Shape | None:
    if operand is None:
        return None
    if isinstance(operand, np.ndarray):
        return tuple(operand.shape)
    if isinstance(operand, int | float | complex):
        return ()
    shape = getattr(operand, "shape", operand)
    try:
        if isinstance(shape, str):
            raise TypeError("a name is not a shape")
        return tuple(d if d is None or isinstance(d, str) else _size(d) for d in shape)
    except TypeError as cause:
        raise InvalidArgumentError(
            f"{operand!r} is neither an array nor a shape. Accepted in a shape: integers from 0, "
            "names, None"
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


def _letter_sizes(
    equation: Equation, shapes: Sequence[Shape]
) -> tuple[dict[str, Dim], tuple[str, ...]]:
    """Find the size of every letter: known sizes win over symbolic ones, those over unknown ones.

    Sizes that are not known are supposed to be equal: only a known 1 is stretched, along letters
    that are returned for each operand.
    """
    sizes: dict[str, Dim] = {}
    owned: list[dict[str, Dim]] = []
    for letters, shape, places in zip(equation.inputs, shapes, equation.places, strict=True):
        own: dict[str, Dim] = {}
        for letter, size, place in zip(letters, shape, places, strict=True):
            # Along a diagonal nothing is stretched.
            known = own.get(letter, size)
            own[letter] = known if known == size else _unify(equation, letter, known, size, place)
        for letter, size in own.items():
            known = sizes.get(letter, size)
            if known in {1, size}:
                sizes[letter] = size
            elif size != 1:
                place = places[letters.index(letter)]
                sizes[letter] = _unify(equation, letter, known, size, place)
        owned.append(own)
    return sizes, tuple(
        "".join(x for x, size in own.items() if size == 1 != sizes[x]) for own in owned
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
