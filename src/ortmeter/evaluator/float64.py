"""Convert a model to float64, as a reference to measure discrepancies."""

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from ortmeter.evaluator.node import (
    Node,
    dense_array,
    domain_name,
    initializers,
    opset_versions,
)
from ortmeter.evaluator.values import is_torch
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import bodies, walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model

_SINGLE, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
# Marks the casts that the original model does not have.
_ADDED = "ortmeter.added"
#: float8 and float4 are left: their values are codes that a scale gives a meaning to.
FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
#: Attributes that hold an element type.
TYPE_ATTRIBUTES = {
    "dtype",
    "output_datatype",
    "output_dtype",
    "precision",
    "softmax_precision",
    "stash_type",
    "to",
}
# Arithmetic whose definition holds in any type, though ONNX lists the narrow ones.
_OF_ANY_FLOAT = {"CausalConvWithState", "LinearAttention", "RotaryEmbedding"}
# Values of a Constant that are not tensors.
_FLOAT_VALUES = ("value_float", "value_floats")


def to_float64(model: ModelLike) -> onnx.ModelProto:
    """Convert the float32, float16 and bfloat16 tensors of a model to float64.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. It is not modified.

    Returns
    -------
    onnx.ModelProto
        The same graph in float64: floating-point inputs, outputs, weights, constants and targets of
        Cast, including subgraphs and local functions. The values of the weights do not change.

    Notes
    -----
    A weight is not converted if ONNX does not define float64 for the inputs that read it, such as
    the scales of Resize. Operators that every opset of ONNX defines in float32 only, such as
    DynamicQuantizeLinear or the trees of ``ai.onnx.ml``, stay in float32, between casts, and so do
    the inputs that only they read; local functions get no casts.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float16[n] X) => (float[n] Y) { Y = Cast<to = 1>(X) }'''
    >>> double = to_float64(text)
    >>> [v.type.tensor_type.elem_type for v in (*double.graph.input, *double.graph.output)]
    [11, 11]
    """
    original = load_model(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    _convert_graph(copy.graph, _Rules(copy, opset_versions(copy), _element_types(original)))
    for function in copy.functions:
        _convert_nodes(function.node, _Rules(copy, opset_versions(function), {}), kept=set())
        for value in function.value_info:
            _convert_type(value.type)
    return copy


class _Rules:
    """What converting a node needs to know about the model."""

    def __init__(
        self, model: onnx.ModelProto, imports: Mapping[str, int], types: Mapping[str, int]
    ) -> None:
        self._imports = imports
        self.widened = {name: kind in FLOATS for name, kind in types.items()}
        self._functions = {(domain_name(f.domain), f.name): f for f in model.functions}

    def schema(self, node: onnx.NodeProto) -> Any:
        """Return the definition of an operator, None when ONNX has none."""
        return Node(node, self._imports, "").schema

    def has_no_double(self, node: onnx.NodeProto, side: str, position: int) -> bool:
        """Check whether ONNX has no float64 for one of the "inputs" or "outputs" of an operator."""
        schema = self.schema(node)
        if schema is None or node.op_type in _OF_ANY_FLOAT:
            return False
        formals = getattr(schema, side)
        formal = formals[min(position, len(formals) - 1)]
        # What a later opset takes, such as Celu of opset 28, is defined as well in an earlier one.
        later = getattr(onnx.defs.get_schema(node.op_type, domain=schema.domain), side)
        same = [formal, *(other for other in later if other.name == formal.name)]
        return not any("double" in kind for each in same for kind in each.types)

    def type_attributes(self, node: onnx.NodeProto) -> set[str]:
        """Name the attributes of a node that hold an element type."""
        function = self._functions.get((domain_name(node.domain), node.op_type))
        if function is None:
            return TYPE_ATTRIBUTES
        return {
            attribute.ref_attr_name
            for inner in walk_nodes(function.node)
            for attribute in inner.attribute
            if attribute.ref_attr_name and attribute.name in self.type_attributes(inner)
        }


def _convert_graph(graph: onnx.GraphProto, rules: _Rules) -> None:
    kept = _names_kept(graph.node, rules)
    for name, tensor in initializers(graph):
        if name not in kept:
            _convert_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name not in kept:
            _convert_type(value.type)
    _convert_nodes(graph.node, rules, kept)
    _add_casts(graph, kept, rules)


def _names_kept(nodes: Iterable[onnx.NodeProto], rules: _Rules) -> set[str]:
    """Name the values that only inputs without float64 read."""
    refused: set[str] = set()
    accepted: set[str] = set()
    for node in walk_nodes(nodes):
        for position, name in enumerate(node.input):
            (refused if rules.has_no_double(node, "inputs", position) else accepted).add(name)
    return refused - accepted - {""}


def _convert_nodes(nodes: MutableSequence[onnx.NodeProto], rules: _Rules, kept: set[str]) -> None:
    for node in nodes:
        if not kept.intersection(node.output):
            _convert_node(node, rules)
        for _, graph in bodies(node):
            _convert_graph(graph, rules)
    for i in reversed(range(len(nodes))):
        if _is_float_of_a_function(nodes[i]):
            (name,) = nodes[i].output
            nodes[i].output[0] = f"{name}__float32"
            nodes.insert(i + 1, _cast_node(nodes[i].output[0], name, _DOUBLE))


def _is_float_of_a_function(node: onnx.NodeProto) -> bool:
    """Recognise a Constant whose value is an attribute of the function: its caller knows it."""
    return node.op_type == "Constant" and any(
        attribute.ref_attr_name and attribute.name in _FLOAT_VALUES for attribute in node.attribute
    )


def _convert_node(node: onnx.NodeProto, rules: _Rules) -> None:
    types = rules.type_attributes(node)
    _add_defaults(node, rules.schema(node), types)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _convert_tensor(attribute.t)
        elif attribute.type == onnx.AttributeProto.TYPE_PROTO:
            _convert_type(attribute.tp)
        elif attribute.name in types and attribute.i in FLOATS:
            attribute.i = _DOUBLE
    if domain_name(node.domain) == "":
        _convert_values(node)


def _add_defaults(node: onnx.NodeProto, schema: Any, types: set[str]) -> None:
    """Write the defaults that are floats, since 0.01 in float64 is another number, or types."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items() if schema else ():
        default = attribute.default_value
        is_number = default.type == onnx.AttributeProto.FLOAT
        if name not in given and (is_number or (name in types and default.i in FLOATS)):
            node.attribute.append(default)


def _convert_values(node: onnx.NodeProto) -> None:
    """Give float64 to what makes float32 when no attribute that holds a type says otherwise."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "SequenceEmpty" and "dtype" not in given:
        node.attribute.append(onnx.helper.make_attribute("dtype", int(_DOUBLE)))
    elif node.op_type == "ConstantOfShape" and "value" not in given:
        node.attribute.append(onnx.helper.make_attribute("value", _tensor(np.zeros(1))))
    elif node.op_type == "Constant":
        for name in _FLOAT_VALUES:
            if name in given and not given[name].ref_attr_name:
                value = onnx.helper.get_attribute_value(given[name])
                node.attribute.remove(given[name])
                node.attribute.append(onnx.helper.make_attribute("value", _tensor(value)))


def _tensor(value: object) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(value, np.float64))


def _convert_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS:
        array = dense_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _convert_type(kind: onnx.TypeProto) -> None:
    match kind.WhichOneof("value"):
        case "tensor_type":
            tensor = kind.tensor_type
            if tensor.elem_type in FLOATS:
                tensor.elem_type = _DOUBLE
        case "sequence_type":
            _convert_type(kind.sequence_type.elem_type)
        case "optional_type":
            _convert_type(kind.optional_type.elem_type)
        case "map_type":
            _convert_type(kind.map_type.value_type)


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Map the results of a model and of its subgraphs to their element types, where known."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        inferred = model
    return dict(_declared(inferred.graph))


def is_added(node: onnx.NodeProto) -> bool:
    """Check whether a node is a cast that `to_float64` added."""
    return any(prop.key == _ADDED for prop in node.metadata_props)


def _declared(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.name, tensor.data_type
    for node in graph.node:
        for _, body in bodies(node):
            yield from _declared(body)


def _add_casts(graph: onnx.GraphProto, kept: set[str], rules: _Rules) -> None:
    """Put casts around the operators without float64, in place; subgraphs are left."""

    def moved(node: onnx.NodeProto, side: str, names: Sequence[str]) -> list[tuple[int, str]]:
        """Number the values that were floats, became float64 and cannot be so here."""
        return [
            (position, name)
            for position, name in enumerate(names)
            if rules.widened.get(name)
            and name not in kept
            and rules.has_no_double(node, side, position)
        ]

    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        before = moved(node, "inputs", node.input)
        after = moved(node, "outputs", node.output)
        for position, name in before:
            node.input[position] = f"{name}_float32_{node.output[0]}_{position}"
            nodes.append(_cast_node(name, node.input[position], _SINGLE))
        nodes.append(node)
        for position, name in after:
            node.output[position] = f"{name}_float32"
            nodes.append(_cast_node(node.output[position], name, _DOUBLE))
    if len(nodes) > len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _cast_node(source: str, target: str, to: int) -> onnx.NodeProto:
    node = onnx.helper.make_node("Cast", [source], [target], name=f"cast_{target}", to=to)
    node.metadata_props.add(key=_ADDED, value="1")
    return node


def exact_feeds(
    model: onnx.ModelProto, double: onnx.ModelProto, feeds: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert the feeds whose type is another one in float64."""
    pairs = zip(model.graph.input, double.graph.input, strict=True)
    wide = {value.name for value, exact in pairs if value.type != exact.type}
    return {name: widen(value) if name in wide else value for name, value in feeds.items()}


def widen(value: Any) -> Any:
    """Convert an array of any library, or a sequence of arrays, to float64."""
    if value is None or isinstance(value, list):
        return None if value is None else [widen(item) for item in value]
    return value.double() if is_torch(value) else as_numpy(value).astype(np.float64)
