"""Decompose an equation into steps: choose the layouts of its products, then write them."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import onnx

from ortmeter.dtypes import DTypeLike
from ortmeter.einsum.cost import LAUNCH, product_seconds, spans_seconds, transpose_seconds
from ortmeter.einsum.emit import emit_model
from ortmeter.einsum.parse import Axes, EinsumError, Equation, Operands, read_operands
from ortmeter.einsum.steps import Step, StepBuilder, Tensor, with_sizes

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
    output = operands.equation.output
    move, cost = _costs(operands)
    live: dict[int, _Ways] = {i: {letters: _Way(0.0, {})} for i, letters in enumerate(inputs)}
    for number, (i, j) in enumerate(products, len(inputs)):
        lefts, rights = live.pop(i), live.pop(j)
        others = [letters for ways in live.values() for letters in ways]
        kept = frozenset(output).union(*others)
        # Products of matrices may refuse an empty operand.
        elements = elementwise or operands.count(next(iter(lefts)) + next(iter(rights))) == 0
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
    operands: Operands,
) -> tuple[Callable[[str, str], float], Callable[[Layout, str, str], float]]:
    """Return the functions that estimate the seconds of a move, and of a product with its moves."""
    count, size = operands.count, operands.size_of.__getitem__
    itemsize = operands.dtype.itemsize

    def move(source: str, wanted: str, swapped: str = "", byte: float = 0.0) -> float:
        if source in {wanted, swapped}:
            return 0.0 if source == wanted else _SWAP + count(source) * itemsize * byte
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
        *shape, depth = map(count, (batch, rows, columns, summed))
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


_KEPT = 1024  # plans, and steps of equations whatever their sizes


@dataclass(frozen=True)
class EinsumPlan:
    """Steps that compute an equation, see :func:`~ortmeter.einsum.decompose_einsum`.

    Parameters
    ----------
    operands : Operands
        The equation, explicit, the shapes of its operands and their type.
    steps : tuple of Step
        Steps, in order. The operands are ``X0``, ``X1``, ...; the result of the last step is ``Y``.
        Without steps, the result is the operand.
    """

    operands: Operands
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def equation(self) -> str:
        """The equation."""
        return self.operands.equation.text

    @property
    def flop(self) -> int | None:
        """Number of operations, None if a size is free."""
        return _total([step.flop for step in self.steps])

    @property
    def bytes_moved(self) -> int | None:
        """Bytes read and written by all the steps, None if a size is free."""
        return _total([step.bytes_moved for step in self.steps])

    def to_onnx(self, *, contrib: bool = False) -> onnx.ModelProto:
        """Make the model that executes the steps.

        Parameters
        ----------
        contrib : bool
            Fuse transposes and products into ``com.microsoft.FusedMatMul``, which only ONNX Runtime
            supports.

        Returns
        -------
        onnx.ModelProto
            A checked model at opset 18, with the inputs ``X0``, ``X1``, ... and the output ``Y``.
            The same plan gives the same model.

        Examples
        --------
        >>> from ortmeter.einsum import decompose_einsum
        >>> model = decompose_einsum("bij,bkj->bki", (2, 3, 4), (2, 5, 4)).to_onnx()
        >>> [node.op_type for node in model.graph.node]
        ['Transpose', 'MatMul']
        """
        return emit_model(self.operands, self.steps, contrib=contrib)


def decompose_einsum(
    equation: str,
    *shapes_or_operands: Any,
    order: str | None = None,
    dtype: DTypeLike | None = None,
) -> EinsumPlan:
    """Decompose an equation into matrix products, transposes and reshapes.

    Parameters
    ----------
    equation : str
        Equation, as in :func:`numpy.einsum`.
    *shapes_or_operands : tuple or array
        Shape of each operand, or the operand. A dimension is an int, or a name or None if the model
        leaves it free. Without shapes, all the dimensions are free.
    order : str, optional
        Order of all the letters of the equation inside the products; the dimensions of an ellipsis
        have letters that it lacks, which ``str(plan.operands.equation)`` shows. By default, each
        product has the order that moves the fewest elements.
    dtype : dtype, optional
        Type of the elements, see :mod:`ortmeter.dtypes`, by default that of the operands, or
        float32 for shapes.

    Returns
    -------
    EinsumPlan
        The steps, their cost, and the ONNX model that does the same.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands, or it sums or multiplies another
        type than float16, float32 and float64: those are what ONNX Runtime computes as NumPy does.
    InvalidArgumentError
        A shape or *order* does not match the equation, or the operands have different types.

    Notes
    -----
    Free sizes of a letter are assumed to be equal, and to be 16 when orders are compared. An
    operand is broadcast along a dimension only if its size is known to be 1. To choose the order
    by time, search at typical sizes with :func:`~ortmeter.einsum.optimize_einsum`.

    A size of 0 that is summed must be known: ONNX Runtime 1.31 fuses the transpose of a batch of
    matrices into their product, and then does not write the result.

    Examples
    --------
    >>> plan = decompose_einsum("bij,bkj->bik", (2, 3, 4), (2, 5, 4))
    >>> [step.subscripts for step in plan.steps]
    ['bkj->bjk', 'bij,bjk->bik']
    >>> plan.flop
    240
    >>> free = decompose_einsum("bsnh,nhd->bsd", ("batch", None, 12, 64), (12, 64, 768))
    >>> free.steps[-1].shape
    ('batch', 's', 768)
    """
    return make_plan(read_operands(equation, shapes_or_operands, dtype), order=order)


@functools.lru_cache(_KEPT)
def make_plan(
    operands: Operands,
    *,
    order: str | None = None,
    path: tuple[tuple[int, ...], ...] | None = None,
    elementwise: bool = False,
) -> EinsumPlan:
    """Plan an equation that was read; *elementwise* makes no product of matrices.

    *path* has the positions of the operands to multiply at each step: they are removed from the
    list and their product is appended, as in :func:`numpy.einsum_path`.
    """
    parsed, stretched = operands.equation, operands.stretched
    letters = "".join(sorted(set().union(*parsed.inputs)))
    if order is not None and sorted(order) != list(letters):
        raise EinsumError(
            f"order={order!r} is not a permutation of its letters, {letters!r}", parsed.text
        )
    inputs = _prepared_letters(parsed, stretched)
    products = _list_products(path or _find_path(inputs, operands), len(inputs))
    layouts = choose_layouts(inputs, products, operands, order=order, elementwise=elementwise)
    steps = _build_steps(parsed, stretched, products, tuple(layouts.items()))
    return EinsumPlan(operands, tuple(with_sizes(step, operands) for step in steps))


@functools.lru_cache(_KEPT)
def _prepared_letters(equation: Equation, stretched: Sequence[str]) -> tuple[str, ...]:
    return tuple(tensor.letters for tensor in _prepare(StepBuilder(stretched), equation))


@functools.lru_cache(_KEPT)
def _build_steps(
    equation: Equation,
    stretched: Sequence[str],
    products: Sequence[tuple[int, int]],
    layouts: Sequence[tuple[int, Layout]],
) -> tuple[Step, ...]:
    """Write the steps of layouts, which are the same for all sizes."""
    builder = StepBuilder(stretched)
    live, chosen = dict(enumerate(_prepare(builder, equation))), dict(layouts)
    for number, (i, j) in enumerate(products, len(live)):
        left, right = live.pop(i), live.pop(j)
        kept = set(equation.output).union(*(tensor.letters for tensor in live.values()))
        live[number] = _multiply(builder, left, right, kept, chosen[number])
    (result,) = live.values()
    return builder.finish(builder.transpose(result, tuple(equation.output)))


def _prepare(builder: StepBuilder, equation: Equation) -> list[Tensor]:
    """Leave in every operand each letter once, and only letters that are needed later."""
    tensors = []
    for index, letters in enumerate(equation.inputs):
        tensor = builder.operand(index, letters)
        for letter in dict.fromkeys(tensor.letters):
            for _ in range(tensor.letters.count(letter) - 1):
                tensor = builder.diagonal(tensor, letter)
        tensors.append(builder.reshape(tensor, tuple(tensor.letters)))
    for i, tensor in enumerate(tensors):
        others = (other.letters for other in (*tensors[:i], *tensors[i + 1 :]))
        tensors[i] = builder.reduce_sum(
            tensor, set(tensor.letters).difference(equation.output, *others)
        )
    return tensors


def _find_path(inputs: Sequence[str], operands: Operands) -> Sequence[Sequence[int]]:
    """Find in which order to multiply operands, as opt_einsum does."""
    if len(inputs) <= 2:  # noqa: PLR2004 - there is nothing to choose
        return [tuple(range(len(inputs)))]
    from opt_einsum.paths import auto

    output = frozenset(operands.equation.output)
    return [*auto([frozenset(letters) for letters in inputs], output, operands.size_of)]


def _list_products(path: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, int], ...]:
    """List the pairs that a path multiplies: operands have numbers from 0, results from *count*."""
    products: list[tuple[int, int]] = []
    numbers = list(range(count))
    for group in path:
        first, *others = (numbers[i] for i in group)
        numbers = [number for i, number in enumerate(numbers) if i not in group]
        for other in others:
            products.append((first, other))
            first = count + len(products) - 1
        numbers.append(first)
    return tuple(products)


def _multiply(
    builder: StepBuilder, left: Tensor, right: Tensor, kept: set[str], layout: Layout
) -> Tensor:
    """Multiply two operands, one letter per axis, then sum the letters that nothing else needs."""
    if not layout.elements:
        return _multiply_matrices(builder, left, right, layout)
    letters = layout.batch
    left, right = (
        builder.transpose(tensor, tuple(x for x in letters if x in tensor.axes))
        for tensor in (left, right)
    )
    return builder.reduce_sum(builder.mul(left, right, letters), set(letters) - kept)


def _multiply_matrices(builder: StepBuilder, left: Tensor, right: Tensor, layout: Layout) -> Tensor:
    batch, merged_rows, columns, summed, swapped, _ = layout
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


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
