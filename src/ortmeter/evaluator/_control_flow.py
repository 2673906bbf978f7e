"""If, Loop, Scan and SequenceMap: the operators that execute graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortmeter.errors import ModelError
from ortmeter.evaluator._context import Context
from ortmeter.evaluator._kernels import Kernel
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._plan import Plan
from ortmeter.evaluator._values import Memory, pick, stack

__all__ = ["CONTROL_FLOW", "Body"]


@dataclass(frozen=True)
class Body:
    """A graph that a node executes.

    Parameters
    ----------
    plan : Plan
        The compiled graph.
    context : Context
        State of the run.
    graph : GraphProto
        Its definition.
    captures : tuple of int
        Which of the values captured by the node are those of this graph.
    """

    plan: Plan
    context: Context
    graph: onnx.GraphProto
    captures: tuple[int, ...]

    def bind(self, captured: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """Give the graph the values that it takes from the graphs around."""
        outer = [captured[i] for i in self.captures]
        return lambda inputs: self.plan.run([*inputs, *outer], self.context.watcher)


def make_if(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    """If: one graph or the other."""
    del node, memory

    def run(condition: Any, *captured: Any) -> tuple[Any, ...]:
        body = bodies["then_branch" if bool(condition) else "else_branch"]
        return tuple(body.bind(captured)([]))

    return run


def make_loop(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    """Loop: a graph again and again, while its condition holds."""
    body = bodies["body"]
    n_inputs, n_states = len(node.proto.input), len(body.graph.input) - 2
    scanned = body.graph.output[1 + n_states :]

    def run(*inputs: Any) -> tuple[Any, ...]:
        limit, condition, *states = [*inputs[:n_inputs], None, None][: max(2, n_inputs)]
        call = body.bind(inputs[n_inputs:])
        going = condition is None or bool(condition)
        rows: list[list[Any]] = [[] for _ in scanned]
        count = 0
        while going and (limit is None or count < int(limit)):
            proceed = np.array(going)
            outputs = call([memory.hold(np.array(count)), memory.hold(proceed), *states])
            going, states = bool(outputs[0]), outputs[1 : 1 + n_states]
            for row, value in zip(rows, outputs[1 + n_states :], strict=True):
                row.append(value)
            count += 1
        return (*states, *(_stacked(*item, memory) for item in zip(rows, scanned, strict=True)))

    return run


def make_scan(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    """Scan: a graph on each slice of some inputs."""
    body = bodies["body"]
    scan = _Scan(node, body, memory)
    return scan.batched if node.opset < _SCAN_WITHOUT_BATCH else scan.run


_SCAN_WITHOUT_BATCH = 9


class _Scan:
    def __init__(self, node: Node, body: Body, memory: Memory) -> None:
        attributes = node.attributes
        self._body, self._memory = body, memory
        self._n_inputs = len(node.proto.input)
        self._n_scanned = attributes["num_scan_inputs"]
        self._n_states = len(body.graph.input) - self._n_scanned
        self._scanned = body.graph.output[self._n_states :]
        n_outputs = len(self._scanned)
        backward = attributes.get("directions", [0] * self._n_scanned)
        self._input_axes = attributes.get("scan_input_axes", [0] * self._n_scanned)
        self._input_backward = attributes.get("scan_input_directions", backward)
        self._output_axes = attributes.get("scan_output_axes", [0] * n_outputs)
        self._output_backward = attributes.get("scan_output_directions", [0] * n_outputs)

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        states = inputs[: self._n_states]
        scanned = inputs[self._n_states : self._n_inputs]
        return self._iterate(states, scanned, inputs[self._n_inputs :], None)

    def batched(self, lengths: Any, *inputs: Any) -> tuple[Any, ...]:
        """Run opset 8, where the first axis counts sequences and their lengths come first."""
        given, captured = inputs[: self._n_inputs - 1], inputs[self._n_inputs - 1 :]
        results = []
        for i in range(given[0].shape[0]):
            values = [pick(value, 0, i) for value in given]
            length = None if lengths is None else int(lengths[i])
            states, scanned = values[: self._n_states], values[self._n_states :]
            results.append(self._iterate(states, scanned, captured, length))
        return tuple(stack(values, 0) for values in zip(*results, strict=True))

    def _iterate(
        self,
        states: Sequence[Any],
        scanned: Sequence[Any],
        captured: Sequence[Any],
        length: int | None,
    ) -> tuple[Any, ...]:
        call = self._body.bind(captured)
        if length is None:
            length = scanned[0].shape[self._input_axes[0]]
        rows: list[list[Any]] = [[] for _ in self._scanned]
        for i in range(length):
            slices = [
                pick(value, axis, length - 1 - i if backward else i)
                for value, axis, backward in zip(
                    scanned, self._input_axes, self._input_backward, strict=True
                )
            ]
            outputs = call([*states, *slices])
            states = outputs[: self._n_states]
            for row, value in zip(rows, outputs[self._n_states :], strict=True):
                row.append(value)
        stacked = [
            _stacked(row[::-1] if backward else row, value_info, self._memory, axis)
            for row, value_info, backward, axis in zip(
                rows, self._scanned, self._output_backward, self._output_axes, strict=True
            )
        ]
        return (*states, *stacked)


def make_sequence_map(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    """SequenceMap: a graph on each element of a sequence."""
    del memory
    body, n_inputs = bodies["body"], len(node.proto.input)

    def run(sequence: Any, *inputs: Any) -> tuple[Any, ...]:
        call = body.bind(inputs[n_inputs - 1 :])
        others = inputs[: n_inputs - 1]
        results = [
            call([item, *(value[i] if isinstance(value, list) else value for value in others)])
            for i, item in enumerate(sequence)
        ]
        return tuple([result[k] for result in results] for k in range(len(body.graph.output)))

    return run


def _stacked(
    rows: Sequence[Any], declared: onnx.ValueInfoProto, memory: Memory, axis: int = 0
) -> Any:
    """Put the slices of an output together; the graph tells its type when there are none."""
    if rows:
        return stack(rows, axis)
    tensor = declared.type.tensor_type
    if not tensor.elem_type:
        raise ModelError(f"Output {declared.name!r} of a body that never runs has no declared type")
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    shape.insert(axis % (len(shape) + 1), 0)
    return memory.hold(np.empty(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


CONTROL_FLOW: dict[str, Callable[[Node, dict[str, Body], Memory], Kernel]] = {
    "If": make_if,
    "Loop": make_loop,
    "Scan": make_scan,
    "SequenceMap": make_sequence_map,
}
"""What builds the kernel of each operator, from its node and its graphs."""
