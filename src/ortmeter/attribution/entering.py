"""Write the branches that If takes on given inputs in the main graph, where nodes can be read."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ortmeter.errors import ModelError
from ortmeter.evaluator.node import initializers
from ortmeter.runtime.graphs import bodies, rename_reads, walk_nodes
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import make_session

_DEPTH = 8  # of bodies in bodies
_IR = 4  # first one where initializers are not inputs


def enter_branches(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    **session: Any,
) -> onnx.ModelProto:
    """Replace each If by the branch that it takes on these inputs; Loop and Scan stay."""
    flat = model
    for _ in range(_DEPTH):
        ifs = [node for node in flat.graph.node if node.op_type == "If" and not node.domain]
        if not ifs:
            break
        asked = copy.deepcopy(flat)
        del asked.graph.output[:]
        conditions = dict.fromkeys(node.input[0] for node in ifs)
        asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in conditions)
        try:
            found = run_session(make_session(asked, **session), feeds)
        except ModelError:  # the model is explained as it is
            break
        flat = _flattened(flat, found)
    return flat


def _fresh_names(model: onnx.ModelProto) -> Iterator[str]:
    nodes = list(walk_nodes(model.graph.node))
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    taken |= {value.name for node in nodes for _, body in bodies(node) for value in body.input}
    return (name for rank in itertools.count() if (name := f"ortmeter_{rank}") not in taken)


def _flattened(model: onnx.ModelProto, found: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Replace each If of the main graph, whose condition is found."""
    flat, fresh = copy.deepcopy(model), _fresh_names(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "If" or node.domain:
            nodes.append(node)
            continue
        wanted = "then_branch" if np.asarray(found[node.input[0]]).all() else "else_branch"
        (body,) = (body for name, body in bodies(node) if name == wanted)
        copied, results = _copied(body, flat.graph, fresh, node.output)
        nodes += copied
        pairs = zip(results, node.output, strict=True)
        nodes += (
            onnx.helper.make_node("Identity", [value], [name], name=name)
            for value, name in pairs
            if value != name and name
        )
    del flat.graph.node[:]
    flat.graph.node.extend(nodes)
    named = set[str]()
    for node in filter(lambda node: node.name, flat.graph.node):
        more = (f"{node.name} ({rank})" for rank in itertools.count(2))
        # ONNX Runtime refuses a name of two nodes.
        node.name = next(name for name in itertools.chain([node.name], more) if name not in named)
        named.add(node.name)
    flat.ir_version = max(flat.ir_version, _IR)
    return flat


def _copied(
    body: onnx.GraphProto, graph: onnx.GraphProto, fresh: Iterator[str], ends: Sequence[str]
) -> tuple[list[onnx.NodeProto], list[str]]:
    """Copy the nodes of a branch with names that are free; return the names of its outputs too.

    An output that a node of the branch computes has the name of *ends*, where it has one.
    """
    renamed: dict[str, str] = {}
    for name, tensor in initializers(body):
        renamed[name] = next(fresh)
        graph.initializer.append(tensor)
        graph.initializer[-1].name = renamed[name]
    final = {value.name: end for value, end in zip(body.output, ends, strict=False) if end}
    copied = copy.deepcopy(list(body.node))
    for node in copied:
        rename_reads(node, renamed)
        own = {name: final.get(name) or next(fresh) for name in node.output if name}
        renamed |= own
        node.name = node.name or next(iter(own), "")
        node.output[:] = [own.get(name, "") for name in node.output]
    return copied, [renamed.get(value.name, value.name) for value in body.output]
