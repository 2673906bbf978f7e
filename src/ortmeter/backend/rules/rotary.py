"""Rotary position embedding: tables of angles that are constant, or computed from positions."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.graph_values import (
    constant,
    dimensions,
    from_operator,
    input_of,
    integers,
    producer,
    scalar,
    typed,
)
from ortmeter.backend.rules.rule import NoMatch, known, require

_HEADS = 4
_NOT_SPLIT = "its heads are not split, or their shape is not known"


class HalfTable:
    """A function of each element of ``concat(x, x)`` -> of *x*, concatenated after.

    Others may read the table. A product has a factor that is one number. It is for the rules that
    look for a table made of two halves.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pattern(self, op: Any, table: Any, factor: Any) -> Any:
        inputs = (table, factor) if self.operator == "Mul" else (table,)
        return getattr(op, self.operator)(*inputs, _outputs=["y"])

    def rewrite(self, op: Any, *, table: ir.Value, y: ir.Value, factor: ir.Value | None) -> Any:
        half = _half(table)
        if half is None:
            return None
        shape = known(dimensions(y), "the shape of the table is not known")
        require(factor is None or scalar(factor) is not None, "the factor is not one number")
        require(len(shape) == len(dimensions(half) or ()), "the factor adds an axis")
        inputs = (half,) if factor is None else (half, factor)
        result = getattr(op, self.operator)(*inputs, **producer(y).attributes)
        result = typed(result, y, dimensions(half))
        return op.Concat(result, result, axis=-1)


def _half(table: ir.Value | None) -> ir.Value | None:
    """Find what both halves of a table are, along its last axis."""
    concat = from_operator(table, "Concat")
    if concat is None or len({id(value) for value in concat.inputs}) != 1:
        return None
    half, shape = concat.inputs[0], dimensions(table)
    last = () if shape is None else {-1, len(shape) - 1}
    pair = len(concat.inputs) == len(("first", "second"))
    return half if pair and concat.attributes["axis"].as_int() in last else None


class Rotary:
    """``x * cos + concat(-x2, x1) * sin`` -> RotaryEmbedding.

    The halves are ``x1 = x[..., begin:middle]`` and ``x2 = x[..., middle:end]``. The end needs no
    look: together they have the size of the table, or they would not be multiplied by it.
    """

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, x: Any, cos: Any, sin: Any, begin: Any, middle: Any, end: Any, axis: Any
    ) -> Any:
        first = op.Slice(x, begin, middle, axis, [1])
        second = op.Slice(x, middle, end, axis, [1])
        rotated = op.Concat(op.Neg(second), first, axis=-1)
        return op.Add(op.Mul(x, cos), op.Mul(rotated, sin), _outputs=["y"])

    def rewrite(
        self, op: Any, *, x: ir.Value, cos: ir.Value, sin: ir.Value, y: ir.Value, **bounds: ir.Value
    ) -> Any:
        shape = known(dimensions(x, rank=_HEADS), _NOT_SPLIT)
        first, cut, dim = (integers(bounds[name]) for name in ("begin", "middle", "axis"))
        halves = first == [0] and cut is not None and [2 * n for n in cut] == [shape[-1]]
        require(halves and dim in ([3], [-1]), "the slices are not the halves of a head")
        constants = constant(cos) is not None and constant(sin) is not None
        tables = (_constant_tables if constants else _computed_tables)(op, x, y, cos, sin)
        return op.RotaryEmbedding(x, *tables)


def _constant_tables(
    op: Any, x: ir.Value, y: ir.Value, cos: ir.Value, sin: ir.Value
) -> list[ir.Value]:
    """Write tables with a row for each position, and the positions 0, 1, 2... of every sequence."""
    batch, _, length, size = dimensions(x, rank=_HEADS) or ()
    graph = known(y.graph, "the result is in no graph")
    if not isinstance(length, int) or not isinstance(size, int):
        raise NoMatch("the length of the sequences is not known")
    tables = []
    for value in (cos, sin):
        half = _first_half(constant(value), (1, 1, length, size))
        found = known(half, "the halves of the tables differ, or they have no row per position")
        tables.append(_once(op, graph, f"{value.name}/half", found))
    rows = np.arange(length)[None]
    if isinstance(batch, int):
        positions = np.tile(rows, (batch, 1))
        return [*tables, _once(op, graph, f"positions/{batch}x{length}", positions)]
    row = _once(op, graph, f"positions/{length}", rows)
    return [*tables, _for_each_sequence(op, row, x)]


def _once(op: Any, graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    """Write an initializer, the same for all the layers."""
    found = graph.initializers.get(name)
    return op.initializer(ir.tensor(array), name) if found is None else found


def _first_half(
    table: np.ndarray[Any, Any] | None, shape: tuple[int, ...]
) -> np.ndarray[Any, Any] | None:
    """Cut what both halves of a table hold: a row for each position, a column for each angle."""
    if table is None or table.shape != shape:
        return None
    first, second = np.split(table[0, 0], 2, axis=-1)
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


def _computed_tables(
    op: Any, x: ir.Value, _y: ir.Value, cos: ir.Value, sin: ir.Value
) -> list[ir.Value]:
    """Find tables with a row for each position of each sequence; there are no positions then."""
    batch, _heads, length, _size = dimensions(x, rank=_HEADS) or ()
    tables: list[ir.Value] = []
    for table in (cos, sin):
        unsqueeze = from_operator(table, "Unsqueeze")
        axes = integers(unsqueeze.inputs[1]) if unsqueeze else None
        require(axes in ([1], [-3]), "the tables are not shared by the heads")
        half = known(_half(input_of(table, "Unsqueeze")), "the halves of the tables differ")
        rows, positions, *_ = dimensions(half, rank=3) or (0, 0)
        per_position = rows in {1, batch} and positions == length
        require(per_position, "the tables have no row per position")
        tables.append(half if rows == batch else _for_each_sequence(op, half, x))
    return tables


def _for_each_sequence(op: Any, row: ir.Value, x: ir.Value) -> ir.Value:
    """Repeat what is the same for every sequence; what is repeated twice is merged after a rule."""
    batch, *_ = dimensions(x) or ()
    _, *rest = dimensions(row) or ()
    ones = op.Constant(value_ints=[1] * len(rest))
    shape = op.Concat(op.Shape(_upstream(x), start=0, end=1), ones, axis=0)
    return typed(op.Expand(row, shape), row, (batch, *rest))


def _upstream(x: ir.Value) -> ir.Value:
    """Find the first value that has as many sequences: reading it prevents no other rule."""
    batch, *_ = dimensions(x) or ()
    while (node := x.producer()) and node.inputs and node.inputs[0]:
        if (dimensions(node.inputs[0]) or ())[:1] != (batch,):
            break
        x = node.inputs[0]
    return x
