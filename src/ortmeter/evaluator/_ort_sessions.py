"""Sessions of one node, shared by all the evaluators of the process."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs
import onnx.helper

from ortmeter.evaluator._node import Node
from ortmeter.evaluator._values import type_proto
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["SessionCache", "one_node_model"]

_CAPACITY = 512
# The opset of the standard domain beside an operator of another domain.
_STANDARD_OPSET = 21
# The first one that has every type that ONNX Runtime exchanges.
_IR_VERSION = 10


class SessionCache:
    """The sessions used last, by model and place.

    Parameters
    ----------
    capacity : int
        Count of sessions that are kept.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def get(
        self, model: bytes, provider: Provider, *, tf32: bool
    ) -> "onnxruntime.InferenceSession":
        """Return the session of a model, created when it is not there."""
        key = (model, provider, tf32)
        with self._lock:
            if key not in self._sessions:
                # What is asked is this operator, not what an optimizer would replace it with.
                self._sessions[key] = make_session(
                    model, provider=provider, optimization="none", tf32=tf32, quiet=True
                )
            self._sessions.move_to_end(key)
            while len(self._sessions) > self._capacity:
                self._sessions.popitem(last=False)
            return self._sessions[key]

    def __len__(self) -> int:
        return len(self._sessions)


def one_node_model(node: Node, inputs: Sequence[Any]) -> bytes:
    """Write the model of one node, its inputs typed by values, with ranks and no shapes.

    The names of the original are left out: two nodes that do the same thing are one model.
    """
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    present = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    wanted = [f"y{i}" for i, name in enumerate(proto.output) if name]
    outputs = [
        f"y{i}" if name or not _is_optional(node, i) else "" for i, name in enumerate(proto.output)
    ]
    del proto.input[:], proto.output[:]
    proto.input.extend(present)
    proto.output.extend(outputs)
    proto.ClearField("name")
    proto.ClearField("doc_string")
    proto.ClearField("metadata_props")
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [
            onnx.helper.make_value_info(name, type_proto(value))
            for name, value in zip(present, inputs, strict=True)
            if name
        ],
        # ONNX Runtime infers the types of the outputs.
        [onnx.ValueInfoProto(name=name) for name in wanted],
    )
    # ONNX Runtime refuses an opset that it does not know, even when the operator is an old one.
    opset = node.schema.since_version if node.schema else node.opset
    imports = {"": _STANDARD_OPSET, node.domain: opset}
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid(*item) for item in imports.items()],
        ir_version=_IR_VERSION,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _is_optional(node: Node, output: int) -> bool:
    if node.schema is None or output >= len(node.schema.outputs):
        return True
    option = onnx.defs.OpSchema.FormalParameterOption.Optional
    return bool(node.schema.outputs[output].option == option)
