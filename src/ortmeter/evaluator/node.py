"""One node of a model: its attributes decoded, its scope, and the slots of the values it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from ortmeter.errors import ModelError


def domain_name(domain: str) -> str:
    """Name a domain: the standard one has two names."""
    return "" if domain == "ai.onnx" else domain


def opset_versions(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {domain_name(item.domain): item.version for item in proto.opset_import}


def initializers(graph: onnx.GraphProto) -> list[tuple[str, onnx.TensorProto]]:
    """List the initializers with their names; a sparse one is an error."""
    for sparse in graph.sparse_initializer:
        raise ModelError(
            f"Sparse initializer {sparse.values.name!r} is not supported: make it a dense one"
        )
    return [(tensor.name, tensor) for tensor in graph.initializer]


def dense_array(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (OSError, ValueError, TypeError, KeyError, onnx.checker.ValidationError) as cause:
        raise ModelError(f"Tensor {tensor.name!r} cannot be read: {cause}") from cause


def _decoded(value: Any) -> Any:
    """Decode an attribute: Python numbers, text, lists, NumPy arrays, protos for the rest."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    if isinstance(value, onnx.TensorProto):
        return dense_array(value)
    return list(map(_decoded, value)) if isinstance(value, list) else value


def bind_node(node: onnx.NodeProto, bound: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Replace references to attributes of a function by their values; the absent have none."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        value = bound.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            added = copy.attribute.add()
            added.CopyFrom(value)
            added.name = attribute.name
    return copy


@dataclass(frozen=True, eq=False)
class Node:
    """A node whose attributes are known."""

    proto: onnx.NodeProto
    imports: Mapping[str, int]  # opset of each domain
    scope: str  # "" for the main graph, node/attribute for a subgraph, domain.name for a function

    @cached_property
    def domain(self) -> str:
        return domain_name(self.proto.domain)

    @property
    def op_type(self) -> str:
        return str(self.proto.op_type)

    @property
    def operator(self) -> str:
        """Name of the operator, with its domain unless it is the standard one."""
        return ".".join(filter(None, (self.domain, self.op_type)))

    @cached_property
    def opset(self) -> int:
        """Version of the domain in this graph; 1 for a custom domain that is not imported."""
        if self.domain not in self.imports:
            if self.domain == "":
                raise ModelError(f"{self}: the model imports no version of the standard opset")
            return 1
        return self.imports[self.domain]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes given by the node, decoded; graphs are left out."""
        return {
            a.name: _decoded(onnx.helper.get_attribute_value(a))
            for a in self.proto.attribute
            if a.type not in {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
        }

    @cached_property
    def schema(self) -> onnx.defs.OpSchema | None:
        """Definition of the operator, ``None`` for an operator that ONNX does not define."""
        try:
            return onnx.defs.get_schema(self.op_type, self.opset, self.domain)
        except onnx.defs.SchemaError:
            return None

    @cached_property
    def n_outputs(self) -> int:
        """Count of outputs, up to the last one that has a name."""
        return max((i + 1 for i, name in enumerate(self.proto.output) if name), default=0)

    @property
    def label(self) -> str:
        """Name of the node, or of its first output when it has none."""
        return self.proto.name or next((name for name in self.proto.output if name), "")

    def __str__(self) -> str:
        place = f" of {self.scope}" if self.scope else ""
        return f"node {self.label!r} ({self.operator}){place}"


# The value of each form of Constant, and its type when the attribute holds Python values.
_CONSTANT_TYPES: dict[str, Any] = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def constant_value(node: Node) -> np.ndarray:
    given = node.attributes
    if len(given) != 1 or not given.keys() <= _CONSTANT_TYPES.keys():
        raise ModelError(
            f"{node} has the values {', '.join(given) or 'none'}. Accepted: exactly one of "
            + ", ".join(_CONSTANT_TYPES)
        )
    ((name, value),) = given.items()
    return np.asarray(value, _CONSTANT_TYPES[name])


#: Slot of the absent inputs, which holds ``None``.
NOTHING = 0


@dataclass
class Names:
    """What the nodes of one graph share, see `Node`: slots of their names, above all."""

    scope: str
    imports: Mapping[str, int]
    bound: Mapping[str, onnx.AttributeProto]  # of the function around
    is_nested: bool = False  # unknown names come from the graph around
    slots: dict[str, int] = field(default_factory=lambda: {"": NOTHING})
    constants: dict[int, Any] = field(default_factory=dict)
    captures: list[str] = field(default_factory=list)

    def define(self, name: str) -> int:
        """Number a new result."""
        if not name:
            return NOTHING
        if name in self.slots:
            place = self.scope or "the graph"
            raise ModelError(f"Result {name!r} is defined twice in {place}")
        self.slots[name] = len(self.slots)
        return self.slots[name]

    def use(self, name: str, user: object) -> int:
        """Find a result, in the graph around when it is not here."""
        if name not in self.slots:
            if not self.is_nested:
                raise ModelError(f"{user} needs {name!r}, which nothing before it gives")
            self.captures.append(name)
            self.define(name)
        return self.slots[name]
