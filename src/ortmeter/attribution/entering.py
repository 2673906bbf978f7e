"""Write what If and Loop run on given inputs in the main graph, where nodes can be read."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ortmeter.errors import ModelError
from ortmeter.evaluator.node import initializers
from ortmeter.runtime.graphs import bodies, onnx_opset, rename_reads, walk_nodes
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import make_session

_ENTERED = {"If", "Loop"}
_MOST = 5000  # nodes
_DEPTH = 8  # of bodies in bodies
_SEQUENCES = 11  # first opset with ConcatFromSequence
_IR = 4  # first one where initializers are not inputs


def enter_bodies(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    **session: Any,
) -> onnx.ModelProto:
    """Replace If by the branch that it takes on these inputs, Loop by its iterations.

    What cannot be entered stays: Scan, a loop without iterations, or of thousands of nodes.
    """
    flat = model
    left = set[str]()
    for _ in range(_DEPTH):
        entered = (n for n in flat.graph.node if n.op_type in _ENTERED and not n.domain)
        nodes = [n for n in entered if n.output[0] not in left]
        if not nodes:
            break
        try:
            asked, names = _with_counts(flat, nodes)
            found = run_session(make_session(asked, **session), feeds)
        except ModelError:  # the model is explained as it is
            break
        flat, kept = _flattened(flat, {name: found[asks] for name, asks in names.items()})
        left |= kept
    return flat


def _with_counts(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Make a model that returns conditions and iterations of loops; name by node."""
    asked, fresh = copy.deepcopy(model), _fresh_names(model)
    wanted = {node.output[0] for node in nodes}
    names = {}
    for node in (node for node in asked.graph.node if wanted.intersection(node.output[:1])):
        first = node.output[0]
        if node.op_type == "If":
            names[first] = node.input[0]
            continue
        (body,) = (body for _, body in bodies(node))
        count, names[first] = next(fresh), next(fresh)
        body.node.append(onnx.helper.make_node("Identity", [body.input[0].name], [count]))
        body.output.append(onnx.helper.make_tensor_value_info(count, onnx.TensorProto.INT64, []))
        node.output.append(names[first])
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names.values()))
    return asked, names


def _fresh_names(model: onnx.ModelProto) -> Iterator[str]:
    nodes = list(walk_nodes(model.graph.node))
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    taken |= {value.name for node in nodes for _, body in bodies(node) for value in body.input}
    return (name for rank in itertools.count() if (name := f"ortmeter_{rank}") not in taken)


def _flattened(
    model: onnx.ModelProto, found: Mapping[str, np.ndarray]
) -> tuple[onnx.ModelProto, set[str]]:
    """Replace the nodes whose condition, or iterations, are found; name those that stay."""
    flat, fresh = copy.deepcopy(model), _fresh_names(model)
    sequences = onnx_opset(flat) >= _SEQUENCES
    nodes: list[onnx.NodeProto] = []
    kept = set[str]()
    for node in model.graph.node:
        value = found.get(node.output[0]) if node.output else None
        if value is None:
            nodes.append(node)
        elif node.op_type == "If":
            wanted = "then_branch" if np.asarray(value).all() else "else_branch"
            (body,) = (body for name, body in bodies(node) if name == wanted)
            copied, results = _copied(body, flat.graph, fresh, ends=node.output)
            nodes += copied
            pairs = zip(results, node.output, strict=True)
            nodes += (_identity(*pair) for pair in pairs if pair[0] != pair[1] and pair[1])
        else:
            (body,) = (body for _, body in bodies(node))
            size = len(list(walk_nodes(body.node))) * value.size
            stacks = len(body.output) > len(body.input) - 1
            if not 0 < size <= _MOST or (stacks and not sequences):
                nodes.append(node)
                kept.add(node.output[0])
            else:
                nodes += _unrolled(node, body, value.size, flat.graph, fresh)
    del flat.graph.node[:]
    flat.graph.node.extend(nodes)
    named = set[str]()
    for node in filter(lambda node: node.name, flat.graph.node):
        more = (f"{node.name} ({rank})" for rank in itertools.count(2))
        # ONNX Runtime refuses a name of two nodes.
        node.name = next(name for name in itertools.chain([node.name], more) if name not in named)
        named.add(node.name)
    flat.ir_version = max(flat.ir_version, _IR)
    return flat, kept


def _unrolled(
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    count: int,
    graph: onnx.GraphProto,
    fresh: Iterator[str],
) -> Iterator[onnx.NodeProto]:
    """Write the iterations of a Loop one after the other."""
    names = [value.name for value in body.input]
    values = [node.input[1] or _constant(graph, next(fresh), np.array(True)), *node.input[2:]]
    rows: list[list[str]] = []
    for rank in range(count):
        index = _constant(graph, next(fresh), np.array(rank, np.int64))
        known = dict(zip(names, [index, *values], strict=True))
        label = f" of iteration {rank}"
        copied, results = _copied(body, graph, fresh, given=known, label=label)
        yield from copied
        values, stacked = results[: len(values)], results[len(values) :]
        rows.append(stacked)
    carried = len(values) - 1
    for value, name in zip(values[1:], node.output, strict=False):
        if name:
            yield _identity(value, name)
    for parts, name in zip(zip(*rows, strict=True), node.output[carried:], strict=False):
        if name:
            joined = next(fresh)
            yield onnx.helper.make_node("SequenceConstruct", parts, [joined])
            yield onnx.helper.make_node(
                "ConcatFromSequence", [joined], [name], name=node.name, axis=0, new_axis=1
            )


def _copied(
    body: onnx.GraphProto,
    graph: onnx.GraphProto,
    fresh: Iterator[str],
    *,
    given: Mapping[str, str] | None = None,
    ends: Sequence[str] = (),
    label: str = "",
) -> tuple[list[onnx.NodeProto], list[str]]:
    """Copy the nodes of a body with names that are free; return the names of its outputs too.

    An output that a node of the body computes has the name of *ends*, where it has one.
    """
    renamed = dict(given or {})
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
        node.name = f"{node.name or next(iter(own), '')}{label}"
        node.output[:] = [own.get(name, "") for name in node.output]
    return copied, [renamed.get(value.name, value.name) for value in body.output]


def _constant(graph: onnx.GraphProto, name: str, value: np.ndarray) -> str:
    graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return name


def _identity(value: str, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Identity", [value], [name], name=name)
