"""Kernels of onnx.reference, on NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import onnx.defs
import onnx.helper
import onnx.reference
import onnx.reference.op_run
import onnx.shape_inference
from onnx.reference.ops import aionnx_preview, aionnx_preview_training, aionnxml
from onnx.reference.ops._op_list import load_op

from ortmeter.dtypes import short_name
from ortmeter.evaluator._kernels import Kernel, RefusedError
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._values import Memory, Signature, element_type, signature, type_proto
from ortmeter.runtime.arrays import as_numpy

__all__ = ["ReferenceSource"]

_LOADERS = {
    "": load_op,
    "ai.onnx.ml": aionnxml.load_op,
    "ai.onnx.preview": aionnx_preview.load_op,
    "ai.onnx.preview.training": aionnx_preview_training.load_op,
}


class ReferenceSource:
    """Operators of :mod:`onnx.reference`.

    Parameters
    ----------
    memory : Memory
        Where results are put.
    """

    name = "reference"

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def kernel(self, node: Node) -> Kernel:
        """Load the implementation of an operator, not the body of its schema."""
        operator = _load(node)(node.proto, _settings(node))
        memory = self._memory
        expected: dict[Signature, list[int]] = {}

        def run(*inputs: Any) -> tuple[Any, ...]:
            key = signature(inputs)
            if key not in expected:
                expected[key] = _output_types(node, inputs)
            results = operator.run(*(memory.export(value, "numpy") for value in inputs))
            _check_types(results, expected[key])
            return tuple(memory.hold(result) for result in results)

        return run

    def refuses(self, error: Exception) -> bool:
        """Tell that an operator has no implementation for these types."""
        return isinstance(error, RefusedError | NotImplementedError)


def _load(node: Node) -> Any:
    loader = _LOADERS.get(node.domain)
    if loader is None:
        raise RefusedError(f"no operator of domain {node.domain!r}")
    try:
        found = loader(node.domain, node.op_type, node.opset)
    except (NotImplementedError, AssertionError, onnx.reference.op_run.RuntimeContextError):
        found = None
    if not isinstance(found, type):  # nothing, or the body of the schema, which we run ourselves
        raise RefusedError(f"no implementation of {node.op_type}")
    if found.__name__ == node.op_type:  # not one of those written for an older opset
        _refuse_old_attributes(node)
    return found


def _refuse_old_attributes(node: Node) -> None:
    """Refuse the attributes of older opsets, which the newest implementations ignore silently."""
    newest = onnx.defs.get_schema(node.op_type, domain=node.domain)
    if old := node.attributes.keys() - newest.attributes.keys():
        raise RefusedError(f"attributes {', '.join(sorted(old))} of opset {node.opset}")


def _settings(node: Node) -> dict[str, Any]:
    return {
        "log": lambda *_: None,
        "opsets": dict(node.imports),
        "verbose": 0,
        "new_ops": None,
        "existing_functions": {},
        "evaluator_cls": onnx.reference.ReferenceEvaluator,
    }


def _output_types(node: Node, inputs: Sequence[Any]) -> list[int]:
    """Element types that ONNX gives to the outputs, 0 when it does not say."""
    if node.schema is None:
        return []
    given = {
        name: type_proto(value)
        for name, value in zip(node.proto.input, inputs, strict=False)
        if name and value is not None
    }
    imports = [onnx.helper.make_opsetid(*item) for item in node.imports.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(
            node.schema, node.proto, given, opset_imports=imports
        )
    except Exception:  # noqa: BLE001 - inference is a help, not a condition
        return []
    return [found[name].tensor_type.elem_type if name in found else 0 for name in node.proto.output]


def _check_types(results: Sequence[Any], expected: Sequence[int]) -> None:
    for result, wanted in zip(results, expected, strict=False):
        if not wanted or isinstance(result, list):
            continue
        got = element_type(as_numpy(result).dtype)
        if got != wanted:
            raise RefusedError(f"it gives {short_name(got)} instead of {short_name(wanted)}")
