"""Choose the layouts of all the products of a path together: those that cost the least."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from ortmeter.einsum.cost import LAUNCH, product_seconds, spans_seconds, transpose_seconds
from ortmeter.einsum.parse import Operands, Sizes

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
    products: Sequence[tuple[int, int]],
    operands: Operands,
    *,
    order: str | None = None,
    elementwise: bool = False,
) -> dict[int, Layout]:
    """Choose by dynamic programming: each product keeps the best way to each order of its letters.

    Operands have numbers from 0, products from the number of operands; *order* imposes that of
    every letter, *elementwise* makes no product of matrices.
    """
    output, sizes = operands.equation.output, operands.sizes
    move, cost = _costs(sizes, operands.dtype.itemsize)
    live: dict[int, _Ways] = {i: {letters: _Way(0.0, {})} for i, letters in enumerate(inputs)}
    for number, (i, j) in enumerate(products, len(inputs)):
        lefts, rights = live.pop(i), live.pop(j)
        others = [letters for ways in live.values() for letters in ways]
        kept = frozenset(output).union(*others)
        # Products of matrices may refuse an empty operand.
        elements = elementwise or sizes.count(next(iter(lefts)) + next(iter(rights))) == 0
        ways: _Ways = {}
        for (left, first), (right, second) in product(lefts.items(), rights.items()):
            sources = (left, right, output, *others) if order is None else (order,)
            for layout, result in _choices(left, right, kept, sources, elements):
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
    weight, size = sizes.weight, sizes.weights.__getitem__

    def move(source: str, wanted: str, swapped: str = "", byte: float = 0.0) -> float:
        if source in {wanted, swapped}:
            return 0.0 if source == wanted else _SWAP + weight(source) * itemsize * byte
        places = tuple(map(source.index, wanted))
        return LAUNCH + transpose_seconds(tuple(map(size, source)), places, itemsize)

    def cost(layout: Layout, left: str, right: str) -> float:
        batch, rows, columns, summed, swapped, elements = layout
        if swapped:
            left, right = right, left
        if elements:
            moves = move(left, _sorted(set(left), batch)) + move(right, _sorted(set(right), batch))
            shapes = ([size(x) if x in y else 1 for x in batch] for y in (left, right))
            return moves + spans_seconds(*shapes)
        *shape, depth = map(weight, (batch, rows, columns, summed))
        return (
            move(left, batch + rows + summed, batch + summed + rows, _ABSORBED)
            + move(right, batch + summed + columns, batch + columns + summed)
            + product_seconds(shape, depth, itemsize)
        )

    return move, cost


@functools.lru_cache(4096)
def _choices(
    left: str, right: str, kept: frozenset[str], sources: tuple[str, ...], elements: bool
) -> list[tuple[Layout, str]]:
    """List the layouts of a product, whatever the sizes, and the letters of their results."""
    # With the same letters, these would be matrices of one element.
    if elements or kept.issuperset(left + right) or set(left) == set(right):
        layouts = _by_elements(left, right, sources)
    else:
        layouts = _by_matrices(left, right, kept, sources)
    return [(x, _sorted(kept, x.batch + x.rows + x.columns)) for x in layouts]


def _by_elements(left: str, right: str, sources: Sequence[str]) -> Iterator[Layout]:
    letters = set(left + right)
    orders = [dict.fromkeys(x for x in y + left + right if x in letters) for y in (*sources, right)]
    for known in dict.fromkeys(map("".join, orders)):
        yield Layout(known, elements=True)


def _by_matrices(
    left: str, right: str, kept: frozenset[str], sources: Sequence[str]
) -> Iterator[Layout]:
    shared = set(left) & set(right)
    groups = [shared & kept, set(left) - shared, set(right) - shared, shared - kept]
    sides = [False, True]
    # Where an order is imposed, a vector goes to either side.
    if len(sources) == 1 and groups[1] and groups[2]:
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


def _sorted(letters: Collection[str], order: str) -> str:
    return "".join(letter for letter in order if letter in letters)
