"""Find the nodes of a session that make its outputs differ from the expected ones."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from ortmeter.attribution.entering import enter_bodies
from ortmeter.attribution.intermediates import run_exposed
from ortmeter.attribution.nonfinite import NonFinite, first_non_finite, made_non_finite
from ortmeter.attribution.result import (
    SessionExplanation,
    SessionGroup,
    SessionNode,
    compare,
    differing,
    severity,
)
from ortmeter.attribution.search import find_effects
from ortmeter.discrepancy import Discrepancy, Tolerance
from ortmeter.discrepancy.arrays import arithmetic, is_integer
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.evaluation import Evaluator, parts
from ortmeter.evaluator.float64 import exact_feeds, is_added, to_float64
from ortmeter.evaluator.node import NOTHING, Node
from ortmeter.evaluator.plan import NodeStep
from ortmeter.progress import follow
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.inputs import half_of_memory
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session, optimized_model

_EXPECTED = ("float64", "torch", "reference")


def explain_session(
    model: ModelLike,
    feeds: Mapping[str, Any],
    expected: str = "float64",
    *,
    provider: str | Provider = "auto",
    sources: Sequence[str] = ("torch", "reference", "ort"),
    budget_s: float = 20.0,
    tolerance: Tolerance | None = None,
    **session: Any,
) -> SessionExplanation:
    """Find the nodes of a session responsible for its discrepancy.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs of the model.
    expected : {"float64", "torch", "reference"}
        Reference: an evaluation in float64, or with these kernels.
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    sources : sequence of str
        Sources of the expected kernels, see :class:`~ortmeter.evaluator.Evaluator`. With
        ``torch`` or ``reference`` as *expected*, that source comes first.
    budget_s : float
        Seconds for the search at most, once the model has run. After a tenth of them, it ends when
        it has found 99.9% of the effects. Nodes that are left are in `remaining`.
    tolerance : Tolerance, optional
        Tolerance of the outputs.
    **session
        Other settings of :func:`~ortmeter.runtime.sessions.make_session`: optimization, threads,
        tf32, spinning...

    Returns
    -------
    SessionExplanation
        One row per node, and whether reading intermediate results changes the session.

    Raises
    ------
    InvalidArgumentError
        *expected*, *budget_s* or a setting is not accepted.
    ModelError
        ONNX Runtime, or every source, refuses the model, a kernel fails, or the intermediate
        results do not fit in memory.
    FeedError
        An input is missing, unknown, or has a wrong type.
    ProviderUnavailableError
        The provider does not work on this machine.

    Notes
    -----
    The session runs twice: unchanged, then with the intermediate results of its optimized graph as
    outputs, so that fusions stay. For each node, the expected kernel runs on the expected inputs
    and on the inputs of the session, which gives its own error.

    The search computes the outputs when the first k nodes have the results of the session and the
    others the expected kernels. Such outputs differ from those for another k by the effect of the
    nodes in between: groups are split, the largest effect first, until there is one node in each.
    Effects add up to the whole discrepancy. Nodes without an error of their own, or that no output
    needs, are not searched. A group whose nodes cancel each other has a small effect. If and Loop
    are replaced by the nodes that they run.

    The intermediate results of the session are in memory at once, in its own types.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Z) { [exp] Y = Exp(X)  [abs] Z = Abs(Y) }'''
    >>> found = explain_session(text, {"X": np.float32([1, 2])}, "reference", provider="cpu")
    >>> found.same_outputs, [node.name for node in found.nodes]
    (True, ['exp', 'abs'])
    >>> found.searched, found.remaining
    (2, ())
    """
    if expected not in _EXPECTED:
        raise InvalidArgumentError(f"expected={expected!r}. Accepted: {', '.join(_EXPECTED)}")
    if not 0 <= budget_s < math.inf:
        raise InvalidArgumentError(f"budget_s={budget_s!r}. Accepted: a finite number >= 0")
    session["provider"] = device = resolve_provider(provider)
    outputs = run_session(make_session(model, **session), feeds)
    proto = enter_bodies(load_model(model), feeds, **session)
    ran = optimized_model(proto, **session).graph.node
    exposed = run_exposed(proto, feeds, {n for node in ran for n in node.output}, **session)
    walk = _SessionWalk(proto, feeds, expected, device, sources)
    nodes, remaining = walk.explain(exposed, budget_s)
    wanted = dict(zip(outputs, walk.outputs, strict=True))
    diffs = compare_outputs(wanted, outputs, tolerance, typed=expected != "float64")
    asked = compare(list(walk.outputs), list(outputs.values()))
    again = [exposed[name] for name in outputs]
    explained = compare(list(walk.outputs), again)
    same = not differing(compare(list(outputs.values()), again))
    shown = explained.n_finite < explained.n
    made = first_non_finite([m for m in walk.made if shown or math.isfinite(m.expected)])
    return SessionExplanation(
        nodes, diffs, asked, explained, same, expected, remaining, made, proto
    )


class _Narrow(NamedTuple):
    """A result of the session, and the type that the expected kernels read."""

    value: Any
    dtype: np.dtype[Any]


class _SessionWalk:
    """The expected evaluation, beside the results of a session."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Any],
        expected: str,
        device: Provider,
        sources: Sequence[str],
    ) -> None:
        self._expected, self.made = expected, list[NonFinite]()
        if expected == "float64":
            double = to_float64(model)
            model, feeds = double, exact_feeds(model, double, feeds)
        else:
            sources = tuple(dict.fromkeys((expected, *sources)))
        evaluator = Evaluator(model, sources=sources, device=device)
        self._plan, checker, context = parts(evaluator)
        self._memory = context.memory
        context.library = "numpy"
        self._given = checker.take(feeds)
        self._names = {slot: name for name, slot in self._plan.slots.items() if name}
        self._outputs = list(dict.fromkeys(self._plan.outputs))  # a name may be there twice
        self._ends = [self._plan.slots[name] for name in self._outputs]
        self._needed, self._useful, self._freed = _uses(self._plan.steps, self._ends)
        self.outputs: tuple[Any, ...] = ()

    def explain(
        self, session: Mapping[str, Any], budget_s: float
    ) -> tuple[tuple[SessionNode, ...], tuple[SessionGroup, ...]]:
        """Compare each node with what it gives in the session, then search the largest effects."""
        with self._memory.policy(), np.errstate(all="ignore"):  # inf of the session
            nodes = self._compare_nodes(session)
            self._ranks = [r for r, n in nodes.items() if differing(n.own) and r in self._needed]
            types = [_type(session[name]) for name in self._outputs]
            measure = functools.partial(_effect, types=types)
            spans = find_effects(
                self._mixed,
                (self.outputs, self._values(self._beside, self._ends)),
                [_weight(nodes[rank].own) for rank in self._ranks],
                measure,
                severity,
                budget_s=budget_s,
                most_kept=half_of_memory() / _n_bytes(self.outputs),
            )
        nothing = measure(self.outputs, self.outputs)
        effects: dict[int, Discrepancy | None] = dict.fromkeys(nodes, nothing)
        groups = []
        for span in sorted(spans, key=lambda span: span.start):
            ranks = self._ranks[span.start : span.stop]
            effects |= dict.fromkeys(ranks, span.effect if span.is_single else None)
            if not span.is_single:
                groups.append(SessionGroup(tuple(nodes[rank].name for rank in ranks), span.effect))
        return tuple(
            dataclasses.replace(node, effect=effects[rank]) for rank, node in nodes.items()
        ), tuple(groups)

    def _compare_nodes(self, session: Mapping[str, Any]) -> dict[int, SessionNode]:
        """Run the expected kernels on the expected results, and on those of the session.

        Returns, by rank, the nodes whose results the session has; their effects are not known.
        """
        steps = self._plan.steps
        expected, beside = (self._plan.start(self._given) for _ in range(2))
        fused: dict[int, tuple[str, ...]] = {}  # by slot of what the session lacks
        made: dict[int, tuple[Node, tuple[str, ...]]] = {}  # by slot: a node, what is fused with it
        nodes = {}
        for rank, step in enumerate(follow(steps, "nodes")):
            step.execute(expected)
            given = self._values(beside, step.inputs)
            step.store(beside, step.apply(given))
            hidden = tuple(dict.fromkeys(n for s in step.inputs for n in fused.get(s, ())))
            slots = [s for s in step.outputs if self._names.get(s) in session]
            node = step.node
            if is_added(node.proto):  # the session has not this cast, but the node that it follows
                node, hidden = made.get(step.inputs[0], (node, hidden))
            else:
                made |= dict.fromkeys(step.outputs, (node, hidden))
            if slots:
                got = [session[self._names[s]] for s in slots]
                wanted = [beside[s] for s in slots]
                self.made += made_non_finite(node, hidden, self._expected, (given, wanted, got))
                both = compare(wanted, got), compare([expected[s] for s in slots], got)
                nodes[rank] = SessionNode(node.label, node.operator, hidden, *both, None)
                for slot, value in zip(slots, got, strict=True):
                    beside[slot] = self._as_read(beside[slot], value)
            else:
                fused |= {slot: (*hidden, node.label) for slot in step.outputs if slot}
            for slot in self._freed[rank]:
                expected[slot] = None
                if slot not in self._useful:
                    beside[slot] = None
        self.outputs = tuple(expected[slot] for slot in self._ends)
        self._beside = beside
        return nodes

    def _mixed(self, count: int, is_late: Callable[[], bool]) -> tuple[Any, ...] | None:
        """Compute the outputs when the first suspects have the results of the session.

        Only what follows from the others is computed.
        """
        values, recomputed = self._beside.copy(), set[int]()
        exact = set(self._ranks[count:])
        for rank in range(self._ranks[count], len(self._plan.steps)):
            if is_late():
                return None
            step = self._plan.steps[rank]
            if rank in exact or (rank in self._needed and not recomputed.isdisjoint(step.inputs)):
                step.store(values, step.apply(self._values(values, step.inputs)))
                recomputed.update(slot for slot in step.outputs if slot)
            for slot in self._freed[rank]:
                values[slot] = None
        return self._values(values, self._ends)

    def _as_read(self, expected: Any, value: Any) -> Any:
        """Keep a result of the session, with the type that the expected kernels read."""
        if expected is None or value is None or isinstance(value, list):
            return self._memory.hold(value)
        return _Narrow(value, as_numpy(expected).dtype)

    def _values(self, values: Sequence[Any], slots: Sequence[int]) -> tuple[Any, ...]:
        """Take what a kernel reads: results of the session are converted each time."""
        taken = (values[slot] for slot in slots)
        return tuple(
            self._memory.hold(as_numpy(value.value).astype(value.dtype))
            if isinstance(value, _Narrow)
            else value
            for value in taken
        )


def _uses(
    steps: Sequence[NodeStep], outputs: Sequence[int]
) -> tuple[set[int], set[int], list[tuple[int, ...]]]:
    """Find the steps and the slots that outputs need; what nothing reads after each step."""
    needed, useful, later = set[int](), set(outputs), {NOTHING, *outputs}
    freed = []
    for rank, step in reversed(list(enumerate(steps))):
        slots = {*step.inputs, *step.outputs}
        freed.append(tuple(slots - later))
        later |= slots
        if not useful.isdisjoint(set(step.outputs) - {NOTHING}):
            needed.add(rank)
            useful.update(step.inputs)
    return needed, useful, freed[::-1]


def _weight(own: Discrepancy) -> float:
    """Own error relative to the largest value: 1 at most, and where there is no such value."""
    size = own.ranked("abs")
    return size / own.largest if 0 < size < own.largest else 1.0


def _n_bytes(values: Sequence[Any]) -> int:
    return 1 + sum(int(getattr(value, "nbytes", 0)) for value in values)


def _effect(
    expected: Sequence[Any], changed: Sequence[Any], types: Sequence[str | None]
) -> Discrepancy:
    """Compare outputs in the expected types; the ulp are those of the types of the session."""
    whole = compare(list(expected), list(changed))
    each = [compare(*pair) for pair in zip(expected, changed, strict=True)]
    units = [
        _spacing(diff.dtype_got) / _spacing(wanted) if wanted and diff.dtype_got else 1.0
        for diff, wanted in zip(each, types, strict=True)
    ]
    pairs = list(zip(each, units, strict=True))
    return dataclasses.replace(
        whole,
        ulp=max(diff.ulp * unit for diff, unit in pairs),
        ulp_at_max=max(diff.ulp_at_max * unit for diff, unit in pairs),
    )


def _spacing(name: str) -> float:
    return arithmetic(name, name).spacing(1.0)


def _type(value: Any) -> str | None:
    """Name the type of a float array, which has a spacing."""
    name = None if value is None or isinstance(value, list) else short_name(value.dtype)
    return None if name is None or name == "s" or is_integer(name) else name
