"""Which integers an input may hold when the graph uses it as an index."""

from collections.abc import Mapping

import onnx

from ortmeter.runtime.graphs import walk_nodes

__all__ = ["index_bounds"]

# Operators whose output holds the elements of their first input.
_KEEPS_ELEMENTS = {
    "Cast",
    "Expand",
    "Flatten",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
_GATHERS = {"Gather", "GatherElements", "ScatterElements"}


def index_bounds(model: onnx.ModelProto) -> dict[str, int]:
    """Find, for the inputs used as indices, the smallest size of what they index.

    Parameters
    ----------
    model : ModelProto
        Model whose weights are loaded or not.

    Returns
    -------
    dict of str to int
        Exclusive bound of each input that reaches the indices of a Gather, GatherElements or
        ScatterElements, through operators that keep its elements; 0 when the size of an indexed
        axis is not known.
    """
    shapes = _known_shapes(model)
    origin = {info.name: info.name for info in model.graph.input}
    bounds: dict[str, int] = {}
    for node in walk_nodes(model.graph.node):
        if node.op_type in _KEEPS_ELEMENTS and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in _GATHERS and len(node.input) > 1 and node.input[1] in origin:
            name = origin[node.input[1]]
            bounds[name] = min(_indexed_size(node, shapes), bounds.get(name, 2**31))
    return bounds


def _known_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Map each result to its sizes, 0 for those that are not known."""
    tensors = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    return {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*model.graph.input, *model.graph.value_info)
    } | tensors


def _indexed_size(node: onnx.NodeProto, shapes: Mapping[str, list[int]]) -> int:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    shape = shapes.get(node.input[0], [])
    return max(shape[axis] if -len(shape) <= axis < len(shape) else 0, 0)
