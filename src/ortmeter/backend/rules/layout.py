"""Shapes: a Reshape that changes nothing, rows that were merged, slices that are one Split.

What torch computes on a matrix of all the rows of a batch is computed on the batch as it is: each
fusion moves the Reshape that merged the rows after the operator, towards the one that splits them
again. In between, the patterns of the other rules have their three axes.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import known, optional, require
from ortmeter.backend.rules.values import (
    Shape,
    constant,
    copy_type,
    dimensions,
    from_operator,
    input_of,
    producer,
    readers_beside,
    vector,
)

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
    """Gemm of merged rows, ``torch.addmm`` -> MatMul of the rows where they are, then Add."""

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
        columns = known(result, "the shape of the product is not known")[-1]
        require(isinstance(columns, int), "the number of columns is not known")
        require(bias is None or dimensions(bias) == (columns,), "the bias is no vector of columns")
        x = _before_merge(op, rows)
        shape = (*(dimensions(x) or ())[:-1], columns)
        if options.get_int("transB", 0):
            flipped = op.Transpose(weight, perm=(1, 0))
            sizes = dimensions(weight, rank=2)
            copy_type(flipped, weight, None if sizes is None else sizes[::-1])
            weight = flipped
        product = op.MatMul(x, weight)
        copy_type(product, y, shape)
        if bias is not None:
            product = op.Add(product, bias)
            copy_type(product, y, shape)
        return _merged(op, product)


class FlatRows:
    """A function of each merged row, or of each element -> of the rows where they are."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pattern(self, op: Any, rows: Any, scale: Any, shift: Any) -> Any:
        inputs = (rows, scale, shift) if self.operator == "LayerNormalization" else (rows,)
        return getattr(op, self.operator)(*inputs, _outputs=["y"])

    def rewrite(self, op: Any, *, rows: ir.Value, y: ir.Value, **_: ir.Value | None) -> Any:
        x = _same_rows(rows)
        if x is None:
            return None
        options = dict(producer(y).attributes)
        if self.operator == "LayerNormalization":
            axis = options.get("axis")
            require(axis is None or axis.as_int() in {-1, 1}, "rows are normalized together")
            options["axis"] = ir.AttrInt64("axis", -1)  # counted from the last one
        result = getattr(op, self.operator)(x, *producer(y).inputs[1:], **options)
        copy_type(result, x)
        return _merged(op, result)


class FlatSum:
    """The sum of merged rows -> of the rows where they are: the end of a residual block."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        return op.Add(left, right)

    def rewrite(self, op: Any, *, left: ir.Value, right: ir.Value) -> Any:
        if None in {input_of(left, "Reshape"), input_of(right, "Reshape")}:
            return None
        x, y = _same_rows(left), _same_rows(right)
        if x is None or y is None:
            return None
        require(dimensions(x) == dimensions(y), "the rows come from batches of other shapes")
        total = op.Add(x, y)
        copy_type(total, x)
        return _merged(op, total)


def _same_rows(value: ir.Value) -> ir.Value | None:
    """Find what a matrix was before its rows were merged, if its columns were already."""
    source = input_of(value, "Reshape")
    before, after = dimensions(source), dimensions(value, rank=2)
    if before is None or after is None or len(before) < _BATCHED:
        return None
    require(before[-1] == after[-1] and isinstance(after[-1], int), "the Reshape cuts the rows")
    return source


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
    merged: ir.Value = op.Reshape(source, vector(op, *[0] * kept, after[-1]))
    copy_type(merged, source, (*before[:kept], after[-1]))
    return merged


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


def _merged(op: Any, value: ir.Value) -> ir.Value:
    """Merge the rows, as those of the value that is replaced."""
    flat: ir.Value = op.Reshape(value, vector(op, -1, (dimensions(value) or ())[-1]))
    return flat


class SlicesToSplit:
    """Slices that cut a result into consecutive parts -> one Split.

    The first of them writes the Split, the others find it.
    """

    def pattern(self, op: Any, x: Any, begin: Any, end: Any, axes: Any, steps: Any) -> Any:  # noqa: PLR0917
        return op.Slice(x, begin, end, axes, steps, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        axis, bounds = known(_part(producer(y)), "it has steps, several axes, or computed bounds")
        readers = readers_beside(x, producer(y))
        made = _split_parts(x, axis, readers)
        if bounds in made:
            return op.Identity(made[bounds])
        cuts = _cuts(x, axis, readers)
        require(bounds in cuts, "the slices along this axis leave a hole, or overlap")
        parts = vector(op, *(end - begin for begin, end in cuts))
        results = op.Split(x, parts, axis=axis, _outputs=len(cuts))
        shape = dimensions(x) or ()
        for result, (begin, end) in zip(results, cuts, strict=True):
            copy_type(result, x, (*shape[:axis], end - begin, *shape[axis + 1 :]))
        return results[cuts.index(bounds)]


def _part(node: ir.Node) -> tuple[int, tuple[int, int]] | None:
    """Read the axis of a slice without steps, and what it keeps: the begin and the end."""
    shape, arrays = dimensions(node.inputs[0]), [constant(value) for value in node.inputs[1:]]
    numbers = [int(a.item()) for a in arrays if a is not None and a.size == 1]
    if shape is None or len(numbers) != len(arrays) or len(arrays) != len(("b", "e", "a", "s")):
        return None
    begin, end, axis, step = numbers
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if not isinstance(size, int) or step != 1:
        return None
    first, last, _ = slice(begin, end).indices(size)
    return axis % len(shape), (first, last)


def _cuts(x: ir.Value, axis: int, readers: list[ir.Node]) -> list[tuple[int, int]]:
    """List the parts that the slices of a value keep, when each begins where another ends."""
    slices = [node for node in readers if node.op_identifier() == ("", "Slice", "")]
    parts = [_part(node) for node in slices if node.inputs[0] is x]
    cuts = sorted({part[1] for part in parts if part is not None and part[0] == axis})
    size = (dimensions(x) or ())[axis]
    edges = [(0, 0), *cuts, (size, size)]
    follow = all(left[1] == right[0] for left, right in pairwise(edges))
    return cuts if follow and all(begin < end for begin, end in cuts) else []


def _split_parts(x: ir.Value, axis: int, readers: list[ir.Node]) -> dict[tuple[int, int], ir.Value]:
    """Find the results of the Split of a value along an axis, by what they keep."""
    found: dict[tuple[int, int], ir.Value] = {}
    for node in readers:
        if node.op_identifier() != ("", "Split", "") or node.inputs[0] is not x:
            continue
        cuts = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if cuts is not None and node.attributes.get_int("axis", 0) == axis:
            ends = [int(end) for end in np.cumsum(cuts)]
            found |= dict(zip(zip([0, *ends], ends, strict=False), node.outputs, strict=True))
    return found
