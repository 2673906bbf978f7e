"""Rotary position embedding, for tables of angles that do not depend on the inputs."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Rule
from ortmeter.backend.rules.values import constant, copy_type, dimensions, producer, sizes

__all__ = ["RULES", "Rotary", "RotaryBeforeSplit"]


class Rotary:
    """``x * cos + concat(-x2, x1) * sin`` -> RotaryEmbedding."""

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, x: Any, cos: Any, sin: Any, begin: Any, middle: Any, end: Any, axis: Any
    ) -> Any:
        """Rotate the halves ``x1 = x[..., begin:middle]`` and ``x2 = x[..., middle:end]``."""
        first = op.Slice(x, begin, middle, axis, [1])
        second = op.Slice(x, middle, end, axis, [1])
        rotated = op.Concat(op.Neg(second), first, axis=-1)
        return op.Add(op.Mul(x, cos), op.Mul(rotated, sin), _outputs=["y"])

    def rewrite(
        self,
        op: Any,
        *,
        x: ir.Value,
        cos: ir.Value,
        sin: ir.Value,
        y: ir.Value,
        **bounds: ir.Value,
    ) -> Any:
        """Keep one half of the tables; every sequence has positions 0, 1, 2..."""
        shape = sizes(x, rank=4)
        if shape is None or y.graph is None or not _are_halves(shape[3], **bounds):
            return None
        batch, _, length, size = shape
        halves = [_first_half(constant(table), (1, 1, length, size)) for table in (cos, sin)]
        tables = {
            f"{cos.name}/half": halves[0],
            f"{sin.name}/half": halves[1],
            f"positions/{batch}x{length}": np.tile(np.arange(length), (batch, 1)),
        }
        arrays = {name: array for name, array in tables.items() if array is not None}
        if len(arrays) < len(tables):
            return None
        known = y.graph.initializers  # one table for all the layers
        inputs = (known.get(n) or op.initializer(ir.tensor(a), n) for n, a in arrays.items())
        return op.RotaryEmbedding(x, *inputs)


def _are_halves(size: int, *, begin: ir.Value, middle: ir.Value, axis: ir.Value, **_: Any) -> bool:
    """Tell whether two slices are the halves of the last axis, of an even size.

    The end needs no look: both slices together have that size, or they would not be multiplied by
    the table.
    """
    found = [constant(value) for value in (begin, middle, axis)]
    numbers = [int(a.item()) for a in found if a is not None and a.shape == (1,)]
    if len(numbers) != len(found):
        return False
    first, cut, dim = numbers
    return first == 0 and 2 * cut == size and dim in {3, -1}


def _first_half(
    table: np.ndarray[Any, Any] | None, shape: tuple[int, ...]
) -> np.ndarray[Any, Any] | None:
    """Give what both halves of a table hold: a row for each position, a column for each angle."""
    if table is None or table.shape != shape:
        return None
    first, second = np.split(table[0, 0], 2, axis=-1)
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


class RotaryBeforeSplit:
    """RotaryEmbedding after the split into heads -> before it, on ``(batch, length, hidden)``."""

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, x: Any, shape: Any, cos: Any, sin: Any, positions: Any
    ) -> Any:
        """The split is a Reshape and a Transpose."""
        heads = op.Reshape(x, shape, _outputs=["heads"], _allow_other_attributes=True)
        return op.RotaryEmbedding(op.Transpose(heads, perm=[0, 2, 1, 3]), cos, sin, positions)

    def rewrite(
        self, op: Any, *, x: ir.Value, shape: ir.Value, heads: ir.Value, **tables: ir.Value
    ) -> Any:
        """Leave the split after, where an attention may absorb it."""
        before, after = dimensions(x, rank=3), dimensions(heads, rank=4)
        if before is None or after is None or before[:2] != after[:2]:
            return None
        inputs = (tables[name] for name in ("cos", "sin", "positions"))
        rotated = op.RotaryEmbedding(x, *inputs, num_heads=after[2])
        copy_type(rotated, x)
        split = op.Reshape(rotated, shape, **producer(heads).attributes)
        copy_type(split, heads)
        return op.Transpose(split, perm=[0, 2, 1, 3])


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}

#: The rules of this family.
RULES = (
    Rule("Rotary", "default", (Rotary(),), _TYPES, opset=23),
    Rule("RotaryBeforeSplit", "default", (RotaryBeforeSplit(),), _TYPES, opset=23),
)
