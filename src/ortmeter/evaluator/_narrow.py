"""Operators that ONNX defines in float32 only: casts around them, in a model in float64."""

from collections.abc import Callable, Collection, Iterator, Mapping

import onnx
import onnx.helper
import onnx.shape_inference

from ortmeter.evaluator._attributes import subgraphs

__all__ = ["add_casts", "element_types", "is_added"]

# Marks the casts that the original model does not have.
_ADDED = "ortmeter.added"
_SINGLE, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE

#: Tells whether ONNX gives no float64 to an input (or an output) of a node.
Refusal = Callable[[onnx.NodeProto, int], bool]


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Map the results of a model and of its subgraphs to their element types, where known."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        inferred = model
    return dict(_declared(inferred.graph))


def is_added(node: onnx.NodeProto) -> bool:
    """Tell whether a node is a cast that :func:`add_casts` added."""
    return any(prop.key == _ADDED for prop in node.metadata_props)


def _declared(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.name, tensor.data_type
    for node in graph.node:
        for subgraph in subgraphs(node).values():
            yield from _declared(subgraph)


def add_casts(
    graph: onnx.GraphProto,
    widened: Mapping[str, bool],
    kept: Collection[str],
    refuses_input: Refusal,
    refuses_output: Refusal,
) -> None:
    """Put casts around the operators without float64, in place.

    Parameters
    ----------
    graph : GraphProto
        Graph whose values are float64 already, subgraphs are left.
    widened : mapping of str to bool
        Whether a value was a float that became float64.
    kept : collection of str
        Values that stayed as they were.
    refuses_input, refuses_output : callable
        Tell which inputs and outputs of a node have no float64.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        before = [
            (position, name)
            for position, name in enumerate(node.input)
            if widened.get(name) and name not in kept and refuses_input(node, position)
        ]
        after = [
            (position, name)
            for position, name in enumerate(node.output)
            if widened.get(name) and name not in kept and refuses_output(node, position)
        ]
        for position, name in before:
            node.input[position] = _narrowed(name, node, position)
            nodes.append(_cast(name, node.input[position], _SINGLE))
        nodes.append(node)
        for position, name in after:
            node.output[position] = f"{name}_float32"
            nodes.append(_cast(node.output[position], name, _DOUBLE))
    if len(nodes) > len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _narrowed(name: str, node: onnx.NodeProto, position: int) -> str:
    return f"{name}_float32_{node.output[0]}_{position}"


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    node = onnx.helper.make_node("Cast", [source], [target], name=f"cast_{target}", to=to)
    node.metadata_props.add(key=_ADDED, value="1")
    return node
