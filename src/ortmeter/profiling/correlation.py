"""Find the kernels of a profile in the graph that ran."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.runtime.graphs import bodies

__all__ = ["STANDARD", "CostFunction", "GraphNode", "domains", "find_nodes", "name_nodes", "walk"]

#: ``cost(node, input_shapes, output_shapes, input_types, output_types)``, with None for an absent
#: optional tensor, gives the operations and the bytes of one execution.
CostFunction: TypeAlias = Callable[
    [
        onnx.NodeProto,
        Sequence[tuple[int, ...] | None],
        Sequence[tuple[int, ...] | None],
        Sequence[str | None],
        Sequence[str | None],
    ],
    tuple[float, float] | None,
]
#: How the standard domain is written.
STANDARD = "ai.onnx"


@dataclass(frozen=True)
class GraphNode:
    """A node with its place.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    parent : str, optional
        Name of the node whose body holds it, None in the main graph.
    initializers : mapping of str to onnx.TensorProto
        Initializers that it reads, by name.
    """

    node: onnx.NodeProto
    parent: str | None
    initializers: Mapping[str, onnx.TensorProto]

    @property
    def domain(self) -> str:
        """Domain of the operator, ``ai.onnx`` for the standard one."""
        return self.node.domain or STANDARD

    @property
    def initializer_size(self) -> int:
        """Bytes of the initializers, counted as often as they are read."""
        return sum(
            _size(self.initializers[name]) for name in self.node.input if name in self.initializers
        )


def walk(
    graph: onnx.GraphProto,
    parent: str | None = None,
    outer: Mapping[str, onnx.TensorProto] | None = None,
) -> Iterator[GraphNode]:
    """Iterate over the nodes of a graph, each one followed by those of its bodies.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.
    parent : str, optional
        Name of the node it is the body of.
    outer : mapping of str to onnx.TensorProto, optional
        Initializers of the graphs around.

    Yields
    ------
    GraphNode
        The nodes, in order.
    """
    known = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    for node in graph.node:
        yield GraphNode(node, parent, {name: known[name] for name in node.input if name in known})
        for _, body in bodies(node):
            yield from walk(body, node.name, known)


def name_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a name to the nodes that have none, so that each one can be told in a profile.

    Parameters
    ----------
    model : onnx.ModelProto
        Not modified.

    Returns
    -------
    onnx.ModelProto
        The same model when every node has a name, else a copy where unnamed nodes are named after
        their operator and their rank, as ONNX Runtime does, and after the node around them.

    Examples
    --------
    >>> from ortmeter.runtime.loading import load_model
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Abs(X)  [last] Y = Neg(Z) }'''
    >>> [node.name for node in name_nodes(load_model(text)).graph.node]
    ['Abs_0', 'last']
    """
    taken = {found.node.name for found in walk(model.graph)}
    if "" not in taken:
        return model
    named = onnx.ModelProto()
    named.CopyFrom(model)
    _name(named.graph, "", taken)
    return named


def _name(graph: onnx.GraphProto, prefix: str, taken: set[str]) -> None:
    for rank, node in enumerate(graph.node):
        if not node.name:
            wanted = f"{prefix}{node.op_type}_{rank}"
            # The two branches of an If have the same prefix.
            while wanted in taken:
                wanted += "_"
            node.name = wanted
            taken.add(wanted)
        for _, body in bodies(node):
            _name(body, f"{node.name}/", taken)


def find_nodes(kinds: pd.DataFrame, model: onnx.ModelProto) -> list[GraphNode | None]:
    """Find the node of each kind of kernel.

    Parameters
    ----------
    kinds : pandas.DataFrame
        Columns ``name``, ``op``, ``parent``, one row per node, in the order of execution.
    model : onnx.ModelProto
        Graph that ran.

    Returns
    -------
    list of GraphNode or None
        None when the graph holds no such node, or several. Nodes without a name are matched in
        order, when as many ran as there are and that the order of execution is that of their
        indices: branches may be executed, and saved, in another order than they were written.
    """
    by_key: dict[tuple[str, str, str | None], list[GraphNode]] = defaultdict(list)
    for found in walk(model.graph):
        by_key[found.node.name, found.node.op_type, found.parent or None].append(found)
    unnamed: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    matched: list[GraphNode | None] = []
    names = kinds["name"].tolist()
    for i, (name, op, parent) in enumerate(_rows(kinds)):
        same = by_key.get((name, op, parent), [])
        matched.append(same[0] if len(same) == 1 else None)
        if not same and re.fullmatch(rf"{re.escape(op)}_\d+", name):
            unnamed[op, parent].append(i)
    for (op, parent), positions in unnamed.items():
        candidates = by_key.get(("", op, parent), [])
        indices = [int(names[i].rpartition("_")[2]) for i in positions]
        if len(candidates) == len(positions) and indices == sorted(indices):
            for i, found in zip(positions, candidates, strict=True):
                matched[i] = found
    return matched


def domains(kinds: pd.DataFrame, model: onnx.ModelProto) -> list[str | None]:
    """Tell the domain of each kind of kernel.

    Parameters
    ----------
    kinds, model
        As in :func:`find_nodes`.

    Returns
    -------
    list of str or None
        That of the node; when it is not found, the only one that has this operator in the graph.
    """
    by_op: dict[str, set[str]] = defaultdict(set)
    for found in walk(model.graph):
        by_op[found.node.op_type].add(found.domain)
    return [
        node.domain if node else next(iter(by_op[op])) if len(by_op[op]) == 1 else None
        for node, op in zip(find_nodes(kinds, model), kinds["op"], strict=True)
    ]


def _rows(kinds: pd.DataFrame) -> Iterator[tuple[str, str, str | None]]:
    parents = [None if pd.isna(parent) else parent for parent in kinds["parent"]]
    return zip(kinds["name"].astype(str), kinds["op"].astype(str), parents, strict=True)


def _size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor; elements narrower than a byte are packed, strings count for nothing."""
    bits = re.search(r"\d+", short_name(tensor.data_type))
    return -(-int(bits[0]) * math.prod(tensor.dims) // 8) if bits else 0
