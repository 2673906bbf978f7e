"""Rotary position embedding: tables of angles that are constant, or computed from positions."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, F64, Rule
from ortmeter.backend.rules.values import (
    constant,
    copy_type,
    depends_on,
    dimensions,
    from_operator,
    producer,
    readers_beside,
    scalar,
)

__all__ = ["RULES", "HalfTable", "Rotary"]


class HalfTable:
    """A function of each element of ``concat(x, x)`` -> of *x*, concatenated after.

    Parameters
    ----------
    operator : {"Cos", "Sin", "Cast", "Mul"}
        The function; a product has a factor that is one number.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pattern(self, op: Any, table: Any, factor: Any) -> Any:
        """Others may read the table."""
        inputs = (table, factor) if self.operator == "Mul" else (table,)
        return getattr(op, self.operator)(*inputs, _outputs=["y"], _allow_other_attributes=True)

    def rewrite(self, op: Any, *, table: ir.Value, y: ir.Value, factor: ir.Value | None) -> Any:
        """Compute one half, for the rules that look for a table made of two."""
        half, shape = _half(table), dimensions(y)
        if half is None or shape is None or (factor is not None and scalar(factor) is None):
            return None
        if len(shape) != len(dimensions(half) or ()):  # the factor brings an axis
            return None
        inputs = (half,) if factor is None else (half, factor)
        result = getattr(op, self.operator)(*inputs, **producer(y).attributes)
        copy_type(result, y, dimensions(half))
        return op.Concat(result, result, axis=-1)


def _half(table: ir.Value | None) -> ir.Value | None:
    """Give what both halves of a table are, along its last axis."""
    concat = from_operator(table, "Concat")
    if concat is None or len({id(value) for value in concat.inputs}) != 1:
        return None
    half, shape = concat.inputs[0], dimensions(table)
    last = () if shape is None else {-1, len(shape) - 1}
    pair = len(concat.inputs) == len(("first", "second"))
    return half if pair and concat.attributes["axis"].as_int() in last else None


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
        """Keep one half of the tables."""
        shape = dimensions(x, rank=4)
        if shape is None or not _are_halves(shape[3], **bounds):
            return None
        constants = constant(cos) is not None and constant(sin) is not None
        tables = (_constant_tables if constants else _computed_tables)(op, x, y, cos, sin)
        return op.RotaryEmbedding(x, *tables) if tables else None


def _are_halves(
    size: int | str, *, begin: ir.Value, middle: ir.Value, axis: ir.Value, **_: Any
) -> bool:
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


def _constant_tables(
    op: Any, x: ir.Value, y: ir.Value, cos: ir.Value, sin: ir.Value
) -> list[ir.Value] | None:
    """Give tables with a row for each position, and the positions 0, 1, 2... of every sequence."""
    batch, _, length, size = dimensions(x, rank=4) or ()
    if y.graph is None or not isinstance(length, int) or not isinstance(size, int):
        return None
    halves = [_first_half(constant(table), (1, 1, length, size)) for table in (cos, sin)]
    tables = [
        _once(op, y.graph, f"{value.name}/half", half)
        for value, half in zip((cos, sin), halves, strict=True)
        if half is not None
    ]
    if len(tables) < len(halves):
        return None
    rows = np.arange(length)[None]
    if isinstance(batch, int):
        positions = np.tile(rows, (batch, 1))
        return [*tables, _once(op, y.graph, f"positions/{batch}x{length}", positions)]
    row = _once(op, y.graph, f"positions/{length}", rows)
    return [*tables, _for_each_sequence(op, row, x, y)]


def _once(op: Any, graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    """Give an initializer, the same for all the layers."""
    known = graph.initializers.get(name)
    return op.initializer(ir.tensor(array), name) if known is None else known


def _first_half(
    table: np.ndarray[Any, Any] | None, shape: tuple[int, ...]
) -> np.ndarray[Any, Any] | None:
    """Give what both halves of a table hold: a row for each position, a column for each angle."""
    if table is None or table.shape != shape:
        return None
    first, second = np.split(table[0, 0], 2, axis=-1)
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


def _computed_tables(
    op: Any, x: ir.Value, y: ir.Value, cos: ir.Value, sin: ir.Value
) -> list[ir.Value] | None:
    """Give tables with a row for each position of each sequence; there are no positions then."""
    batch, _heads, length, _size = dimensions(x, rank=4) or ()
    tables: list[ir.Value] = []
    for table in (cos, sin):
        unsqueeze = from_operator(table, "Unsqueeze")
        axes = constant(unsqueeze.inputs[1]) if unsqueeze else None
        half = _half(unsqueeze.inputs[0]) if unsqueeze else None
        if half is None or axes is None or axes.tolist() not in ([1], [-3]):
            return None
        shape = dimensions(half, rank=3)
        if shape is None or shape[0] not in {1, batch} or shape[1] != length:
            return None
        tables.append(half if shape[0] == batch else _for_each_sequence(op, half, x, y))
    return tables


def _for_each_sequence(op: Any, row: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Repeat what is the same for every sequence, once for all the nodes that read it."""
    batch, *_ = dimensions(x) or ()
    _, *rest = dimensions(row) or ()
    for node in readers_beside(row, producer(y)):
        found = node.outputs[0]
        same = from_operator(found, "Expand") and dimensions(found) == (batch, *rest)
        if same and not depends_on(found, y):
            return found
    ones = op.Constant(value_ints=[1] * len(rest))
    shape = op.Concat(op.Shape(_upstream(x), start=0, end=1), ones, axis=0)
    repeated: ir.Value = op.Expand(row, shape)
    copy_type(repeated, row, (batch, *rest))
    return repeated


def _upstream(x: ir.Value) -> ir.Value:
    """Give the first value that has as many sequences: reading it prevents no other rule."""
    batch, *_ = dimensions(x) or ()
    while (node := x.producer()) and node.inputs and node.inputs[0]:
        if (dimensions(node.inputs[0]) or ())[:1] != (batch,):
            break
        x = node.inputs[0]
    return x


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}
_ANY = frozenset({F64, F32, F16, BF16})
_HALF_TABLES = tuple(HalfTable(operator) for operator in ("Cos", "Sin", "Mul", "Cast"))

#: The rules of this family.
RULES = (
    Rule("HalfTable", "default", _HALF_TABLES, {"cpu": _ANY, "cuda": _ANY}),
    Rule("Rotary", "default", (Rotary(),), _TYPES, opset=23),
)
