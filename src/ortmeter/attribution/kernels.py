"""Find the kernels that make two runs of a model differ."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx

from ortmeter.attribution.result import Attribution, NodeAttribution, compare, differing
from ortmeter.discrepancy import Discrepancy
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator.evaluation import Evaluator, parts
from ortmeter.evaluator.float64 import exact_feeds, is_added, to_float64, widen
from ortmeter.evaluator.kernels import KernelKey, Swap
from ortmeter.evaluator.plan import NodeStep, Plan, Watch
from ortmeter.evaluator.values import fed_library
from ortmeter.operators.descriptions import element_type
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
    exact_kernels: Mapping[KernelKey, Swap] | None = None,
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
    exact_kernels : mapping, optional
        Kernels of the evaluation in float64, for operators that no source supports.

    Returns
    -------
    Attribution
        One row per node that the outputs need, the whole runs, and the controls.

    Raises
    ------
    InvalidArgumentError
        A source is unknown, or a key of the kernels matches no node, or a constant.
    ModelError
        The model has no node, or no kernel runs one of its nodes, in float64 included.
    FeedError
        An input is missing, unknown, or has a wrong type.
    ProviderUnavailableError
        The provider does not work on this machine.

    Notes
    -----
    The model runs once on each side. At each node, the other kernel and the float64 kernel run on
    the same inputs. If their results differ, the model runs again with this node alone swapped, and
    with all nodes but this one swapped, each time from this node on: a model of *n* nodes runs at
    most :math:`2n` times from its middle on average, and 7 times from its start. Results are
    released after their last use.

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
    order = list(
        dict.fromkeys(
            [*sources, *(side for side in (baseline, candidate) if isinstance(side, str))]
        )
    )
    sides = [
        Evaluator(proto, kernels, names, device, tf32=tf32)
        for kernels, names in _settings(baseline, candidate, order)
    ]
    double = to_float64(proto)
    exact = Evaluator(double, exact_kernels, order, device)
    hybrid = _Hybrid(sides, exact, feeds, exact_feeds(proto, double, feeds))
    with hybrid.memory.policy(tf32=tf32):
        study = _Study(hybrid)
        study.run_twice()
    return study.attribution(str(device))


class _Hybrid:
    """Runs of one model whose nodes have the kernel of the baseline or of the candidate."""

    def __init__(
        self,
        sides: Sequence[Evaluator],
        exact: Evaluator,
        feeds: Mapping[str, Any],
        exact_feeds: Mapping[str, Any],
    ) -> None:
        *opened, (self._exact, exact_checker, context) = map(parts, (*sides, exact))
        self._plans = tuple(plan for plan, _, _ in opened)
        self.memory = context.memory
        self._steps = tuple(plan.steps for plan in self._plans)
        self._exact_steps = [s for s in self._exact.steps if not is_added(s.node.proto)]
        if len({len(steps) for steps in (*self._steps, self._exact_steps)}) > 1:
            raise InvalidArgumentError(
                "A kernel replaces a Constant, which has no discrepancy to attribute. Accepted: "
                "kernels of the other nodes"
            )
        for _, _, shared in opened:
            shared.library = fed_library(feeds.values())
        self._given = opened[BASELINE][1].take(feeds)
        self._exact_given = exact_checker.take(exact_feeds)
        self._is_wide: dict[int, list[bool]] = {}

    @property
    def steps(self) -> tuple[NodeStep, ...]:
        return self._steps[BASELINE]

    def sources(self, rank: int) -> tuple[str, str]:
        """Name what ran a node last, on each side."""
        baseline, candidate = (steps[rank].used for steps in self._steps)
        return baseline, candidate

    def run(self, side: int, visit: Visit | None = None) -> list[Any]:
        """Run the model with the kernels of one side."""
        watch = None if visit is None else _watch(self._steps[side], visit)
        return self._plan(side).run(self._given, watch)

    def swap_each(self, side: int, ranks: Collection[int]) -> Iterator[tuple[int, list[Any]]]:
        """Run the model with the kernels of one side, and that of the other for one node in turn.

        What comes before the node is computed once: each run starts at the node.
        """
        plan, steps = self._plan(side), self._steps[side]
        rank_of, values = {step: rank for rank, step in enumerate(steps)}, plan.start(self._given)
        left = len(ranks)
        for step in plan.walk(values) if left else ():
            if (rank := rank_of[step]) in ranks:
                others = [self._steps[1 - side][rank], *steps[rank + 1 :]]
                yield rank, plan.resume(others, values.copy())
                if not (left := left - 1):
                    return

    def _plan(self, side: int) -> Plan:
        return self._plans[BASELINE].with_steps(self._steps[side])

    def run_exact(self) -> list[Any]:
        def remember(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
            del outputs
            self._is_wide[rank] = [_is_double(value) for value in inputs]

        return self._exact.run(self._exact_given, _watch(self._exact_steps, remember))

    def apply(self, side: int, rank: int, inputs: Sequence[Any]) -> list[Any]:
        return _applied(self._steps[side][rank], inputs)

    def apply_exact(self, rank: int, inputs: Sequence[Any]) -> list[Any]:
        """Run one node in float64, once :meth:`run_exact` told which inputs have this type."""
        flags = self._is_wide[rank]
        wide = [widen(v) if flag else v for v, flag in zip(inputs, flags, strict=True)]
        return _applied(self._exact_steps[rank], wide)


def _is_double(value: Any) -> bool:
    if value is None or isinstance(value, list):
        return any(map(_is_double, value or ()))
    return element_type(value.dtype) == onnx.TensorProto.DOUBLE


def _watch(steps: Sequence[NodeStep], visit: Visit) -> Watch:
    """See the nodes of the main graph by rank; those of subgraphs belong to their owner."""
    ranks = {step.node: rank for rank, step in enumerate(steps)}

    def watch(node: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        rank = ranks.get(node)
        if rank is not None:
            visit(rank, inputs, _named(steps[rank], outputs))

    return watch


def _applied(step: NodeStep, inputs: Sequence[Any]) -> list[Any]:
    result = step.apply(tuple(inputs))
    return _named(step, result if isinstance(result, tuple) else (result,))


def _named(step: NodeStep, results: Sequence[Any]) -> list[Any]:
    """Keep the results that have a name."""
    return [value for slot, value in zip(step.outputs, results, strict=False) if slot]


class _Study:
    """What the runs of a hybrid tell about each node."""

    def __init__(self, hybrid: _Hybrid) -> None:
        self._hybrid = hybrid
        self._exact = hybrid.run_exact()
        self._local: dict[int, tuple[Discrepancy, Discrepancy, Discrepancy]] = {}
        self._idle: set[int] = set()
        self._controls: dict[str, Discrepancy] = {}
        with progress_bar("nodes", total=4 * len(hybrid.steps)) as bar:
            self.baseline = hybrid.run(BASELINE, self._beside_baseline(bar))
            self.candidate = hybrid.run(CANDIDATE, self._beside_candidate(bar))
            self._of_baseline = self._compare_run(self.baseline)
            self._of_candidate = self._compare_run(self.candidate)
            self._nodes = self._swap_each(bar)
        self._errors = {"baseline": self._of_baseline[1], "candidate": self._of_candidate[1]}

    def run_twice(self) -> None:
        """Compare each side with itself, run a second time."""
        again = self._hybrid.run(BASELINE), self._hybrid.run(CANDIDATE)
        self._controls["baseline, run twice"] = compare(self.baseline, again[BASELINE])
        self._controls["candidate, run twice"] = compare(self.candidate, again[CANDIDATE])

    def attribution(self, provider: str) -> Attribution:
        if not self._nodes:
            raise ModelError("No output of this model needs a node: no kernel is responsible")
        change, _ = self._of_candidate
        return Attribution(self._nodes, change, self._errors, self._controls, provider)

    def _beside_baseline(self, bar: Any) -> Visit:
        """Run the kernel of the candidate and the one in float64 beside that of the baseline."""
        hybrid = self._hybrid

        def visit(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
            other = hybrid.apply(CANDIDATE, rank, inputs)
            exact = hybrid.apply_exact(rank, inputs)
            errors = compare(exact, outputs), compare(exact, other)
            self._local[rank] = compare(outputs, other), *errors
            bar.update()

        return visit

    def _beside_candidate(self, bar: Any) -> Visit:
        """Find the nodes whose two kernels give the same values in both runs."""

        def visit(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
            if not differing(self._local[rank][0]):
                other = self._hybrid.apply(BASELINE, rank, inputs)
                if not differing(compare(other, outputs)):
                    self._idle.add(rank)
            bar.update()

        return visit

    def _swap_each(self, bar: Any) -> tuple[NodeAttribution, ...]:
        """Swap each node, then all the others; where the kernels agree, nothing is run again."""
        only = dict.fromkeys(self._local, self._of_baseline)
        all_but = dict.fromkeys(self._local, self._of_candidate)
        apart = {rank for rank, (change, *_) in self._local.items() if differing(change)}
        for side, effects, ranks in (
            (BASELINE, only, apart),
            (CANDIDATE, all_but, self._local.keys() - self._idle),
        ):
            bar.update(len(effects) - len(ranks))
            for rank, outputs in self._hybrid.swap_each(side, ranks):
                effects[rank] = self._compare_run(outputs)
                bar.update()
        nodes = [(rank, self._hybrid.steps[rank].node) for rank in sorted(self._local)]
        return tuple(
            NodeAttribution(
                node.label,
                node.operator,
                *self._hybrid.sources(rank),
                *self._local[rank],
                *only[rank],
                *all_but[rank],
            )
            for rank, node in nodes
        )

    def _compare_run(self, outputs: list[Any]) -> tuple[Discrepancy, Discrepancy]:
        return compare(self.baseline, outputs), compare(self._exact, outputs)


def _settings(
    baseline: Side, candidate: Side, order: Sequence[str]
) -> list[tuple[dict[KernelKey, Swap], list[str]]]:
    """List the kernels and the sources of both sides; the candidate keeps the kernels before."""
    settings: list[tuple[dict[KernelKey, Swap], list[str]]] = [({}, list(order))]
    for side in (baseline, candidate):
        kernels, names = settings[-1]
        if isinstance(side, str):
            settings.append(({}, list(dict.fromkeys((side, *order)))))
        else:
            settings.append(({**kernels, **side}, names))
    return settings[1:]
