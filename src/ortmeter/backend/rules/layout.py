"""Layouts: a Reshape that changes nothing, rows that were merged, weights as torch stores them."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.graph_values import (
    Shape,
    dimensions,
    from_operator,
    input_of,
    producer,
    typed,
    vector,
)
from ortmeter.backend.rules.rule import MICROSOFT, known, optional, require

# A batch of sequences; with one axis less, there is nothing to merge.
_BATCHED = 3


class SameShape:
    """A Reshape that gives the shape that its input has, or had before a Reshape -> nothing."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        shape = dimensions(y)
        for source in (x, input_of(x, "Reshape")):
            if shape is not None and dimensions(source) == shape:
                return op.Identity(source)
        return None


class FlatProduct:
    """Gemm of merged rows, ``torch.addmm`` -> MatMul of the rows where they are, then Add.

    The Reshape that merged the rows comes after, where the one that splits them again undoes it.
    """

    def pattern(self, op: Any, rows: Any, weight: Any) -> Any:
        return op.Gemm(rows, weight, optional("bias"), _outputs=["y"])

    def rewrite(
        self, op: Any, *, rows: ir.Value, weight: ir.Value, bias: ir.Value | None, y: ir.Value
    ) -> Any:
        if from_operator(rows, "Reshape") is None:
            return None
        options, result = producer(y).attributes, dimensions(y, rank=2)
        factors = [options.get_float(name, 1.0) for name in ("alpha", "beta")]
        require(factors == [1.0, 1.0], f"Gemm multiplies by alpha and beta, {factors}")
        require(not options.get_int("transA", 0), "the rows are the columns of a matrix")
        linear = options.get_int("transB", 0)
        require(not linear, "the weight is transposed, as that of a Linear: Gemm is faster")
        columns = known(result, "the shape of the product is not known")[-1]
        require(isinstance(columns, int), "the number of columns is not known")
        vectors = bias is None or dimensions(bias) == (columns,)
        require(vectors, "the bias is not a vector of columns")
        x = _before_merge(op, rows)
        shape = (*(dimensions(x) or ())[:-1], columns)
        product = typed(op.MatMul(x, weight), y, shape)
        if bias is not None:
            product = typed(op.Add(product, bias), y, shape)
        return op.Reshape(product, vector(op, -1, columns))


def _before_merge(op: Any, value: ir.Value) -> ir.Value:
    """Find what a matrix was before its rows were merged; merge its columns if they were not."""
    why = "the shapes of the Reshape are not known"
    source = known(input_of(value, "Reshape"), why)
    before, after = known(dimensions(source), why), known(dimensions(value, rank=2), why)
    kept = _rows_of(before, after[-1])
    require(kept >= _BATCHED - 1, "the Reshape cuts the rows, or merges no batch")
    if kept == len(before) - 1:
        return source
    # Zero copies a size of the input, known or not.
    merged = op.Reshape(source, vector(op, *[0] * kept, after[-1]))
    return typed(merged, source, (*before[:kept], after[-1]))


def _rows_of(shape: Shape, columns: int | str) -> int:
    """Count the first axes of a shape whose other ones make a number of columns; 0 if none do."""
    size = 1
    for axis in range(len(shape) - 1, -1, -1):
        dim = shape[axis]
        if not isinstance(dim, int):
            return 0
        size *= dim
        if size == columns:
            return axis
    return 0


class TransposedWeight:
    """``x @ transpose(weight)`` -> FusedMatMul, which reads the weight as torch stores it.

    ONNX Runtime has this fusion, but first folds the transposition of a weight that it holds: with
    it a session of 256 MiB of weights took 632 MiB more, with FusedMatMul 264.
    """

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def rewrite(self, op: Any, *, x: ir.Value, weight: ir.Value) -> Any:
        shape = known(dimensions(x), "the shape of the rows is not known")
        require(len(shape) > 1, "a vector is multiplied: the kernel takes matrices")
        return op.FusedMatMul(x, weight, transB=1, _domain=MICROSOFT)
