"""Multiply two operands: as matrices when letters are summed, else element by element."""

from ortmeter.einsum._building import StepBuilder, Tensor
from ortmeter.einsum._layout import Layout, Target, choose_layout, choose_order
from ortmeter.einsum._sizes import Axes

__all__ = ["multiply"]


def multiply(
    builder: StepBuilder,
    left: Tensor,
    right: Tensor,
    kept: set[str],
    *,
    target: Target | None,
    order: str | None,
) -> Tensor:
    """Multiply two operands and sum the letters that nothing needs any more.

    Parameters
    ----------
    builder : StepBuilder
        Receives the steps.
    left, right : Tensor
        The operands, one letter per axis.
    kept : set of str
        Letters that are needed later.
    target : tuple of str or None
        Order of the letters that suits what follows, see
        :func:`~ortmeter.einsum._layout.choose_layout`.
    order : str or None
        See :func:`~ortmeter.einsum.decompose_einsum`.

    Returns
    -------
    Tensor
        The product, one letter per axis.
    """
    sizes, letters = builder.sizes, set(left.letters + right.letters)
    alike = set(left.letters) == set(right.letters)  # matrices of one element, one by one
    empty = sizes.count("".join(sorted(letters))) == 0  # products of matrices may refuse it
    if letters <= kept or alike or empty:
        wanted = target if letters <= kept else None
        product = _multiply_elements(builder, left, right, target=wanted, order=order)
        return builder.reduce_sum(product, letters - kept)
    layout = choose_layout(
        left.letters, right.letters, kept, weigh=sizes.weight, target=target, order=order
    )
    return _multiply_matrices(builder, left, right, layout)


def _multiply_matrices(builder: StepBuilder, left: Tensor, right: Tensor, layout: Layout) -> Tensor:
    if layout.swapped:
        left, right = right, left
    batch, summed = layout.batch, (layout.summed,)
    # Without a batch, the rows need not be merged. A vector is a matrix with one row or column:
    # ONNX Runtime 1.31 multiplies a matrix by a tensor of one dimension 30 times slower, and
    # wrongly when it absorbs the transpose of the matrix or when nothing is summed.
    rows = tuple(layout.rows) if layout.rows and not batch else (layout.rows,)
    left = _matrix(builder, left, batch, rows, summed)
    right = _matrix(builder, right, batch, summed, (layout.columns,))
    result = builder.matmul(left, right, (*left.axes[:-1], layout.columns))
    return builder.reshape(result, tuple(layout.result))


def _multiply_elements(
    builder: StepBuilder, left: Tensor, right: Tensor, *, target: Target | None, order: str | None
) -> Tensor:
    weigh = builder.sizes.weight
    letters = choose_order(left.letters, right.letters, weigh=weigh, target=target, order=order)
    left, right = (
        builder.transpose(tensor, tuple(x for x in letters if x in tensor.axes))
        for tensor in (left, right)
    )
    return builder.mul(left, right, letters)


def _matrix(builder: StepBuilder, tensor: Tensor, batch: str, rows: Axes, columns: Axes) -> Tensor:
    """Give a tensor the axes ``batch + rows + columns``."""
    above, beside = "".join(rows), "".join(columns)
    if above and beside and tensor.letters == batch + beside + above:
        # Merged first, what remains is to swap the two sides of a matrix.
        tensor = builder.reshape(tensor, (*batch, beside, above))
        return builder.transpose(tensor, (*batch, above, beside))
    tensor = builder.transpose(tensor, tuple(batch + above + beside))
    return builder.reshape(tensor, (*batch, *rows, *columns))
