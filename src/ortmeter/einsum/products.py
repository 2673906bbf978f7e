"""Multiply two operands: as matrices when letters are summed, else element by element."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

from ortmeter.einsum.parse import Axes
from ortmeter.einsum.steps import StepBuilder, Tensor

#: Order that a product must have afterwards: three groups of letters, the last two of which may be
#: exchanged as those of a matrix.
Target: TypeAlias = tuple[str, str, str]

# Weights of the moves, per element: a transpose that keeps the last letter copies runs of elements,
# others read or write with a stride; runtimes absorb into the product the one that swaps the rows
# and the columns of a matrix.
_RUNS, _STRIDES, _ABSORBED = 1.0, 1.5, 0.25


def multiply(
    builder: StepBuilder,
    left: Tensor,
    right: Tensor,
    kept: set[str],
    *,
    target: Target | None,
    order: str | None,
    elementwise: bool = False,
) -> Tensor:
    """Multiply two operands, one letter per axis, and sum the letters that nothing needs any more.

    *target* suits what follows; *order* is that of every letter, when it is imposed.
    """
    sizes, letters = builder.sizes, set(left.letters + right.letters)
    alike = set(left.letters) == set(right.letters)  # matrices of one element, one by one
    empty = sizes.count("".join(sorted(letters))) == 0  # products of matrices may refuse it
    if letters <= kept or alike or empty or elementwise:
        wanted = target if letters <= kept else None
        return builder.reduce_sum(
            _multiply_elements(builder, left, right, wanted, order), letters - kept
        )
    layout = _choose_layout(
        left.letters, right.letters, kept, weigh=sizes.weight, target=target, order=order
    )
    return _multiply_matrices(builder, left, right, layout)


class _Layout(NamedTuple):
    """Letters of a product: batch + rows + summed, by batch + summed + columns; order is free."""

    swapped: bool  # the rows come from the second operand
    batch: str
    rows: str
    columns: str
    summed: str


def _multiply_matrices(
    builder: StepBuilder, left: Tensor, right: Tensor, layout: _Layout
) -> Tensor:
    swapped, batch, merged_rows, columns, summed = layout
    if swapped:
        left, right = right, left
    # Without a batch, the rows need not be merged. A vector is a matrix with one row or column:
    # ONNX Runtime 1.31 multiplies a matrix by a tensor of one dimension 30 times slower, and
    # wrongly when it absorbs the transpose of the matrix or when nothing is summed.
    rows = tuple(merged_rows) if merged_rows and not batch else (merged_rows,)
    left = _matrix(builder, left, batch, rows, (summed,))
    right = _matrix(builder, right, batch, (summed,), (columns,))
    result = builder.matmul(left, right, (*left.axes[:-1], columns))
    return builder.reshape(result, tuple(batch + merged_rows + columns))


def _matrix(builder: StepBuilder, tensor: Tensor, batch: str, rows: Axes, columns: Axes) -> Tensor:
    """Move the axes of a tensor to ``batch + rows + columns``."""
    above, beside = "".join(rows), "".join(columns)
    if above and beside and tensor.letters == batch + beside + above:
        # Merged first, what remains is to swap the two sides of a matrix.
        tensor = builder.reshape(tensor, (*batch, beside, above))
        return builder.transpose(tensor, (*batch, above, beside))
    tensor = builder.transpose(tensor, tuple(batch + above + beside))
    return builder.reshape(tensor, (*batch, *rows, *columns))


def _choose_layout(
    left: str,
    right: str,
    kept: set[str],
    *,
    weigh: Callable[[str], int],
    target: Target | None,
    order: str | None,
) -> _Layout:
    """Choose the cheapest layout, the first one among equals."""

    def cost(layout: _Layout) -> float:
        swapped, batch, rows, columns, summed = layout
        first, second = (right, left) if swapped else (left, right)
        moved = weigh(first) * _effort(first, batch, rows, summed)
        moved += weigh(second) * _effort(second, batch, summed, columns)
        if target is not None:
            moved += weigh("".join(target)) * _effort(batch + rows + columns, *target)
        return moved

    return min(_layouts(left, right, kept, target, order), key=cost)


def _layouts(
    left: str, right: str, kept: set[str], target: Target | None, order: str | None
) -> Iterator[_Layout]:
    shared = set(left) & set(right)
    groups = [shared & kept, set(left) - shared, set(right) - shared, shared - kept]
    sources = [left, right, *([] if target is None else ["".join(target)])]
    sides = [False, True]
    if order is not None:
        sources = [order]
        first = _sorted(set(left) ^ set(right), order)[:1]
        # The operand whose own letters come first gives the rows; a vector goes to either side.
        sides = [first in groups[2]] if groups[1] and groups[2] else sides
    choices = [
        list(dict.fromkeys(_sorted(group, s) for s in sources if group <= set(s)))
        for group in groups
    ]
    for swapped in sides:
        for batch, own, other, summed in product(*choices):
            rows, columns = (other, own) if swapped else (own, other)
            yield _Layout(swapped, batch, rows, columns, summed)


def _multiply_elements(
    builder: StepBuilder, left: Tensor, right: Tensor, target: Target | None, order: str | None
) -> Tensor:
    letters = order or _choose_order(left.letters, right.letters, builder.sizes.weight, target)
    left, right = (
        builder.transpose(tensor, tuple(x for x in letters if x in tensor.axes))
        for tensor in (left, right)
    )
    return builder.mul(left, right, _sorted({*left.axes, *right.axes}, letters))


def _choose_order(left: str, right: str, weigh: Callable[[str], int], target: Target | None) -> str:
    def cost(result: str) -> float:
        moved = sum(
            weigh(letters) * _effort(letters, _sorted(set(letters), result), "", "")
            for letters in (left, right)
        )
        if target is not None:
            moved += weigh("".join(target)) * _effort(result, *target)
        return moved

    both = ["".join(dict.fromkeys(letters)) for letters in (left + right, right + left)]
    return min([*both, *([] if target is None else ["".join(target)])], key=cost)


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
