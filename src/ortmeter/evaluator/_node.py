"""One node of a model, with what its kernels need to know about its scope."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
import onnx.defs

from ortmeter.errors import ModelError
from ortmeter.evaluator._attributes import python_value

__all__ = ["Node", "domain_name", "node_label", "opset_versions"]


def domain_name(domain: str) -> str:
    """Name a domain: the standard one has two names."""
    return "" if domain == "ai.onnx" else domain


def opset_versions(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Read the version of each domain that a model or a function imports."""
    return {domain_name(item.domain): item.version for item in proto.opset_import}


def node_label(proto: onnx.NodeProto) -> str:
    """Name of a node, or of its first output when it has none."""
    return proto.name or next((name for name in proto.output if name), "")


@dataclass(frozen=True, eq=False)
class Node:
    """A node whose attributes are known.

    Parameters
    ----------
    proto : NodeProto
        The node, without references to the attributes of a function.
    imports : mapping of str to int
        Opset of each domain in its graph or function.
    scope : str
        Graph of the node: empty for the main one, ``node/attribute`` for a subgraph,
        ``domain.function`` for a function.
    """

    proto: onnx.NodeProto
    imports: Mapping[str, int]
    scope: str

    @cached_property
    def domain(self) -> str:
        """Domain of the operator, empty for the standard one."""
        return domain_name(self.proto.domain)

    @property
    def op_type(self) -> str:
        """Name of the operator."""
        return str(self.proto.op_type)

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
            a.name: python_value(a)
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
        return node_label(self.proto)

    def __str__(self) -> str:
        place = f" of {self.scope}" if self.scope else ""
        operator = ".".join(filter(None, (self.domain, self.op_type)))
        return f"node {self.label!r} ({operator}){place}"
