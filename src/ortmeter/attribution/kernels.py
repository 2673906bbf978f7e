"""Find the kernels that make two runs of a model differ."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ortmeter.attribution.result import Attribution, NodeAttribution, compare, differing
from ortmeter.discrepancy import Discrepancy
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator.evaluation import Evaluator, parts
from ortmeter.evaluator.kernels import KernelKey, Swap
from ortmeter.evaluator.plan import NodeStep
from ortmeter.evaluator.values import fed_library
from ortmeter.progress import progress_bar
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.providers import Provider, resolve_provider

Side: TypeAlias = str | Mapping[KernelKey, Swap]
#: Sees each node that ran: its rank, its inputs, the outputs that have a name.
Visit: TypeAlias = Callable[[int, tuple[Any, ...], list[Any]], None]

BASELINE, CANDIDATE = 0, 1


def attribute(
    model: ModelLike,
    feeds: Mapping[str, Any],
    baseline: Side = "torch",
    candidate: Side = "ort",
    *,
    provider: str | Provider = "auto",
    tf32: bool = False,
    sources: Sequence[str] = ("torch", "ort", "reference"),
) -> Attribution:
    """Find the nodes responsible for the difference between a candidate and a baseline.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs of the model, see :meth:`~ortmeter.evaluator.Evaluator.run`.
    baseline : str or mapping
        A source for every node, ``torch``, ``ort`` or ``reference``; or the kernels of some nodes,
        as in :class:`~ortmeter.evaluator.Evaluator`, where other nodes use the first of *sources*.
    candidate : str or mapping
        A source for every node; or the kernels of some nodes, where other nodes keep the kernel of
        the baseline.
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``: where every kernel runs.
    tf32 : bool
        Whether float32 products may round their operands to TF32 on CUDA.
    sources : sequence of str
        Fallback sources, in order, for nodes without a kernel in the chosen source. Such a node may
        have the same kernel on both sides.

    Returns
    -------
    Attribution
        One row per node that the outputs need, and the change of the outputs.

    Raises
    ------
    InvalidArgumentError
        A source is unknown, or a key of the kernels matches no node, or a constant.
    ModelError
        The model has no node, or no kernel runs one of its nodes.
    FeedError
        An input is missing, unknown, or has a wrong type.
    ProviderUnavailableError
        The provider does not work on this machine.

    Notes
    -----
    The model runs once on each side. At each node, the other kernel runs on the same inputs. If
    their results differ, the model runs again with this node alone swapped, and with all nodes but
    this one swapped, each time from this node on: a model of *n* nodes runs at most :math:`2n`
    times from its middle on average, and 4 times from its start. Results are released after their
    last use. :func:`explain_session` compares with float64.

    Swapping a local function, or a node that executes graphs, swaps the kernels of all its nodes. A
    constant has no row.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Z) { [exp] Y = Exp(X)  [abs] Z = Abs(Y) }'''
    >>> biased = {"node:exp": lambda x: np.exp(x) * np.float32(1.001)}
    >>> found = attribute(text, {"X": np.float32([1, 2])}, "reference", biased, provider="cpu")
    >>> [node.name for node in found.ranking()]
    ['exp', 'abs']
    """
    proto = load_model(model)
    if not proto.graph.node:
        raise ModelError("This model has no node to compare. Accepted: a model with nodes")
    device = resolve_provider(provider)
    named = (side for side in (baseline, candidate) if isinstance(side, str))
    order = list(dict.fromkeys([*sources, *named]))
    sides, kernels, names = [], dict[KernelKey, Swap](), order
    for side in (baseline, candidate):  # the candidate keeps the kernels of the baseline
        if isinstance(side, str):
            kernels, names = {}, list(dict.fromkeys((side, *order)))
        else:
            kernels = {**kernels, **side}
        sides.append(Evaluator(proto, kernels, names, device, tf32=tf32))
    hybrid = _Hybrid(sides, feeds)
    with hybrid.memory.policy():
        return _study(hybrid, str(device))


class _Hybrid:
    """Runs of one model whose nodes have the kernel of the baseline or of the candidate."""

    def __init__(self, sides: Sequence[Evaluator], feeds: Mapping[str, Any]) -> None:
        opened = [parts(side) for side in sides]
        self._base, checker, shared = opened[BASELINE]
        self.memory = shared.memory
        self.steps = tuple(plan.steps for plan, _, _ in opened)
        if len({*map(len, self.steps)}) > 1:
            raise InvalidArgumentError(
                "A kernel replaces a Constant, which has no discrepancy to attribute. Accepted: "
                "kernels of the other nodes"
            )
        for _, _, context in opened:
            context.library = fed_library(feeds.values())
        self._given = checker.take(feeds)

    def run(self, side: int, visit: Visit) -> list[Any]:
        """Run the model with the kernels of one side; nodes of subgraphs belong to their owner."""
        steps = self.steps[side]
        ranks = {step.node: rank for rank, step in enumerate(steps)}

        def watch(node: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            if (rank := ranks.get(node)) is not None:
                visit(rank, inputs, _named(steps[rank], outputs))

        return self._base.with_steps(steps, watch).run(self._given)

    def swap_each(self, side: int, ranks: Collection[int]) -> Iterator[tuple[int, list[Any]]]:
        """Run the model with the kernels of one side, and that of the other for one node in turn.

        What comes before the node is computed once: each run starts at the node.
        """
        steps = self.steps[side]
        plan = self._base.with_steps(steps)
        rank_of, values = {step: rank for rank, step in enumerate(steps)}, plan.start(self._given)
        for step in plan.walk(values) if ranks else ():
            if (rank := rank_of[step]) in ranks:
                others = [self.steps[1 - side][rank], *steps[rank + 1 :]]
                yield rank, plan.with_steps(others).compute(plan.outputs, values.copy())

    def apply(self, side: int, rank: int, inputs: tuple[Any, ...]) -> list[Any]:
        step = self.steps[side][rank]
        result = step.apply(inputs)
        return _named(step, result if isinstance(result, tuple) else (result,))


def _named(step: NodeStep, results: Sequence[Any]) -> list[Any]:
    """Keep the results that have a name."""
    return [value for slot, value in zip(step.outputs, results, strict=False) if slot]


def _study(hybrid: _Hybrid, provider: str) -> Attribution:
    """Run both sides, swap each node, then all the others."""
    local = dict[int, Discrepancy]()
    idle = set[int]()

    def beside_baseline(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
        local[rank] = compare(outputs, hybrid.apply(CANDIDATE, rank, inputs))
        bar.update()

    def beside_candidate(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
        """Find the nodes whose two kernels give the same values in both runs."""
        if not differing(local[rank]):
            other = hybrid.apply(BASELINE, rank, inputs)
            if not differing(compare(other, outputs)):
                idle.add(rank)
        bar.update()

    steps = hybrid.steps[BASELINE]
    with progress_bar("nodes", total=4 * len(steps)) as bar:
        expected = hybrid.run(BASELINE, beside_baseline)
        change = compare(expected, hybrid.run(CANDIDATE, beside_candidate))
        # Where the kernels agree, nothing is run again.
        apart = {rank for rank, moved in local.items() if differing(moved)}
        swapped = []
        for side, ranks in ((BASELINE, apart), (CANDIDATE, local.keys() - idle)):
            whole = compare(expected, expected) if side == BASELINE else change
            swapped.append(dict.fromkeys(local, whole))
            bar.update(len(local) - len(ranks))
            for rank, outputs in hybrid.swap_each(side, ranks):
                swapped[side][rank] = compare(expected, outputs)
                bar.update()
    if not local:
        raise ModelError("No output of this model needs a node: no kernel is responsible")
    nodes = []
    for rank in sorted(local):
        node, (first, second) = steps[rank].node, (own[rank].used for own in hybrid.steps)
        changes = local[rank], swapped[BASELINE][rank], swapped[CANDIDATE][rank]
        nodes.append(NodeAttribution(node.label, node.operator, first, second, *changes))
    return Attribution(tuple(nodes), change, provider)
