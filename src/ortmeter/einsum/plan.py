"""Turn an equation into steps."""

from typing import Any

from ortmeter.dtypes import DTypeLike
from ortmeter.einsum._building import StepBuilder, Tensor
from ortmeter.einsum._layout import Target
from ortmeter.einsum._operands import read_operands
from ortmeter.einsum._paths import Path, find_path, list_products
from ortmeter.einsum._products import multiply
from ortmeter.einsum.errors import EinsumError
from ortmeter.einsum.parse import Equation
from ortmeter.einsum.result import EinsumPlan

__all__ = ["decompose_einsum"]


def decompose_einsum(
    equation: str,
    *shapes_or_operands: Any,
    order: str | None = None,
    path: Path | None = None,
    dtype: DTypeLike | None = None,
) -> EinsumPlan:
    """Decompose an equation into products of matrices and moves.

    Parameters
    ----------
    equation : str
        What :func:`numpy.einsum` accepts.
    *shapes_or_operands : tuple or array
        Shape of each operand, or the operand. A dimension is an int, a str when it is symbolic, or
        None when it is not known. Without any, the ranks come from the equation.
    order : str, optional
        Every letter of the equation, in the order that the letters follow inside the products; the
        dimensions of an ellipsis are ``0``, ``1``, ... By default, the order that moves the fewest
        elements is chosen product by product.
    path : sequence of pairs of int, optional
        Operands to multiply at each step, by position: they are removed from the list and their
        product is appended, as in :func:`numpy.einsum_path`. By default, the one that opt_einsum
        finds.
    dtype : dtype, optional
        Type of the elements, see :mod:`ortmeter.dtypes`. By default that of the operands, float32
        for shapes.

    Returns
    -------
    EinsumPlan
        The steps, their cost, and the ONNX model that does the same.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        A shape, *order* or *path* is not one that suits the equation, or the operands have several
        types.

    Notes
    -----
    Sizes that are not known are supposed to be equal where they share a letter: an operand is
    broadcast along a dimension only when its size is known to be 1.

    Examples
    --------
    >>> plan = decompose_einsum("bij,bkj->bik", (2, 3, 4), (2, 5, 4))
    >>> [step.subscripts for step in plan.steps]
    ['bkj->bjk', 'bij,bjk->bik']
    >>> plan.flop
    240
    """
    operands = read_operands(equation, shapes_or_operands, dtype)
    parsed, sizes = operands.equation, operands.sizes
    if order is not None:
        _check_order(order, parsed)
    builder = StepBuilder(sizes, operands.dtype.itemsize)
    tensors = _prepare(builder, parsed)
    if path is None:
        path = find_path([tensor.letters for tensor in tensors], parsed.output, sizes)
    products = list_products(path, len(tensors))
    result = _multiply(builder, tensors, parsed.output, products, order)
    return EinsumPlan(operands, builder.finish(result))


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


def _multiply(
    builder: StepBuilder,
    tensors: list[Tensor],
    output: str,
    products: list[tuple[int, int]],
    order: str | None,
) -> Tensor:
    """Multiply the operands two by two, then give the result its order."""
    live = dict(enumerate(tensors))
    for number, (i, j) in enumerate(products, len(tensors)):
        left, right = live.pop(i), live.pop(j)
        others = {x: tensor.letters for x, tensor in live.items()}
        kept = set(output).union(*others.values())
        target = _target(left.letters + right.letters, output, others, products, number)
        live[number] = multiply(builder, left, right, kept, target=target, order=order)
    (result,) = live.values()
    return builder.transpose(result, tuple(output))


def _target(
    letters: str,
    output: str,
    others: dict[int, str],
    products: list[tuple[int, int]],
    number: int,
) -> Target | None:
    """Find the order that suits what a product becomes: the result, or an operand of the next one.

    None when the other operand of the next one is not known yet.
    """
    if not others:
        return output, "", ""
    i, j = next(pair for pair in products if number in pair)
    partner = others.pop(j if i == number else i, None)
    if partner is None:
        return None
    kept = set(output).union(*others.values())
    own = (x for x in dict.fromkeys(letters) if x in kept and x not in partner)
    batch = (x for x in partner if x in letters and x in kept)
    summed = (x for x in partner if x in letters and x not in kept)
    return "".join(batch), "".join(own), "".join(summed)


def _check_order(order: str, equation: Equation) -> None:
    letters = set().union(*equation.inputs)
    if sorted(order) != sorted(letters):
        raise EinsumError(
            f"order={order!r} is not a permutation of its letters, {''.join(sorted(letters))!r}",
            equation.text,
            0,
            len(equation.text),
        )
