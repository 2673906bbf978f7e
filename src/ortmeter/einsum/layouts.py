"""Choose the layouts of all the products of a path together: those that cost the least."""

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from ortmeter.einsum.cost import LAUNCH, product_seconds, spans_seconds, transpose_seconds
from ortmeter.einsum.parse import Sizes

# A product may read an operand whose rows and columns are swapped. It costs nothing for the second
# operand, which is packed anyway, and so many seconds per byte for the first one.
_SWAP, _ABSORBED = 1e-7, 4e-11
_WAYS = 8  # orders that a product keeps


class Layout(NamedTuple):
    """Letters of a product: batch + rows + summed, by batch + summed + columns; order is free.

    A product of elements has all its letters in *batch*, and sums some of them afterwards.
    """

    batch: str
    rows: str = ""
    columns: str = ""
    summed: str = ""
    swapped: bool = False  # the rows come from the second operand
    elements: bool = False


class _Way(NamedTuple):
    """A way to compute a tensor in an order of its letters."""

    seconds: float
    layouts: dict[int, Layout]  # by number of product


_Ways: TypeAlias = dict[str, _Way]


def choose_layouts(
    inputs: Sequence[str],
    output: str,
    products: Sequence[tuple[int, int]],
    sizes: Sizes,
    *,
    itemsize: int,
    order: str | None = None,
    elementwise: bool = False,
) -> dict[int, Layout]:
    """Choose by dynamic programming: each product keeps the best way to each order of its letters.

    Operands have numbers from 0, products from the number of operands; *order* imposes that of
    every letter, *elementwise* makes no product of matrices.
    """
    move, cost = _costs(sizes, itemsize)
    live: dict[int, _Ways] = {i: {letters: _Way(0.0, {})} for i, letters in enumerate(inputs)}
    for number, (i, j) in enumerate(products, len(inputs)):
        lefts, rights = live.pop(i), live.pop(j)
        others = [letters for ways in live.values() for letters in ways]
        kept = set(output).union(*others)
        letters = set(next(iter(lefts)) + next(iter(rights)))
        empty = sizes.count("".join(letters)) == 0  # products of matrices may refuse it
        ways: _Ways = {}
        for (left, first), (right, second) in product(lefts.items(), rights.items()):
            sources = [left, right, output, *others] if order is None else [order]
            # With the same letters, these would be matrices of one element.
            if letters <= kept or set(left) == set(right) or empty or elementwise:
                choices = _by_elements(left, right, sources)
            else:
                choices = _by_matrices(left, right, kept, sources, imposed=order is not None)
            for layout in choices:
                result = _sorted(kept, layout.batch + layout.rows + layout.columns)
                seconds = first.seconds + second.seconds + cost(layout, left, right)
                if result not in ways or seconds < ways[result].seconds:
                    chosen = {**first.layouts, **second.layouts, number: layout}
                    ways[result] = _Way(seconds, chosen)
        live[number] = dict(sorted(ways.items(), key=lambda item: item[1].seconds)[:_WAYS])
    (ways,) = live.values()
    last = min(ways, key=lambda letters: ways[letters].seconds + move(letters, output))
    return ways[last].layouts


def _costs(
    sizes: Sizes, itemsize: int
) -> tuple[Callable[[str, str], float], Callable[[Layout, str, str], float]]:
    """Return the functions that estimate the seconds of a move, and of a product with its moves."""
    weight = sizes.weight

    @functools.cache
    def move(source: str, wanted: str, swapped: str = "", byte: float = 0.0) -> float:
        if source in {wanted, swapped}:
            return 0.0 if source == wanted else _SWAP + weight(source) * itemsize * byte
        places = [source.index(letter) for letter in wanted]
        return LAUNCH + transpose_seconds([*map(weight, source)], places, itemsize)

    @functools.cache
    def matrices(batch: frozenset[str], *sides: frozenset[str]) -> float:
        *output, depth = map(weight, (batch, *sides))
        return product_seconds(output, depth, itemsize)

    def cost(layout: Layout, left: str, right: str) -> float:
        batch, rows, columns, summed, swapped, elements = layout
        if swapped:
            left, right = right, left
        if elements:
            moves = move(left, _sorted(set(left), batch)) + move(right, _sorted(set(right), batch))
            shapes = ([weight(x) if x in y else 1 for x in batch] for y in (left, right))
            return moves + spans_seconds(*shapes)
        return (
            move(left, batch + rows + summed, batch + summed + rows, _ABSORBED)
            + move(right, batch + summed + columns, batch + columns + summed)
            + matrices(*map(frozenset, (batch, rows, columns, summed)))
        )

    return move, cost


def _by_elements(left: str, right: str, sources: Sequence[str]) -> Iterator[Layout]:
    letters = set(left + right)
    orders = [dict.fromkeys(x for x in y + left + right if x in letters) for y in (*sources, right)]
    for known in dict.fromkeys(map("".join, orders)):
        yield Layout(known, elements=True)


def _by_matrices(
    left: str, right: str, kept: set[str], sources: Sequence[str], *, imposed: bool
) -> Iterator[Layout]:
    shared = set(left) & set(right)
    groups = [shared & kept, set(left) - shared, set(right) - shared, shared - kept]
    sides = [False, True]
    if imposed and groups[1] and groups[2]:  # a vector goes to either side
        # The operand whose own letters come first gives the rows.
        sides = [_sorted(groups[1] | groups[2], sources[0])[0] in groups[2]]
    choices = [
        dict.fromkeys(_sorted(group, source) for source in sources if group <= set(source))
        for group in groups
    ]
    for swapped in sides:
        for batch, own, other, summed in product(*choices):
            rows, columns = (other, own) if swapped else (own, other)
            yield Layout(batch, rows, columns, summed, swapped)


def _sorted(letters: set[str], order: str) -> str:
    return "".join(letter for letter in order if letter in letters)
