"""Multiply two operands: as matrices, or element by element."""

from ortmeter.einsum.layouts import Layout
from ortmeter.einsum.parse import Axes
from ortmeter.einsum.steps import StepBuilder, Tensor


def multiply(
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
