"""Order of the letters around a product of two operands, with as few moves as possible.

A product of matrices reads ``batch + rows + summed`` and ``batch + summed + columns``, and writes
``batch + rows + columns``. The order inside each group and the operand that gives the rows are
free: those that move the fewest elements are chosen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

__all__ = ["Layout", "Target", "choose_layout", "choose_order"]

Target: TypeAlias = tuple[str, str, str]

# Weights of the moves, per element: a transpose that keeps the last letter copies runs of elements,
# others read or write with a stride; runtimes absorb into the product the one that swaps the rows
# and the columns of a matrix.
_RUNS, _STRIDES, _ABSORBED = 1.0, 1.5, 0.25


@dataclass(frozen=True)
class Layout:
    """Letters of a product of matrices.

    Parameters
    ----------
    swapped : bool
        The rows come from the second operand.
    batch : str
        Letters of both operands and of the result.
    rows, columns : str
        Letters of one operand and of the result.
    summed : str
        Letters of both operands that the result has not.
    """

    swapped: bool
    batch: str
    rows: str
    columns: str
    summed: str

    @property
    def result(self) -> str:
        """Letters of the result, in order."""
        return self.batch + self.rows + self.columns


def choose_layout(
    left: str,
    right: str,
    kept: set[str],
    *,
    weigh: Callable[[str], int],
    target: Target | None = None,
    order: str | None = None,
) -> Layout:
    """Choose the layout of a product of matrices.

    Parameters
    ----------
    left, right : str
        Letters of the operands.
    kept : set of str
        Letters that the result keeps.
    weigh : callable
        Elements of a tensor, from its letters.
    target : tuple of str, optional
        Order that the result must have afterwards, when it is known: three groups of letters, the
        last two of which may be exchanged as those of a matrix.
    order : str, optional
        Every letter, in the order that each group must follow; the operand whose own letters come
        first gives the rows.

    Returns
    -------
    Layout
        The cheapest layout; the first one among equals.
    """

    def cost(layout: Layout) -> float:
        first, second = (right, left) if layout.swapped else (left, right)
        batch, rows, columns, summed = layout.batch, layout.rows, layout.columns, layout.summed
        moved = weigh(first) * _effort(first, batch, rows, summed)
        moved += weigh(second) * _effort(second, batch, summed, columns)
        if target is not None:
            moved += weigh("".join(target)) * _effort(layout.result, *target)
        return moved

    return min(_layouts(left, right, kept, target, order), key=cost)


def choose_order(
    left: str,
    right: str,
    *,
    weigh: Callable[[str], int],
    target: Target | None = None,
    order: str | None = None,
) -> str:
    """Choose the order of the letters of a product element by element.

    Parameters
    ----------
    left, right, weigh, target, order
        As in :func:`choose_layout`; every letter is kept.

    Returns
    -------
    str
        Letters of the result.
    """
    if order is not None:
        return _sorted(set(left + right), order)

    def cost(result: str) -> float:
        moved = sum(
            weigh(letters) * _effort(letters, _sorted(set(letters), result), "", "")
            for letters in (left, right)
        )
        if target is not None:
            moved += weigh("".join(target)) * _effort(result, *target)
        return moved

    both = [left + _without(right, left), right + _without(left, right)]
    return min([*both, *([] if target is None else ["".join(target)])], key=cost)


def _layouts(
    left: str, right: str, kept: set[str], target: Target | None, order: str | None
) -> Iterator[Layout]:
    shared = {letter for letter in left if letter in right}
    groups = [shared & kept, set(left) - shared, set(right) - shared, shared - kept]
    if order is not None:
        batch, rows, columns, summed = (_sorted(group, order) for group in groups)
        first = _sorted({*rows, *columns}, order)[:1]
        # A vector goes to either side.
        sides = [first in set(columns)] if rows and columns else [False, True]
        for swapped in sides:
            yield _layout(swapped, batch, rows, columns, summed)
        return
    sources = [left, right, *([] if target is None else ["".join(target)])]
    choices = [
        list(dict.fromkeys(_sorted(group, s) for s in sources if group <= set(s)))
        for group in groups
    ]
    for swapped in (False, True):
        for batch, rows, columns, summed in product(*choices):
            yield _layout(swapped, batch, rows, columns, summed)


def _layout(swapped: bool, batch: str, left: str, right: str, summed: str) -> Layout:
    rows, columns = (right, left) if swapped else (left, right)
    return Layout(swapped, batch, rows, columns, summed)


def _effort(source: str, batch: str, rows: str, columns: str) -> float:
    """Weigh the move of a tensor to ``batch + rows + columns``, per element."""
    wanted = batch + rows + columns
    if source == wanted:
        return 0.0
    if rows and columns and source == batch + columns + rows:
        return _ABSORBED
    return _RUNS if source[-1] == wanted[-1] else _STRIDES


def _sorted(letters: set[str], order: str) -> str:
    return "".join(letter for letter in order if letter in letters)


def _without(letters: str, others: str) -> str:
    return "".join(letter for letter in letters if letter not in others)
