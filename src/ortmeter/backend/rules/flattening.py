"""What torch computes on a matrix of all the rows of a batch -> on the batch as it is.

Each rule moves the Reshape that merged the rows after the operator, towards the one that splits
them again. In between, the patterns of the other rules have their three axes.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, F64, Rule
from ortmeter.backend.rules.values import copy_type, dimensions, from_operator, producer

__all__ = [
    "RULES",
    "FlatActivation",
    "FlatNormalization",
    "FlatProduct",
    "FlatSum",
    "ThereAndBack",
]

# A batch of sequences; with one axis less, there is nothing to merge.
_BATCHED = 3
_Shape = tuple[int | str, ...]


class FlatProduct:
    """Gemm of merged rows -> MatMul of the rows where they are, then Add for its bias.

    Parameters
    ----------
    biased : bool
        Whether there is a bias.
    """

    def __init__(self, *, biased: bool) -> None:
        self.biased = biased

    def pattern(self, op: Any, rows: Any, weight: Any, bias: Any) -> Any:
        """What ``torch.addmm`` computes, and ``torch.nn.Linear`` of a matrix."""
        inputs = (rows, weight, bias) if self.biased else (rows, weight)
        return op.Gemm(*inputs, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(
        self, op: Any, *, rows: ir.Value, weight: ir.Value, bias: ir.Value | None, y: ir.Value
    ) -> Any:
        """The bias must be a vector over the last axis."""
        options, result = producer(y).attributes, dimensions(y, rank=2)
        x = _before_merge(op, rows)
        if x is None or result is None or not isinstance(result[-1], int) or not _is_plain(options):
            return None
        if bias is not None and dimensions(bias) != result[-1:]:
            return None
        shape = (*_dimensions(x)[:-1], result[-1])
        product = op.MatMul(x, _transposed(op, weight) if options.get_int("transB", 0) else weight)
        copy_type(product, y, shape)
        if bias is not None:
            product = op.Add(product, bias)
            copy_type(product, y, shape)
        return _merged(op, product)


class FlatNormalization:
    """LayerNormalization of merged rows -> of the rows where they are."""

    def pattern(self, op: Any, rows: Any, scale: Any, shift: Any) -> Any:
        """A row is normalized."""
        return op.LayerNormalization(
            rows, scale, shift, _outputs=["y"], _allow_other_attributes=True
        )

    def rewrite(
        self, op: Any, *, rows: ir.Value, scale: ir.Value, shift: ir.Value, y: ir.Value
    ) -> Any:
        """Count the axis from the last one."""
        options, x = dict(producer(y).attributes), _same_rows(rows)
        axis = options.pop("axis", None)
        if x is None or (axis is not None and axis.as_int() not in {-1, 1}):
            return None
        normalized = op.LayerNormalization(x, scale, shift, axis=-1, **options)
        copy_type(normalized, x)
        return _merged(op, normalized)


class FlatActivation:
    """A function of each element of merged rows -> of the rows where they are.

    Parameters
    ----------
    operator : str
        The function.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pattern(self, op: Any, rows: Any) -> Any:
        """One input, one output."""
        return getattr(op, self.operator)(rows, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, rows: ir.Value, y: ir.Value) -> Any:
        """Keep the attributes."""
        x = _same_rows(rows)
        if x is None:
            return None
        result = getattr(op, self.operator)(x, **producer(y).attributes)
        copy_type(result, x)
        return _merged(op, result)


class FlatSum:
    """The sum of merged rows -> of the rows where they are: the end of a residual block."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        """Both terms were merged."""
        return op.Add(left, right)

    def rewrite(self, op: Any, *, left: ir.Value, right: ir.Value) -> Any:
        """Nothing may be broadcast."""
        x, y = _same_rows(left), _same_rows(right)
        if x is None or y is None or dimensions(x) != dimensions(y):
            return None
        total = op.Add(x, y)
        copy_type(total, x)
        return _merged(op, total)


class ThereAndBack:
    """A Reshape that undoes the one before -> nothing."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        """The other Reshape may be used elsewhere."""
        return op.Reshape(x, shape, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Names of dimensions are compared as well."""
        before = from_operator(x, "Reshape")
        source = None if before is None else before.inputs[0]
        found = dimensions(source)
        return op.Identity(source) if found is not None and found == dimensions(y) else None


def _dimensions(value: ir.Value) -> _Shape:
    found = dimensions(value)
    assert found is not None, value
    return found


def _same_rows(value: ir.Value) -> ir.Value | None:
    """Give what a matrix was before its rows were merged, if its columns were already."""
    reshape = from_operator(value, "Reshape")
    source = None if reshape is None else reshape.inputs[0]
    before, after = dimensions(source), dimensions(value, rank=2)
    if before is None or after is None or len(before) < _BATCHED:
        return None
    return source if before[-1] == after[-1] and isinstance(after[-1], int) else None


def _before_merge(op: Any, value: ir.Value) -> ir.Value | None:
    """Give what a matrix was before its rows were merged; merge its columns if they were not."""
    reshape = from_operator(value, "Reshape")
    source = None if reshape is None else reshape.inputs[0]
    before, after = dimensions(source), dimensions(value, rank=2)
    if source is None or before is None or after is None or not isinstance(after[-1], int):
        return None
    kept = _rows_of(before, after[-1])
    if kept < _BATCHED - 1:
        return None
    if kept == len(before) - 1:
        return source
    # Zero copies a size of the input, known or not.
    merged: ir.Value = op.Reshape(source, _ints(op, [0] * kept + [after[-1]]))
    copy_type(merged, source, (*before[:kept], after[-1]))
    return merged


def _rows_of(shape: _Shape, columns: int) -> int:
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


def _is_plain(options: Any) -> bool:
    """Tell whether a Gemm computes ``x @ w + b``, the weight being transposed or not."""
    factors = [options.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and not options.get_int("transA", 0)


def _transposed(op: Any, weight: ir.Value) -> ir.Value:
    flipped: ir.Value = op.Transpose(weight, perm=(1, 0))
    shape = dimensions(weight, rank=2)
    copy_type(flipped, weight, None if shape is None else shape[::-1])
    return flipped


def _merged(op: Any, value: ir.Value) -> ir.Value:
    """Merge the rows, as those of the value that is replaced."""
    flat: ir.Value = op.Reshape(value, _ints(op, [-1, _dimensions(value)[-1]]))
    return flat


def _ints(op: Any, numbers: list[Any]) -> ir.Value:
    made: ir.Value = op.Constant(value=ir.tensor(np.array(numbers, np.int64)))
    return made


_TYPES = frozenset({F32, F64, F16, BF16})
_ACTIVATIONS = ("Relu", "Gelu", "Tanh", "Sigmoid")

#: The rules of this family.
RULES = (
    Rule(
        "Flattening",
        "default",
        (
            *(FlatProduct(biased=biased) for biased in (True, False)),
            FlatNormalization(),
            *(FlatActivation(operator) for operator in _ACTIVATIONS),
            FlatSum(),
            ThereAndBack(),
        ),
        {"cpu": _TYPES, "cuda": _TYPES},
        opset=18,
    ),
)
