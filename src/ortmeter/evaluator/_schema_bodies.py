"""Operators run through the function that their ONNX schema defines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs

from ortmeter.evaluator._kernels import Kernel, RefusedError
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._plan import Plan
from ortmeter.evaluator._values import Signature, signature, type_proto

if TYPE_CHECKING:
    from ortmeter.evaluator._compiler import Compiler

__all__ = ["SchemaSource"]


class SchemaSource:
    """Bodies of schemas, whose nodes run on the other sources.

    Parameters
    ----------
    compiler : Compiler
        What compiles the bodies.
    """

    name = "schema"

    def __init__(self, compiler: "Compiler") -> None:
        self._compiler = compiler

    def kernel(self, node: Node) -> Kernel:
        """Compile the body; when it depends on the types of the inputs, once per types."""
        schema: Any = node.schema  # its type stubs lack the functions
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            raise RefusedError("the schema of ONNX has no function body")
        bound = {a.name: a.default_value for a in schema.attributes.values() if _has_default(a)}
        bound.update((attribute.name, attribute) for attribute in node.proto.attribute)
        plans: dict[Signature, Plan] = {}
        depends_on_shapes: set[Signature] = set()

        def plan_of(inputs: Sequence[Any]) -> Plan:
            types = signature(inputs)
            key = (types, _shapes(inputs)) if types in depends_on_shapes else types
            if key not in plans:
                body = _body(schema, node, inputs, with_shapes=key is not types)
                if not body.node and types not in depends_on_shapes:
                    depends_on_shapes.add(types)
                    return plan_of(inputs)
                plans[key] = self._compiler.function(body, node, bound, str(node))
            return plans[key]

        def run(*inputs: Any) -> tuple[Any, ...]:
            plan = plan_of(inputs)
            missing = (None,) * (len(plan.inputs) - len(inputs))
            return tuple(plan.run((*inputs, *missing)))

        return run

    def refuses(self, error: Exception) -> bool:
        """Tell that there is no body, or that one of its nodes has no kernel."""
        return isinstance(error, RefusedError)


def _has_default(attribute: Any) -> bool:
    return bool(attribute.default_value.type != onnx.AttributeProto.UNDEFINED)


def _shapes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(getattr(value, "shape", ())) for value in inputs)


def _body(
    schema: Any, node: Node, inputs: Sequence[Any], *, with_shapes: bool
) -> onnx.FunctionProto:
    """Ask the schema for the body; some depend on the types of the inputs, few on their shapes."""
    function = onnx.FunctionProto()
    if schema.has_function:
        version = _latest(schema.function_opset_versions, node.opset)
        function.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        version = _latest(schema.context_dependent_function_opset_versions, node.opset)
        types = [type_proto(value, with_shapes=with_shapes).SerializeToString() for value in inputs]
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, node.proto.SerializeToString(), types
            )
        )
    if with_shapes and not function.node:
        raise RefusedError("the schema of ONNX has no body for these types and shapes")
    return function


def _latest(versions: Sequence[int], opset: int) -> int:
    found = [version for version in versions if version <= opset]
    if not found:
        raise RefusedError(f"the schema of ONNX has no body for opset {opset}")
    return max(found)
