"""The rule of the level ``+experimental``: chains of element-wise nodes become kernels.

A chain is what a kernel can compute at once: connected element-wise nodes.
"""

import heapq
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortmeter.backend.errors import KernelError, KernelWarning
from ortmeter.backend.kernels.choice import known_shapes, sizes_by_name, why_not
from ortmeter.backend.kernels.expression import NUMBERS, Expression, Literal, Step, find_operator
from ortmeter.backend.kernels.library import build_library
from ortmeter.backend.kernels.sources import DOMAIN
from ortmeter.backend.rules.graph_values import constant, dimensions
from ortmeter.backend.rules.rule import REALS, Refusal, Rule
from ortmeter.runtime.providers import Provider

_MAX_INPUTS, _MAX_OUTPUTS, _MAX_NODES = 16, 4, 64
# What follows a convolution is computed by its kernel, or in its layout.
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})
# Element types of the kernels of each provider.
_TYPES = {"cpu": NUMBERS - {ir.DataType.BFLOAT16}, "cuda": NUMBERS}
_RESULTS = REALS | {ir.DataType.BOOL}


@dataclass(frozen=True, eq=False)
class Chain:
    """Nodes that one kernel can replace, operands first, and the values that they read.

    Some results, that of the last one among them, are used outside.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    expression: Expression

    @property
    def results(self) -> list[ir.Value]:
        """The values that are used outside, that of the last node at the end."""
        return [self.nodes[i].outputs[0] for i in self.expression.results]


@dataclass(frozen=True)
class FusedChains:
    """What was done with the chains of a model.

    Parameters
    ----------
    count : int
        How many became one node.
    library : Path or None
        Where their kernels are; None when there is no chain, or no kernel for them.
    reason : str
        Why all of them were left to ONNX Runtime, empty otherwise.
    refusals : tuple of Refusal
        Chains whose kernel is not shown to be faster than their nodes.
    """

    count: int = 0
    library: Path | None = None
    reason: str = ""
    refusals: tuple[Refusal, ...] = ()


#: The rule of the chains, whose kernels :func:`fuse_chains` compiles: it has no pattern.
ELEMENT_WISE = Rule("ElementWise", {})


def fuse_chains(
    model: ir.Model, provider: Provider, shapes: Mapping[str, Sequence[int]], threads: int
) -> FusedChains:
    """Replace the chains of a model; a KernelWarning tells which have no right kernel, and why.

    On CPU a kernel is used where it is shown to be faster, for inputs of the model of these shapes.
    It is used untried where sizes are not known, and on CUDA, where one launch stands for several.
    """
    found = [(graph, find_chains(graph, provider.name)) for graph in model.graphs()]
    expressions = [chain.expression for _, chains in found for chain in chains]
    if not expressions:
        return FusedChains()
    try:
        library, wrong = build_library(expressions, provider)
    except KernelError as error:
        return FusedChains(reason=_warn(len(expressions), str(error)))
    done = [(g, c) for g, chains in found for c in chains if c.expression.name not in wrong]
    reason = ""
    if wrong:
        told = "; ".join(f"{name} fails its trial: {text}" for name, text in wrong.items())
        reason = _warn(len(expressions) - len(done), told)
    if not done:
        return FusedChains(reason=reason)
    sizes = sizes_by_name(model.graph.inputs, shapes)
    refusals = []
    for graph, chain in reversed(done):  # what reads the results of a chain first
        tried = known_shapes(chain.inputs, sizes) if provider.name == "cpu" else None
        slow = "" if tried is None else why_not(library, chain.expression, tried, threads)
        if slow:
            refusals.append(Refusal(ELEMENT_WISE.name, str(chain.results[-1].name), slow))
        else:
            _replace(chain, graph)
    count = len(done) - len(refusals)
    if count:
        model.opset_imports[DOMAIN] = 1
    return FusedChains(count, library if count else None, refusals=tuple(refusals[::-1]))


def _warn(count: int, reason: str) -> str:
    warnings.warn(
        f"{ELEMENT_WISE.name}: {count} chains of operators are left to ONNX Runtime, {reason}",
        KernelWarning,
        stacklevel=3,
    )
    return reason


def _replace(chain: Chain, graph: ir.Graph) -> None:
    """Put a node in the place of the last one, which comes after all that they read."""
    expression = chain.expression
    results = [ir.Value(name=v.name, shape=v.shape, type=v.type) for v in chain.results]
    node = ir.Node(
        DOMAIN,
        expression.name,
        chain.inputs,
        [ir.AttrString("expression", str(expression))],
        outputs=results,
    )
    ir.convenience.replace_nodes_and_values(
        graph, chain.nodes[-1], chain.nodes, [node], chain.results, results
    )


def find_chains(graph: ir.Graph, provider: str) -> list[Chain]:
    """Find the chains of a graph whose nodes are sorted, each as long as possible.

    No node is in two of them; the graphs inside nodes are left alone. A chain has two nodes at
    least, all of the shape of its results so that nothing is computed more often than before, and
    results of more than one element.
    """
    accepted = _TYPES.get(provider, frozenset())
    ranks = {node: i for i, node in enumerate(graph)}
    free = {node for node in ranks if _is_elementwise(node, accepted)}
    chains = []
    for node in sorted(free, key=ranks.__getitem__, reverse=True):
        if node not in free or node.outputs[0].dtype not in _RESULTS or _is_small(node.outputs[0]):
            continue
        nodes = _grow(node, ranks, free)
        chain = _chain(nodes)
        if len(nodes) > 1 and chain is not None:
            chains.append(chain)
            free.difference_update(nodes)
    return chains[::-1]


def _is_elementwise(node: ir.Node, accepted: frozenset[ir.DataType]) -> bool:
    step = _step(node, {})
    operator = find_operator(step)
    values = [*node.inputs, *node.outputs]
    return (
        operator is not None
        and node.domain == ""
        and len(node.outputs) == 1
        and all(value is None or value.dtype in accepted for value in values)
        and operator.takes(step, [None if v is None else v.dtype for v in node.inputs])
        and not any(producer.op_type in _CONVOLUTIONS for producer in node.predecessors())
    )


def _is_small(value: ir.Value) -> bool:
    """One element at most: a size or an index, which ONNX Runtime may compute beforehand."""
    known = dimensions(value)
    return known is not None and all(size == 1 for size in known)


def _grow(root: ir.Node, ranks: dict[ir.Node, int], free: set[ir.Node]) -> list[ir.Node]:
    """Add producers, the last ones first: their readers are then known to be inside or not."""
    group, seen = {root}, {root}
    waiting: list[tuple[int, ir.Node]] = []
    reached = [root]
    while len(group) < _MAX_NODES:
        for producer in (p for node in reached for p in node.predecessors()):
            if producer in free and producer not in seen:
                seen.add(producer)
                heapq.heappush(waiting, (-ranks[producer], producer))
        if not waiting:
            break
        _, node = heapq.heappop(waiting)
        more = {*group, node}
        fits = len(_outer_values(more)) <= _MAX_INPUTS and len(_wanted(more)) <= _MAX_OUTPUTS
        reached = [node] if fits and _may_join(node, root, group, ranks) else []
        group.update(reached)
    return _from_result(root, group)


def _from_result(root: ir.Node, group: set[ir.Node]) -> list[ir.Node]:
    """Sort nodes, operands first, in an order that the rest of the graph does not change."""
    ordered: dict[ir.Node, None] = {}

    def visit(node: ir.Node) -> None:
        for producer in node.predecessors():
            if producer in group and producer not in ordered:
                visit(producer)
        ordered[node] = None

    visit(root)
    return list(ordered)


def _wanted(group: set[ir.Node]) -> set[ir.Node]:
    """Nodes whose result is used outside."""
    results = {node: node.outputs[0] for node in group}
    return {
        node
        for node, result in results.items()
        if result.is_graph_output() or not group.issuperset(result.consumers())
    }


def _may_join(node: ir.Node, root: ir.Node, group: set[ir.Node], ranks: dict[ir.Node, int]) -> bool:
    """Return whether a result has as many elements as the last one, and is read in time.

    The kernel runs when the last node did: nothing outside may read the result before.
    """
    (result,) = node.outputs
    readers = set(result.consumers())
    if any(ranks.get(reader, -1) < ranks[root] for reader in readers - group):
        return False
    shape = dimensions(result)
    same = shape is not None and shape == dimensions(root.outputs[0])
    if result.is_graph_output() or readers - group:
        return same and result.dtype in _RESULTS
    return same or any(set(_operands(reader)) == {result} for reader in readers)


def _operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and _literal(value) is None]


def _outer_values(nodes: Collection[ir.Node]) -> list[ir.Value]:
    """What nodes read from others, constants of one element excepted, in order of first use."""
    inside = {node.outputs[0] for node in nodes}
    values = (value for node in nodes for value in _operands(node))
    return list(dict.fromkeys(value for value in values if value not in inside))


def _chain(nodes: list[ir.Node]) -> Chain | None:
    """Write nodes as an expression, None when their constants have more axes than the rest."""
    inputs = _outer_values(nodes)
    if not inputs or not _rank_is_kept(inputs, nodes):
        return None
    names = {value: f"x{i}" for i, value in enumerate(inputs)}
    names |= {node.outputs[0]: f"t{i}" for i, node in enumerate(nodes)}
    steps = tuple(_step(node, names) for node in nodes)
    types = tuple(value.dtype for value in inputs if value.dtype is not None)
    wanted = _wanted(set(nodes))
    more = tuple(i for i, node in enumerate(nodes[:-1]) if node in wanted)
    return Chain(tuple(nodes), tuple(inputs), Expression(types, steps, more))


def _rank_is_kept(inputs: list[ir.Value], nodes: list[ir.Node]) -> bool:
    """Constants of one element change no shape but its rank, which must come from others."""
    literals = [
        value.shape.rank()
        for node in nodes
        for value in node.inputs
        if value is not None and value.shape is not None and _literal(value) is not None
    ]
    ranks = [0 if value.shape is None else value.shape.rank() for value in inputs]
    return max(literals, default=0) <= max(ranks)


def _step(node: ir.Node, names: dict[ir.Value, str]) -> Step:
    arguments = tuple(
        None if value is None else _literal(value) or names.get(value, "") for value in node.inputs
    )
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return Step(
        op_type=node.op_type,
        attributes=tuple(sorted(attributes.items())),
        arguments=arguments,
        dtype=node.outputs[0].dtype or ir.DataType.UNDEFINED,
    )


def _literal(value: ir.Value) -> Literal | None:
    dtype = value.dtype
    if dtype not in NUMBERS or value.const_value is None or value.const_value.size != 1:
        return None
    array = constant(value)
    if array is None:
        return None
    return Literal(float(array.item()) if dtype in REALS else int(array.item()), dtype)
