"""Find the nodes of a session that make its outputs differ from the expected ones."""

import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortmeter.discrepancy import Discrepancy
from ortmeter.discrepancy.arrays import arithmetic, is_integer
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.attribution_result import (
    SessionExplanation,
    SessionNode,
    compare,
    differing,
)
from ortmeter.evaluator.evaluation import Evaluator, parts
from ortmeter.evaluator.float64 import exact_feeds, is_added, to_float64
from ortmeter.evaluator.plan import Step
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session

_EXPECTED = ("float64", "torch", "reference")


def explain_session(
    model: ModelLike,
    feeds: Mapping[str, Any],
    expected: str = "float64",
    *,
    provider: str | Provider = "auto",
    optimization: str = "all",
    threads: int = 1,
    tf32: bool = False,
    sources: Sequence[str] = ("torch", "reference", "ort"),
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
    optimization : str
        Level of optimization of the session, see :func:`~ortmeter.runtime.sessions.make_session`.
    threads : int
        Threads of the session.
    tf32 : bool
        Whether the session may round float32 products to TF32.
    sources : sequence of str
        Sources of the expected kernels, see :class:`~ortmeter.evaluator.Evaluator`. With
        ``torch`` or ``reference`` as *expected*, that source comes first.

    Returns
    -------
    SessionExplanation
        One row per node, and whether reading intermediate results changes the session.

    Raises
    ------
    InvalidArgumentError
        *expected* is not accepted.
    ModelError
        ONNX Runtime, or every source, refuses the model.
    FeedError
        An input is missing, unknown, or has a wrong type.
    ProviderUnavailableError
        The provider does not work on this machine.

    Notes
    -----
    The session runs twice: unchanged, then with the intermediate results of its optimized graph as
    outputs, so that fusions stay. For each node, the expected kernel runs on the expected inputs
    and on the inputs of the session; the outputs are computed again with its own error alone. To
    first order, these effects add up to the whole discrepancy.

    All intermediate results are in memory at once.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Z) { [exp] Y = Exp(X)  [abs] Z = Abs(Y) }'''
    >>> found = explain_session(text, {"X": np.float32([1, 2])}, "reference", provider="cpu")
    >>> found.same_outputs, [node.name for node in found.nodes]
    (True, ['exp', 'abs'])
    """
    if expected not in _EXPECTED:
        raise InvalidArgumentError(f"expected={expected!r}. Accepted: {', '.join(_EXPECTED)}")
    proto = load_model(model)
    device = resolve_provider(provider)
    make = functools.partial(
        make_session, provider=device, optimization=optimization, threads=threads, tf32=tf32
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        outputs = run_session(make(model, optimized_path=path), feeds)
        exposing = _exposing(proto, onnx.load(path, load_external_data=False))
    exposed = run_session(make(exposing), feeds)
    walk = _Walk(proto, feeds, expected, device, sources)
    nodes = walk.nodes(exposed)
    wanted = walk.outputs(walk.expected)
    same = [_same_bits(value, exposed[name]) for name, value in outputs.items()]
    asked = compare(wanted, list(outputs.values()))
    explained = compare(wanted, [exposed[name] for name in outputs])
    return SessionExplanation(nodes, asked, explained, all(same), expected)


def _exposing(model: onnx.ModelProto, optimized: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model whose outputs are all the results that its optimized graph computes."""
    computed = {name for node in optimized.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in model.graph.node:
        for name in node.output:
            if name in computed and name not in outputs and name:
                copy.graph.output.append(onnx.ValueInfoProto(name=name))
    return copy


@dataclass(frozen=True)
class _Read:
    """A node whose results the session has: by slot, what is expected there and what it has."""

    step: Step
    fused: tuple[str, ...]
    pairs: dict[int, tuple[Any, Any]]


class _Walk:
    """The expected evaluation, beside the results of a session."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Any],
        expected: str,
        device: Provider,
        sources: Sequence[str],
    ) -> None:
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
        self.expected = self._plan.start(self._given)
        self._names = {slot: name for name, slot in self._plan.slots.items() if name}

    def nodes(self, session: Mapping[str, Any]) -> tuple[SessionNode, ...]:
        """Compare each node with what it gives in the session, then add its own errors alone."""
        beside = self._plan.start(self._given)  # results of the session, where it has them
        fused: dict[int, tuple[str, ...]] = {}  # by slot of what the session has not
        found = []
        self._types = [_type(session[name]) for name in self._plan.outputs]
        with self._memory.policy(tf32=False), np.errstate(all="ignore"):  # inf of the session
            for step in self._plan.steps:
                step.execute(self.expected)
                step.execute(beside)
                hidden = tuple(dict.fromkeys(n for s in step.inputs for n in fused.get(s, ())))
                slots = [s for s in step.outputs if self._names.get(s) in session]
                if slots:
                    found.append(_Read(step, hidden, self._read(slots, beside, session)))
                else:
                    label = () if is_added(step.node.proto) else (step.node.label,)
                    fused |= {slot: (*hidden, *label) for slot in step.outputs if slot}
            outputs = self.outputs(self.expected)
            return tuple(self._node(read, outputs) for read in found)

    def _read(
        self, slots: Sequence[int], beside: list[Any], session: Mapping[str, Any]
    ) -> dict[int, tuple[Any, Any]]:
        """Pair the expected results of a node with those of the session, which it then has."""
        pairs = {slot: (beside[slot], session[self._names[slot]]) for slot in slots}
        for slot, (own, got) in pairs.items():
            beside[slot] = self._like(own, got)
        return pairs

    def _node(self, read: "_Read", outputs: list[Any]) -> SessionNode:
        node, pairs = read.step.node, read.pairs
        expected, got = (list(side) for side in zip(*pairs.values(), strict=True))
        own = compare(expected, got)
        moved = self._after(read.step, pairs) if differing(own) else outputs
        return SessionNode(
            node.label,
            node.operator,
            read.fused,
            own,
            compare([self.expected[slot] for slot in pairs], got),
            _effect(outputs, moved, self._types),
        )

    def _after(self, changed: Step, pairs: Mapping[int, tuple[Any, Any]]) -> list[Any]:
        """Compute the outputs again, with the errors of one node alone."""
        values = self.expected.copy()
        for slot, (own, got) in pairs.items():
            values[slot] = self._like(own, _moved(values[slot], own, got))
        moved = set(pairs)
        following = itertools.dropwhile(lambda step: step is not changed, self._plan.steps)
        for step in itertools.islice(following, 1, None):
            if not moved.isdisjoint(step.inputs):
                step.execute(values)
                moved.update(slot for slot in step.outputs if slot)
        return self.outputs(values)

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        return [values[self._plan.slots[name]] for name in self._plan.outputs]

    def _like(self, expected: Any, value: Any) -> Any:
        """Convert a result to the type that the expected kernels read."""
        if expected is None or value is None or isinstance(value, list):
            return self._memory.hold(value)
        return self._memory.hold(as_numpy(value).astype(as_numpy(expected).dtype))


def _moved(value: Any, own: Any, got: Any) -> Any:
    """Add the error of a node, ``got - own``, to a result; what has no difference is replaced."""
    if any(side is None or isinstance(side, list) for side in (value, own, got)):
        return got
    value, own, got = (as_numpy(side) for side in (value, own, got))
    if own.shape != got.shape or own.shape != value.shape:
        return got
    if is_integer(name := short_name(own.dtype)) or name == "s":
        return np.where(own == got, value, got)
    kind = np.complex128 if own.dtype.kind == "c" else np.float64
    value, own, got = (side.astype(kind) for side in (value, own, got))
    with np.errstate(all="ignore"):
        error = got - own
        return np.where(np.isfinite(error), value + error, np.where(own == got, value, got))


def _effect(expected: list[Any], moved: list[Any], types: Sequence[str | None]) -> Discrepancy:
    """Compare outputs of the expected types; their ulp are those of other types."""
    whole = compare(expected, moved)
    each = [compare(*pair) for pair in zip(expected, moved, strict=True)]
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


def _same_bits(first: Any, second: Any) -> bool:
    if first is None or isinstance(first, list) or first.dtype == object:
        return not differing(compare(first, second))
    return (first.dtype, first.shape, first.tobytes()) == (
        second.dtype,
        second.shape,
        second.tobytes(),
    )
