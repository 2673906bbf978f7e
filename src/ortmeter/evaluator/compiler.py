"""Turn graphs, functions and the operators that execute graphs into plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator.kernels import Source, Swaps
from ortmeter.evaluator.node import (
    Names,
    Node,
    bind_node,
    constant_value,
    dense_array,
    domain_name,
    initializers,
    opset_versions,
)
from ortmeter.evaluator.plan import NodeStep, Plan, Watch
from ortmeter.evaluator.values import Memory, pick, stack
from ortmeter.operators.registry import Kernel
from ortmeter.runtime.graphs import bodies, in_order

Callback = Callable[[onnx.NodeProto, list[Any], list[Any]], None]
Bound = Mapping[str, onnx.AttributeProto]
FunctionKey = tuple[str, str, str]
_Call = tuple[FunctionKey, tuple[bool, ...], bytes]


@dataclass
class Context:
    """What the kernels of an evaluator share."""

    memory: Memory
    callback: Callback | None = None
    library: str = "numpy"  # that of the feeds of this run: what functions of the user see

    def show(self, value: Any) -> Any:
        return self.memory.export(value, self.library)

    def watcher(self) -> Watch | None:
        """Make what sees the nodes, ``None`` when nobody looks."""
        if (callback := self.callback) is None:
            return None

        def watch(node: Node, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            given = inputs[: len(node.proto.input)]  # the rest is what its graphs take from around
            callback(node.proto, list(map(self.show, given)), list(map(self.show, outputs)))

        return watch


class Compiler:
    """Builds the plans of a model, and records its nodes: those without a step are constants."""

    def __init__(
        self,
        functions: Iterable[onnx.FunctionProto],
        sources: Sequence[Source],
        known: Mapping[str, Source],
        swaps: Swaps,
        context: Context,
    ) -> None:
        self._functions = {_key(f.domain, f.name, f.overload): f for f in functions}
        self._sources = sources
        self._known = known
        self._swaps = swaps
        self._context = context
        self._plans: dict[_Call, Plan] = {}
        self._open: list[FunctionKey] = []
        self.records: list[tuple[Node, NodeStep | None]] = []

    def graph(self, graph: onnx.GraphProto, names: Names) -> Plan:
        inputs = [value.name for value in graph.input]
        for name in inputs:
            names.define(name)
        for name, tensor in initializers(graph):
            slot = names.slots[name] if name in inputs else names.define(name)
            names.constants[slot] = self._context.memory.hold(dense_array(tensor))
        return self._plan(names, inputs, graph.node, [value.name for value in graph.output])

    def function(self, function: onnx.FunctionProto, node: Node, bound: Bound, scope: str) -> Plan:
        """Compile a function for one call: the values of its attributes, the outputs in use."""
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        imports = {**node.imports, **opset_versions(function)}
        names = Names(scope, imports, {**defaults, **bound})
        for name in function.input:
            names.define(name)
        outputs = [
            formal if actual else ""
            for formal, actual in zip(function.output, node.proto.output, strict=False)
        ]
        return self._plan(names, function.input, function.node, outputs)

    def _plan(
        self,
        names: Names,
        inputs: Sequence[str],
        nodes: Iterable[onnx.NodeProto],
        outputs: Sequence[str],
    ) -> Plan:
        steps = [
            step for proto in in_order(nodes) if (step := self._step(proto, names)) is not None
        ]
        for name in outputs:
            names.use(name, "An output of the graph")
        return Plan(names, inputs, outputs, steps, self._context.watcher())

    def _step(self, proto: onnx.NodeProto, names: Names) -> NodeStep | None:
        """Compile a node; a constant is computed here and needs no step."""
        node = Node(bind_node(proto, names.bound), names.imports, names.scope)
        inputs = [names.use(name, node) for name in node.proto.input]
        step = None
        if (node.domain, node.op_type) == ("", "Constant") and not callable(self._swaps.find(node)):
            value = self._context.memory.hold(constant_value(node))
            names.constants[names.define(node.proto.output[0])] = value
        else:
            sources = self._choose(node, names, inputs)
            outputs = [names.define(name) for name in node.proto.output[: node.n_outputs]]
            step = NodeStep(node, inputs, outputs, sources)
        self.records.append((node, step))
        return step

    def _choose(self, node: Node, names: Names, inputs: list[int]) -> Sequence[Source]:
        """Choose what may run a node; captured values are added to the inputs."""
        swap = self._swaps.find(node)
        key = _key(node.domain, node.op_type, node.proto.overload)
        function = self._functions.get(key)
        has_graph = node.domain == "" and node.op_type in _CONTROL_FLOW
        if isinstance(swap, str):
            if function or has_graph:
                raise InvalidArgumentError(
                    f"kernels: {node} executes other nodes, so {swap!r} cannot replace it. "
                    "Accepted: a callable, or keys for these nodes"
                )
            return [self._known[swap]._replace(is_cautious=False)]
        if swap is not None:
            name, kernel = "callable", _user_kernel(node, swap, self._context)
        elif function:
            name, kernel = "function", self._call(node, function, key)
        elif has_graph:
            name, kernel = "evaluator", self._control_flow(node, names, inputs)
        else:
            return self._sources
        return [Source(name, lambda _node: kernel)]

    def _call(self, node: Node, function: onnx.FunctionProto, key: FunctionKey) -> Kernel:
        if key in self._open:
            raise ModelError(
                f"Function {function.name!r} of domain {function.domain!r} calls itself"
            )
        bound = {attribute.name: attribute for attribute in node.proto.attribute}
        given = (bound[name].SerializeToString(deterministic=True) for name in sorted(bound))
        call = (key, tuple(map(bool, node.proto.output)), b"".join(given))
        if call not in self._plans:
            self._open.append(key)
            self._plans[call] = self.function(function, node, bound, ".".join(filter(None, key)))
            self._open.pop()
        plan, n_inputs = self._plans[call], len(function.input)

        def run(*inputs: object) -> tuple[object, ...]:
            missing = (None,) * (n_inputs - len(inputs))
            return tuple(plan.run((*inputs, *missing)))

        return run

    def _control_flow(self, node: Node, names: Names, inputs: list[int]) -> Kernel:
        """Compile the graphs of a node, and pass it the values that they take from around."""
        graphs = dict(bodies(node.proto))
        plans = {
            name: self.graph(
                graph, Names(f"{node.label}/{name}", names.imports, names.bound, is_nested=True)
            )
            for name, graph in graphs.items()
        }
        captures = list(dict.fromkeys(name for plan in plans.values() for name in plan.captures))
        inputs.extend(names.use(name, node) for name in captures)
        compiled = {
            name: Body(plan, graphs[name], tuple(map(captures.index, plan.captures)))
            for name, plan in plans.items()
        }
        return _CONTROL_FLOW[node.op_type](node, compiled, self._context.memory)


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return domain_name(domain), name, overload


def _user_kernel(node: Node, function: Callable[..., Any], context: Context) -> Kernel:
    hold = context.memory.hold

    def run(*inputs: Any) -> Any:
        attributes = {
            name: context.show(hold(value)) if hasattr(value, "dtype") else value
            for name, value in node.attributes.items()
        }
        result = function(*(context.show(value) for value in inputs), **attributes)
        if isinstance(result, tuple) or (isinstance(result, list) and node.n_outputs > 1):
            return tuple(hold(value) for value in result)
        return hold(result)

    return run


@dataclass(frozen=True)
class Body:
    """A graph that a node executes; ``captures`` ranks its captures among those of the node."""

    plan: Plan
    graph: onnx.GraphProto
    captures: tuple[int, ...]

    def bind(self, captured: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """Pass the graph the values that it takes from the graphs around."""
        outer = [captured[i] for i in self.captures]
        return lambda inputs: self.plan.run([*inputs, *outer])


def _make_if(_node: Node, bodies: dict[str, Body], _memory: Memory) -> Kernel:
    def run(condition: Any, *captured: Any) -> tuple[Any, ...]:
        body = bodies["then_branch" if bool(condition) else "else_branch"]
        return tuple(body.bind(captured)([]))

    return run


def _make_loop(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    body = bodies["body"]
    n_inputs, n_states = len(node.proto.input), len(body.graph.input) - 2

    def run(*inputs: Any) -> tuple[Any, ...]:
        limit, condition, *states = [*inputs[:n_inputs], None, None][: max(2, n_inputs)]
        call = body.bind(inputs[n_inputs:])
        going = condition is None or bool(condition)
        rows: list[list[Any]] = []
        while going and (limit is None or len(rows) < int(limit)):
            given = [memory.hold(np.array(value)) for value in (len(rows), going)]
            proceed, *outputs = call([*given, *states])
            going, states = bool(proceed), outputs[:n_states]
            rows.append(outputs[n_states:])
        scanned = body.graph.output[1 + n_states :]
        return (
            *states,
            *(_stacked([row[k] for row in rows], o, memory) for k, o in enumerate(scanned)),
        )

    return run


def _make_scan(node: Node, bodies: dict[str, Body], memory: Memory) -> Kernel:
    """Run a graph on each slice of some inputs."""
    body, attributes = bodies["body"], node.attributes
    n_inputs, n_scanned = len(body.graph.input), attributes["num_scan_inputs"]
    n_states = n_inputs - n_scanned
    scanned = body.graph.output[n_states:]
    forward, first = [0] * n_scanned, [0] * len(scanned)
    backward = attributes.get("directions", forward)
    input_axes = attributes.get("scan_input_axes", forward)
    input_backward = attributes.get("scan_input_directions", backward)
    output_axes = attributes.get("scan_output_axes", first)
    output_backward = attributes.get("scan_output_directions", first)

    def run(*inputs: Any, length: int | None = None) -> tuple[Any, ...]:
        call = body.bind(inputs[n_inputs:])
        states: Sequence[Any] = inputs[:n_states]
        read = list(zip(inputs[n_states:n_inputs], input_axes, input_backward, strict=True))
        if length is None:
            length = read[0][0].shape[input_axes[0]]
        rows: list[list[Any]] = []
        for i in range(length):
            slices = [pick(v, axis, length - 1 - i if back else i) for v, axis, back in read]
            outputs = call([*states, *slices])
            states = outputs[:n_states]
            rows.append(outputs[n_states:])
        stacked = []
        for k, declared in enumerate(scanned):
            column = [row[k] for row in (reversed(rows) if output_backward[k] else rows)]
            stacked.append(_stacked(column, declared, memory, output_axes[k]))
        return (*states, *stacked)

    def batched(lengths: Any, *inputs: Any) -> tuple[Any, ...]:
        """Run opset 8, where the first axis counts sequences and their lengths come first."""
        given, captured = inputs[:n_inputs], inputs[n_inputs:]
        results = []
        for i in range(given[0].shape[0]):
            values = [pick(value, 0, i) for value in given]
            length = None if lengths is None else int(lengths[i])
            results.append(run(*values, *captured, length=length))
        return tuple(stack(values, 0) for values in zip(*results, strict=True))

    return batched if node.opset < 9 else run  # noqa: PLR2004 - has no batch since


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


_CONTROL_FLOW: dict[str, Callable[[Node, dict[str, Body], Memory], Kernel]] = {
    "If": _make_if,
    "Loop": _make_loop,
    "Scan": _make_scan,
}
