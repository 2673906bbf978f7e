"""Turn graphs and functions into plans."""

from collections.abc import Iterable, Mapping, Sequence

import onnx

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator._attributes import bind_node, dense_array, initializers, subgraphs
from ortmeter.evaluator._constants import constant_value, is_constant
from ortmeter.evaluator._context import Context, user_kernel
from ortmeter.evaluator._control_flow import CONTROL_FLOW, Body
from ortmeter.evaluator._kernels import Choice, Kernel, KernelChain, Source
from ortmeter.evaluator._names import Names, Scope
from ortmeter.evaluator._node import Node, domain_name, opset_versions
from ortmeter.evaluator._plan import Plan, Step
from ortmeter.evaluator._swaps import Swaps

__all__ = ["Compiler"]

Bound = Mapping[str, onnx.AttributeProto]
FunctionKey = tuple[str, str, str]
_Call = tuple[FunctionKey, tuple[bool, ...], bytes]


class Compiler:
    """Builds the plans of a model.

    Parameters
    ----------
    functions : iterable of FunctionProto
        Local functions.
    sources : sequence of Source
        Where kernels come from, in the order of fallback.
    known : mapping of str to Source
        Sources that the user may choose by name.
    swaps : Swaps
        What the user chose.
    context : Context
        What the kernels share.

    Attributes
    ----------
    records : list of (Node, Step or None)
        Every node compiled; ``None`` for a constant, which is computed here.
    """

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
        self.records: list[tuple[Node, Step | None]] = []

    def graph(self, graph: onnx.GraphProto, scope: Scope) -> Plan:
        """Compile a graph."""
        names = Names(scope)
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
        names = Names(Scope(scope, imports, {**defaults, **bound}))
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
        steps = [step for proto in nodes if (step := self._step(proto, names)) is not None]
        for name in outputs:
            names.use(name, "An output of the graph")
        return Plan(names, inputs, outputs, steps)

    def _step(self, proto: onnx.NodeProto, names: Names) -> Step | None:
        """Compile a node; a constant is computed here and needs no step."""
        scope = names.scope
        node = Node(bind_node(proto, scope.bound), scope.imports, scope.name)
        inputs = [names.use(name, node) for name in node.proto.input]
        step = None
        if is_constant(node) and self._swaps.find(node) is None:
            value = self._context.memory.hold(constant_value(node))
            names.constants[names.define(node.proto.output[0])] = value
        else:
            choice = self._choose(node, names, inputs)
            outputs = [names.define(name) for name in node.proto.output[: node.n_outputs]]
            step = Step(node, inputs, outputs, choice)
        self.records.append((node, step))
        return step

    def _choose(self, node: Node, names: Names, inputs: list[int]) -> Choice:
        """Choose what runs a node; captured values are added to the inputs."""
        swap = self._swaps.find(node)
        key = _key(node.domain, node.op_type, node.proto.overload)
        function = self._functions.get(key)
        has_graph = node.domain == "" and node.op_type in CONTROL_FLOW
        if isinstance(swap, str):
            if function or has_graph:
                raise InvalidArgumentError(
                    f"kernels: {node} executes nodes of its own, which a source cannot replace: "
                    f"{swap!r} was asked for. Accepted: a callable, or keys for these nodes"
                )
            return KernelChain(node, [self._known[swap]], is_cautious=False).choose()
        if swap is not None:
            return Choice(user_kernel(node, swap, self._context), "callable")
        if function:
            return Choice(self._call(node, function, key), "function")
        if has_graph:
            return Choice(self._control_flow(node, names, inputs), "evaluator")
        return KernelChain(node, self._sources).choose()

    def _call(self, node: Node, function: onnx.FunctionProto, key: FunctionKey) -> Kernel:
        """Run the body of a local function."""
        if key in self._open:
            raise ModelError(
                f"Function {function.name!r} of domain {function.domain!r} calls itself"
            )
        bound = {attribute.name: attribute for attribute in node.proto.attribute}
        call = (key, tuple(map(bool, node.proto.output)), _serialized(bound))
        if call not in self._plans:
            self._open.append(key)
            self._plans[call] = self.function(function, node, bound, ".".join(filter(None, key)))
            self._open.pop()
        plan, context, n_inputs = self._plans[call], self._context, len(function.input)

        def run(*inputs: object) -> tuple[object, ...]:
            missing = (None,) * (n_inputs - len(inputs))
            return tuple(plan.run((*inputs, *missing), context.watcher))

        return run

    def _control_flow(self, node: Node, names: Names, inputs: list[int]) -> Kernel:
        """Compile the graphs of a node, and give it the values that they take from around."""
        scope = names.scope
        graphs = subgraphs(node.proto)
        plans = {
            name: self.graph(
                graph,
                Scope(f"{node.label}/{name}", scope.imports, scope.bound, is_nested=True),
            )
            for name, graph in graphs.items()
        }
        captures = list(dict.fromkeys(name for plan in plans.values() for name in plan.captures))
        inputs.extend(names.use(name, node) for name in captures)
        bodies = {
            name: Body(plan, self._context, graphs[name], tuple(map(captures.index, plan.captures)))
            for name, plan in plans.items()
        }
        return CONTROL_FLOW[node.op_type](node, bodies, self._context.memory)


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return domain_name(domain), name, overload


def _serialized(bound: Bound) -> bytes:
    return b"".join(bound[name].SerializeToString(deterministic=True) for name in sorted(bound))
