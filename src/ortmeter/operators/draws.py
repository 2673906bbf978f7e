"""Nodes whose results are drawn."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import onnx
import onnx.numpy_helper

from ortmeter.operators.registry import find_operator
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import constant_tensors, walk_nodes

_Functions: TypeAlias = dict[tuple[str, str], Iterable[onnx.NodeProto]]


def drawing_nodes(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[onnx.NodeProto]:
    """List the nodes of the main graph that draw numbers, themselves or in what they execute."""
    functions: _Functions = {(f.domain, f.name): f.node for f in model.functions}
    every = list(walk_nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]))
    known = {**{tensor.name: tensor for tensor in model.graph.initializer}, **feeds}
    known |= constant_tensors(every)

    def draw(nodes: Iterable[onnx.NodeProto], left: _Functions) -> bool:
        return any(
            find_operator(node.op_type, node.domain).is_random
            or (node.op_type == "Dropout" and _trains(node, known))
            # Once: a function may call others many times, or itself.
            or draw(left.pop((node.domain, node.op_type), ()), left)
            for node in walk_nodes(nodes)
        )

    return [node for node in model.graph.node if draw([node], dict(functions))]


def _trains(node: onnx.NodeProto, known: Mapping[str, Any]) -> bool:
    """Whether a Dropout leaves out elements: it has a ratio and a mode of training."""
    _, ratio, training = [*node.input, "", ""][:3]
    return bool(_value(known.get(training), 0)) and bool(_value(known.get(ratio), 0.5))


def _value(given: Any, default: float) -> Any:
    if given is None:
        return default
    if isinstance(given, onnx.TensorProto):
        given = onnx.numpy_helper.to_array(given)
    array = as_numpy(given)
    return array.item() if array.size == 1 else default
