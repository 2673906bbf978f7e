"""Read an equation: one letter per dimension of every operand and of the result."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ortmeter.einsum.errors import EinsumError

__all__ = ["Equation", "parse_equation"]

_ITEM = re.compile(r"\.\.\.|->|[A-Za-z,]")
_ELLIPSIS = "..."


@dataclass(frozen=True)
class Equation:
    """An equation whose ellipsis and implicit result are spelled out.

    Parameters
    ----------
    text : str
        The equation as it was given.
    inputs : tuple of str
        Letters of each operand, one per dimension. The dimensions of an ellipsis are ``0``, ``1``,
        ... from left to right; those of an operand that has fewer are the last ones.
    output : str
        Letters of the result.
    places : tuple of tuple of int
        Position in *text* of each letter of *inputs*, for the messages.
    """

    text: str
    inputs: tuple[str, ...]
    output: str
    places: tuple[tuple[int, ...], ...]

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


def parse_equation(equation: str, ranks: Sequence[int | None]) -> Equation:
    """Read an equation.

    Parameters
    ----------
    equation : str
        What :func:`numpy.einsum` accepts: letters, ``...``, spaces, with ``->`` or without.
    ranks : sequence of int or None
        Number of dimensions of each operand; None when it is not known, which an ellipsis needs.

    Returns
    -------
    Equation
        The same equation, explicit.

    Raises
    ------
    EinsumError
        The equation is not valid, or has not the right number of operands or of letters.

    Examples
    --------
    >>> print(parse_equation("...ij, ...jk", [3, 2]))
    0ij,jk->0ik
    """
    terms, result = _split(equation)
    if len(terms) != len(ranks):
        raise EinsumError(
            f"the equation has {len(terms)} operands, {len(ranks)} were given",
            equation,
            terms[0].start,
            terms[-1].end - terms[0].start,
        )
    for term in (*terms, *([] if result is None else [result])):
        _check_one_ellipsis(equation, term)
    hidden = [_hidden_rank(equation, *pair) for pair in zip(terms, ranks, strict=True)]
    broadcast = _names(max(hidden))
    spelled = [
        _spell(term, broadcast[len(broadcast) - rank :])
        for term, rank in zip(terms, hidden, strict=True)
    ]
    inputs = tuple("".join(letter for letter, _ in places) for places in spelled)
    return Equation(
        equation,
        inputs,
        _output(equation, terms, result, broadcast),
        tuple(tuple(place for _, place in places) for places in spelled),
    )


def _split(equation: str) -> tuple[list[_Term], _Term | None]:
    """Cut an equation into its operands and its result, None when it is implicit."""
    terms: list[_Term] = []
    items: list[tuple[str, int]] = []
    position = start = 0
    arrow = None
    while position < len(equation):
        if equation[position] == " ":
            position += 1
            continue
        match = _ITEM.match(equation, position)
        item = match[0] if match else equation[position]
        if match is None or (arrow is not None and item in {",", "->"}):
            raise EinsumError(_refusal(item, arrow), equation, position)
        if item in {",", "->"}:
            terms.append(_Term(start, position, tuple(items)))
            items, start = [], position + len(item)
            arrow = position if item == "->" else arrow
        else:
            items.append((item, position))
        position += len(item)
    last = _Term(start, position, tuple(items))
    return ([*terms, last], None) if arrow is None else (terms, last)


def _refusal(item: str, arrow: int | None) -> str:
    if arrow is not None and item in {",", "->"}:
        return f"{item!r} comes after '->', where only the letters of the result are accepted"
    return f"{item!r} is not accepted. Accepted: letters a to z and A to Z, ',', '->' and '...'"


def _check_one_ellipsis(equation: str, term: _Term) -> None:
    places = [place for item, place in term.items if item == _ELLIPSIS]
    if len(places) > 1:
        raise EinsumError(
            "a second '...' in the same operand. Accepted: one", equation, places[1], 3
        )


def _hidden_rank(equation: str, term: _Term, rank: int | None) -> int:
    """Count the dimensions that the ellipsis of an operand stands for."""
    width = term.end - term.start
    if rank is None:
        if not term.has_ellipsis:
            return 0
        raise EinsumError(
            "the shape of this operand is needed to know how many dimensions '...' stands for",
            equation,
            term.start,
            width,
        )
    letters = len(term.letters)
    if rank < letters or (rank > letters and not term.has_ellipsis):
        raise EinsumError(
            f"this operand has {letters} letters{' or more' if term.has_ellipsis else ''}, its "
            f"array has {rank} dimensions",
            equation,
            term.start,
            width,
        )
    return rank - letters


def _names(count: int) -> str:
    """Name the dimensions of an ellipsis: no letter of an equation is a digit."""
    return "".join(str(i) if i < 10 else chr(0x100 + i) for i in range(count))  # noqa: PLR2004


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
