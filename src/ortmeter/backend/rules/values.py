"""What a rule may know about a value: its constant, its dimensions, its producer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = [
    "SWAP",
    "constant",
    "copy_type",
    "depends_on",
    "dimensions",
    "from_operator",
    "producer",
    "read_once",
    "readers_beside",
    "scalar",
    "sizes",
]

#: Permutation that exchanges the heads and the positions.
SWAP = (0, 2, 1, 3)


def constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Give the array of a value that is the same in every run.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.

    Returns
    -------
    numpy.ndarray or None
        None when it changes: an input with a default value is not constant.

    Examples
    --------
    >>> weight = ir.Value(name="W", const_value=ir.tensor([1.0, 2.0]))
    >>> constant(weight)
    array([1., 2.], dtype=float32)
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """Give the number of a constant of one element, whatever its rank.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.

    Returns
    -------
    float or None
        None when it is not constant, or has not one element.

    Examples
    --------
    >>> scalar(ir.Value(name="epsilon", const_value=ir.tensor([0.5])))
    0.5
    """
    array = constant(value)
    return None if array is None or array.size != 1 else float(array.item())


def dimensions(value: ir.Value | None, rank: int | None = None) -> tuple[int | str, ...] | None:
    """Give the dimensions of a value, when all of them are known by a number or by a name.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.
    rank : int, optional
        How many dimensions it must have.

    Returns
    -------
    tuple of int or str, or None
        Two dimensions are equal in every run when their numbers or their names are equal.

    Examples
    --------
    >>> dimensions(ir.Value(name="X", shape=ir.Shape(["batch", 4])))
    ('batch', 4)
    >>> dimensions(ir.Value(name="X", shape=ir.Shape([None, 4]))) is None
    True
    """
    if value is None or value.shape is None or rank not in {None, len(value.shape)}:
        return None
    named = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    known = tuple(dim for dim in named if dim is not None)
    return known if len(known) == len(named) else None


def sizes(value: ir.Value | None, rank: int | None = None) -> tuple[int, ...] | None:
    """Give the dimensions of a value, when all of them are numbers.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.
    rank : int, optional
        How many dimensions it must have.

    Returns
    -------
    tuple of int or None
        None when one of them changes with the inputs.

    Examples
    --------
    >>> sizes(ir.Value(name="X", shape=ir.Shape(["batch", 4]))) is None
    True
    """
    named = dimensions(value, rank) or ()
    known = tuple(dim for dim in named if isinstance(dim, int))
    return known if value is not None and value.shape == known else None


def producer(value: ir.Value) -> ir.Node:
    """Give the node that computes a result.

    Parameters
    ----------
    value : onnx_ir.Value
        The result of a node, not an input nor an initializer.

    Returns
    -------
    onnx_ir.Node
        The node.

    Examples
    --------
    >>> node = ir.Node("", "Gelu", [ir.Value(name="X")], [ir.AttrString("approximate", "tanh")])
    >>> producer(node.outputs[0]).attributes.get_string("approximate")
    'tanh'
    """
    node = value.producer()
    assert node is not None, value
    return node


def from_operator(value: ir.Value | None, op_type: str, **ints: Sequence[int]) -> ir.Node | None:
    """Give the node that computes a value, when it is a given operator.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.
    op_type : str
        An operator of the standard domain.
    **ints : sequence of int
        Attributes that it must have.

    Returns
    -------
    onnx_ir.Node or None
        The producer.

    Examples
    --------
    >>> x = ir.Value(name="X")
    >>> flip = ir.Node("", "Transpose", [x], [ir.AttrInt64s("perm", [1, 0])])
    >>> from_operator(flip.outputs[0], "Transpose", perm=[1, 0]) is flip
    True
    """
    node = None if value is None else value.producer()
    if node is None or node.op_identifier() != ("", op_type, ""):
        return None
    given = {name: node.attributes.get(name) for name in ints}
    same = all(a is not None and list(a.as_ints()) == list(ints[n]) for n, a in given.items())
    return node if same else None


def read_once(value: ir.Value) -> bool:
    """Tell whether one node reads a value, once, and nothing else needs it.

    Parameters
    ----------
    value : onnx_ir.Value
        A value of a graph.

    Returns
    -------
    bool
        False for an output of the graph.

    Examples
    --------
    >>> x = ir.Value(name="X")
    >>> square = ir.Node("", "Mul", [x, x])
    >>> read_once(x), read_once(square.outputs[0])
    (False, False)
    """
    return len(value.uses()) == 1 and not value.is_graph_output()


def readers_beside(value: ir.Value, node: ir.Node) -> list[ir.Node]:
    """List the nodes that read a value in the graph of another node.

    Parameters
    ----------
    value : onnx_ir.Value
        A value of a graph.
    node : onnx_ir.Node
        A node, in this graph or in one inside it.

    Returns
    -------
    list of onnx_ir.Node
        Without those of the graphs inside or around, whose results the node may not see.

    Examples
    --------
    >>> x = ir.Value(name="X")
    >>> nodes = [ir.Node("", op_type, [x]) for op_type in ("Abs", "Neg")]
    >>> [reader.op_type for reader in readers_beside(x, nodes[0])]
    ['Abs', 'Neg']
    """
    return [reader for reader in value.consumers() if reader.graph is node.graph]


def depends_on(value: ir.Value | None, source: ir.Value) -> bool:
    """Tell whether a value is computed from another one, or is the same.

    Parameters
    ----------
    value : onnx_ir.Value, optional
        A value of a graph, None for an absent input.
    source : onnx_ir.Value
        Another one.

    Examples
    --------
    >>> x = ir.Value(name="X")
    >>> y = ir.Node("", "Abs", [x]).outputs[0]
    >>> z = ir.Node("", "Neg", [y]).outputs[0]
    >>> depends_on(z, x), depends_on(y, z)
    (True, False)
    """
    waiting, seen = [value], {value}
    while waiting:
        known = waiting.pop()
        if known is source:
            return True
        node = None if known is None else known.producer()
        found = set() if node is None else set(_read_by(node)) - seen
        waiting.extend(found)
        seen |= found
    return False


def _read_by(node: ir.Node) -> Iterator[ir.Value | None]:
    """List what a node reads, the graphs inside it included."""
    yield from node.inputs
    for attribute in node.attributes.values():
        kind, held = attribute.type, attribute.value
        one = kind == ir.AttributeType.GRAPH
        for graph in [held] if one else held if kind == ir.AttributeType.GRAPHS else []:
            yield from graph.outputs
            for inner in graph:
                yield from _read_by(inner)


def copy_type(value: ir.Value, like: ir.Value, shape: Iterable[int | str] | None = None) -> None:
    """Give a new value the element type of another, and its shape or a given one.

    The rules that come next need them.

    Parameters
    ----------
    value : onnx_ir.Value
        Modified in place.
    like : onnx_ir.Value
        A value of a known type.
    shape : iterable of int or str, optional
        Shape, that of *like* by default.

    Examples
    --------
    >>> x = ir.Value(name="X", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    >>> y = ir.Value(name="Y")
    >>> copy_type(y, x)
    >>> y
    Value(name='Y', type=Tensor(FLOAT), shape=Shape([2]))
    """
    value.type = like.type
    value.shape = like.shape if shape is None else ir.Shape(shape)
