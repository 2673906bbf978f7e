"""Collect the nodes and the constants of a model, under names that say what they hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper

__all__ = ["GraphWriter"]

_CONTRIB = "com.microsoft"


class GraphWriter:
    """A graph that is being written."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._infos: list[onnx.ValueInfoProto] = []

    def constant(self, role: str, values: Sequence[int]) -> str:
        """Add a vector of int64, once for each role and value, and give its name."""
        name = "_".join((role, *(str(v).replace("-", "m") for v in values)))
        array = np.array(values, np.int64)
        self._constants[name] = onnx.numpy_helper.from_array(array, name)
        return name

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one result, and give the name of the result."""
        name = f"{op_type}_{output}"
        self._nodes.append(
            onnx.helper.make_node(op_type, inputs, [output], name=name, **attributes)
        )
        return output

    def fused(self, inputs: Sequence[str], output: str, **flags: int) -> str:
        """Add a FusedMatMul."""
        return self.node("FusedMatMul", inputs, output, domain=_CONTRIB, **flags)

    def describe(self, name: str, kind: int, shape: Sequence[int | str | None]) -> None:
        """Tell the type and the shape of a result."""
        self._infos.append(onnx.helper.make_tensor_value_info(name, kind, shape))

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        output: onnx.ValueInfoProto,
        opset: int,
    ) -> onnx.ModelProto:
        """Make the model and check it."""
        opsets = [onnx.helper.make_opsetid("", opset)]
        if any(node.domain == _CONTRIB for node in self._nodes):
            opsets.append(onnx.helper.make_opsetid(_CONTRIB, 1))
        graph = onnx.helper.make_graph(
            self._nodes,
            name,
            inputs,
            [output],
            list(self._constants.values()),
            value_info=[info for info in self._infos if info.name != output.name],
        )
        model = onnx.helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True),
            producer_name="ortmeter",
        )
        onnx.checker.check_model(model, full_check=True)
        return model
