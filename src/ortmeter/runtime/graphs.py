"""Nodes of a graph and of the graphs inside it."""

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import google.protobuf.message
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

#: What shape inference raises: its own errors, and those of a model that is too large.
NOT_INFERRED = (
    *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError),
    *(ValueError, google.protobuf.message.EncodeError),
)

# Attributes of Constant: the field, the type of its numbers.
_NUMBERS = {
    "value_float": ("f", np.float32),
    "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64),
    "value_ints": ("ints", np.int64),
}


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """List the graphs that a node holds, but for empty ones, with the name of their attribute."""
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            if body.node or body.output:
                yield attribute.name, body


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node that are given."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def constant_tensors(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.TensorProto]:
    """Numbers of Constant nodes by name, but for malformed ones, which ONNX Runtime refuses."""
    found = {}
    for node in (node for node in nodes if node.op_type == "Constant" and node.output):
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                found[node.output[0]] = attribute.t
            elif attribute.name in _NUMBERS:
                field, kind = _NUMBERS[attribute.name]
                array = np.asarray(getattr(attribute, field), kind)
                found[node.output[0]] = onnx.numpy_helper.from_array(array, node.output[0])
    return found


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """List a graph and the bodies inside it, each one after what is around it."""
    yield graph
    for node in graph.node:
        for _, body in bodies(node):
            yield from walk_graphs(body)


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """List nodes in order, those of a body after the node that holds it."""
    for node in nodes:
        yield node
        for _, body in bodies(node):
            yield from walk_nodes(body.node)


def read_by(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, itself or in its bodies."""
    return {*node.input, *(name for _, body in bodies(node) for name in captured(body))}


def readers_of(nodes: Iterable[onnx.NodeProto]) -> dict[str, list[onnx.NodeProto]]:
    """List the nodes that read each name, themselves or in their bodies."""
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in nodes:
        for name in read_by(node):
            readers[name].append(node)
    return readers


def captured(body: onnx.GraphProto) -> set[str]:
    """Names that a body reads in the graph around it."""
    known = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    known |= {name for node in body.node for name in node.output}
    read = {name for node in body.node for name in read_by(node)}
    return (read | {value.name for value in body.output}) - known - {""}


def rename_reads(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename what a node reads, and what its bodies read around them."""
    for rank, name in enumerate(node.input):
        node.input[rank] = renamed.get(name, name)
    for _, body in bodies(node):
        outer = {name: renamed[name] for name in captured(body) if name in renamed}
        for inner in body.node:
            rename_reads(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def replace_items(field: Any, items: Iterable[Any]) -> None:
    """Put other messages into a repeated field; those that it has may be among them."""
    kept = list(items)
    del field[:]
    field.extend(kept)


def onnx_opset(model: onnx.ModelProto) -> int:
    """Opset of the operators of ONNX that a model asks for, 0 when it asks for none."""
    return max((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=0)


def in_order(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Put each node after those whose results it reads, as ONNX Runtime does."""
    given = list(nodes)
    writer = {name: rank for rank, node in enumerate(given) for name in node.output if name}
    placed: dict[int, onnx.NodeProto] = {}
    opened: set[int] = set()
    for first in range(len(given)):
        waiting = [first]
        while waiting:
            rank = waiting[-1]
            reads = () if rank in opened else read_by(given[rank])
            opened.add(rank)  # a circle stays out of order
            before = {writer[name] for name in reads if name in writer} - opened
            waiting += sorted(before, reverse=True)
            if not before:
                placed.setdefault(waiting.pop(), given[rank])
    return list(placed.values())


def with_intermediate_outputs(
    model: onnx.ModelProto, computed: Collection[str] | None = None
) -> onnx.ModelProto:
    """Copy a model whose outputs are all the results of its nodes, or those that are computed."""
    exposed = copy.deepcopy(model)
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        names = [name for name in node.output if name and name not in known]
        if computed is not None:
            names = [name for name in names if name in computed]
        exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return exposed


def without_maps(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model whose outputs are the arrays that ZipMap makes dictionaries of.

    The names of these arrays are also returned, by output; without any, the model is the same.
    """
    zips = {node.output[0]: node for node in model.graph.node if node.op_type == "ZipMap"}
    arrays = {o.name: zips[o.name].input[0] for o in model.graph.output if o.name in zips}
    if not arrays:
        return model, arrays
    changed = copy.deepcopy(model)
    for name in arrays:
        changed.graph.node.remove(zips[name])
    kept = [output for output in model.graph.output if output.name not in arrays]
    added = dict.fromkeys(array for array in arrays.values() if array not in {o.name for o in kept})
    kept += [onnx.helper.make_tensor_value_info(a, onnx.TensorProto.FLOAT, None) for a in added]
    replace_items(changed.graph.output, kept)
    return changed, arrays
