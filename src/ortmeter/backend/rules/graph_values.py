"""What a rule may know about a value: its constant, its dimensions, what computes it."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

Shape: TypeAlias = tuple[int | str, ...]

#: Permutation that exchanges the heads and the positions.
SWAP = (0, 2, 1, 3)


def constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Array of a value that is the same in every run: an input with a default value is not."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """Number of a constant of one element, whatever its rank."""
    array = constant(value)
    return None if array is None or array.size != 1 else float(array.item())


def integers(value: ir.Value | None) -> list[int] | None:
    """Numbers of a constant vector of integers."""
    array = constant(value)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        return None
    return [int(number) for number in array]


def dimensions(value: ir.Value | None, rank: int | None = None) -> Shape | None:
    """Dimensions of a value, when all of them are known by a number or by a name.

    Two dimensions are equal in every run when their numbers or their names are equal.
    """
    if value is None or value.shape is None or rank not in {None, len(value.shape)}:
        return None
    named = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    known = tuple(dim for dim in named if dim is not None)
    return known if len(known) == len(named) else None


def producer(value: ir.Value) -> ir.Node:
    """Node that computes a result, which is not an input nor an initializer."""
    node = value.producer()
    assert node is not None, value
    return node


def from_operator(value: ir.Value | None, op_type: str, **ints: Sequence[int]) -> ir.Node | None:
    """Node that computes a value, when it is a standard operator with these attributes."""
    node = None if value is None else value.producer()
    if node is None or node.op_identifier() != ("", op_type, ""):
        return None
    given = {name: node.attributes.get(name) for name in ints}
    same = all(a is not None and list(a.as_ints()) == list(ints[n]) for n, a in given.items())
    return node if same else None


def input_of(value: ir.Value | None, op_type: str, **ints: Sequence[int]) -> ir.Value | None:
    """First input of the standard operator that computes a value."""
    node = from_operator(value, op_type, **ints)
    return None if node is None else node.inputs[0]


def read_once(value: ir.Value) -> bool:
    """Whether one node reads a value, once, and it is no output of the graph."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def typed(value: ir.Value, like: ir.Value, shape: Iterable[int | str] | None = None) -> ir.Value:
    """Return a new value, with a type and a shape: the rules that come next need them."""
    value.type = like.type
    value.shape = like.shape if shape is None else ir.Shape(shape)
    return value
