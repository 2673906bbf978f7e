"""Find the kernels of a profile in the graph that ran, and its nodes in the original model.

The optimizer of ONNX Runtime keeps the names of the tensors that remain, so that an optimized node
computes, from the same tensors, what the original nodes between its inputs and its outputs did.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
import pandas as pd

from ortmeter.runtime.graphs import bodies

#: How the standard domain is written.
STANDARD = "ai.onnx"
#: Nodes that ONNX Runtime inserts: the same tensor, in another layout or on another device.
_COPIES = {"ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
#: What the names of blocked convolutions add to the name of their original output.
_BLOCKED = "_nchwc"


@dataclass(frozen=True)
class GraphNode:
    """A node, the name of the node whose body holds it, and the initializers that it reads."""

    node: onnx.NodeProto
    parent: str | None
    initializers: Mapping[str, onnx.TensorProto]

    @property
    def domain(self) -> str:
        return self.node.domain or STANDARD


def walk(
    graph: onnx.GraphProto,
    parent: str | None = None,
    outer: Mapping[str, onnx.TensorProto] | None = None,
) -> Iterator[GraphNode]:
    """Iterate over the nodes of a graph, each one followed by those of its bodies."""
    known = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    for node in graph.node:
        yield GraphNode(node, parent, {name: known[name] for name in node.input if name in known})
        for _, body in bodies(node):
            yield from walk(body, node.name, known)


def name_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Name the nodes that have none after their operator and rank, as ONNX Runtime does.

    The same model is returned when every node has a name, else a copy.
    """
    taken = {held.node.name for held in walk(model.graph)}
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
    """Find the node of each row of ``name``, ``op``, ``parent``.

    None when the graph holds no such node, or several: a node needs a name.
    """
    by_key: dict[tuple[str, str, str | None], list[GraphNode]] = defaultdict(list)
    for held in walk(model.graph):
        by_key[held.node.name, held.node.op_type, held.parent or None].append(held)
    parents = [None if pd.isna(parent) else parent for parent in kinds["parent"]]
    found = (by_key.get(key, []) for key in zip(kinds["name"], kinds["op"], parents, strict=True))
    return [same[0] if len(same) == 1 else None for same in found]


def find_domains(kinds: pd.DataFrame, model: onnx.ModelProto) -> list[str | None]:
    """Find the domain of each row: that of its node, or else the only one of its operator."""
    by_op: dict[str, set[str]] = defaultdict(set)
    for held in walk(model.graph):
        by_op[held.node.op_type].add(held.domain)
    return [
        node.domain if node else next(iter(by_op[op])) if len(by_op[op]) == 1 else None
        for node, op in zip(find_nodes(kinds, model), kinds["op"], strict=True)
    ]


def find_origins(
    optimized: onnx.ModelProto, original: onnx.ModelProto
) -> dict[str, tuple[str, ...]]:
    """Find the names of the original nodes that each optimized node replaces, in their order.

    Empty for what the optimizer inserted, or when no name tells.
    """
    before = [held.node for held in walk(original.graph)]
    after = [held.node for held in walk(optimized.graph)]
    producer = {name: rank for rank, node in enumerate(before) for name in node.output if name}
    same = _same_tensors(after, producer)
    kept = [node for node in after if node.op_type not in _COPIES]
    targets = {node.name: _targets(node, same, producer) for node in kept}
    boundary = set().union(*targets.values()) | {t.name for t in optimized.graph.initializer}
    origins = {
        name: _between(wanted, boundary - wanted, before, producer)
        for name, wanted in targets.items()
    }
    return {node.name: origins.get(node.name, ()) for node in after}


def _same_tensors(nodes: Iterable[onnx.NodeProto], known: Iterable[str]) -> dict[str, str]:
    """Original name of each tensor that is a copy of an original one, or that is copied to one."""
    same: dict[str, str] = {}
    known = set(known)
    for node in nodes:
        if node.op_type in _COPIES:
            source, copy = node.input[0], node.output[0]
            if copy in known:
                same[source] = copy
            else:
                same[copy] = same.get(source, source)
    return same


def _targets(node: onnx.NodeProto, same: dict[str, str], known: dict[str, int]) -> set[str]:
    """Original tensors that a node computes."""
    names = {same.get(name, name) for name in node.output if name}
    if node.name.endswith(_BLOCKED):
        names.add(node.name.removesuffix(_BLOCKED))
    return names & known.keys()


def _between(
    targets: set[str], boundary: set[str], nodes: list[onnx.NodeProto], producer: dict[str, int]
) -> tuple[str, ...]:
    """Names of the nodes that compute the targets from what is at the boundary."""
    ranks: set[int] = set()
    pending = list(targets)
    while pending:
        rank = producer.get(pending.pop())
        if rank is not None and rank not in ranks:
            ranks.add(rank)
            pending += [name for name in nodes[rank].input if name not in boundary]
    return tuple(nodes[rank].name for rank in sorted(ranks))
