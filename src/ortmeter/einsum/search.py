"""The models of an equation that differ, and the fastest one, by estimated cost or by time."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.shape_inference

from ortmeter.dtypes import onnx_type
from ortmeter.einsum.cost import estimate_steps
from ortmeter.einsum.emit import FUSED, einsum_model, emit_model, letters_in_double
from ortmeter.einsum.parse import Operands, read_operands
from ortmeter.einsum.plan import EinsumPlan, make_plan
from ortmeter.einsum.steps import absorb_transposes
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.optional import import_optional, pd
from ortmeter.progress import follow
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Measurement, measure
from ortmeter.timing.measurement import format_seconds
from ortmeter.timing.statistics import is_faster_more_often

#: Name of the candidate that is the operator alone.
PLAIN = "Einsum"
_MOST_ORDERS = 120
_ALL_PATHS = 4  # operands
_EINSUM = 3e-6  # seconds around a product of the operator


@dataclass(frozen=True, eq=False)
class EinsumCandidate:
    """A candidate model of an equation.

    Parameters
    ----------
    name : str
        ``Einsum``, or a description of the decomposition.
    plan : EinsumPlan
        Its steps; for ``Einsum``, they are only used to estimate its cost.
    cost : float
        Estimated seconds of a run.
    order : str, optional
        Order of the letters, None if it is chosen for each product.
    decomposed : bool
        False for the plain ``Einsum``.
    contrib : bool
        Whether transposes and products are fused into ``com.microsoft.FusedMatMul``.
    threads : int
        Threads of its session, see :func:`~ortmeter.runtime.sessions.make_session`.
    """

    name: str
    plan: EinsumPlan
    cost: float
    order: str | None = None
    decomposed: bool = True
    contrib: bool = False
    threads: int = 1

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model, whose inputs are the operands in their order."""
        operands, steps = self.plan.operands, self.plan.steps
        if not self.decomposed:
            return einsum_model(self.plan.equation, *operands.shapes, dtype=operands.dtype)
        return emit_model(operands, steps, contrib=self.contrib)


def list_candidates(
    operands: Operands, *, every_order: bool = True, threads: int = 1, seed: int = 0
) -> list[EinsumCandidate]:
    """Write the models that differ, the most promising first; one of them is the plain Einsum.

    ONNX Runtime may compute the plain Einsum wrongly, or not survive it: it is then left out.
    Without *every_order*, only the plan chooses the order, which is a hundred times shorter.
    """
    plain = make_plan(operands)
    distinct: dict[object, EinsumCandidate] = {}
    orders = list_orders(operands, np.random.default_rng(seed)) if every_order else []
    for planned in _plans(plain, orders, paths=every_order):
        for candidate in _variants(planned, threads):
            distinct.setdefault((candidate.plan.steps, candidate.contrib), candidate)
    found = [*distinct.values()]
    if 0 not in operands.sizes.of.values() and not letters_in_double(operands):
        # The operator multiplies its operands from left to right; its plan only describes it.
        count = len(operands.shapes)
        plan = make_plan(operands, path=_left_to_right(count))
        seconds = _EINSUM * count + estimate_steps(operands, plan.steps)
        found.insert(0, EinsumCandidate(PLAIN, plan, seconds, decomposed=False, threads=threads))
    return sorted(found, key=lambda c: c.cost)


def list_orders(operands: Operands, rng: np.random.Generator) -> list[str]:
    """List orders of the letters of a product, drawn when there are over 120."""
    inputs = operands.equation.inputs
    letters = "".join(dict.fromkeys("".join(inputs)))
    if len(inputs) < 2:  # noqa: PLR2004 - no product
        return []
    if math.factorial(len(letters)) <= _MOST_ORDERS:
        return list(map("".join, itertools.permutations(letters)))
    drawn = ("".join(rng.permutation(list(letters))) for _ in range(_MOST_ORDERS))
    return list(dict.fromkeys(drawn))


def _plans(plain: EinsumPlan, orders: Sequence[str], *, paths: bool) -> Iterator[EinsumCandidate]:
    """Plans of each order and path; their cost is not known yet."""
    operands = plain.operands
    count = len(operands.shapes)
    for order in orders:
        yield EinsumCandidate(f"order {order}", make_plan(operands, order=order), 0.0, order)
    yield EinsumCandidate("decomposed", plain, 0.0)
    for path in _paths(count) if paths else ():
        name = ", ".join(f"{i} {j}" for i, j in path)
        yield EinsumCandidate(f"path {name}", make_plan(operands, path=path), 0.0)


def _left_to_right(count: int) -> tuple[tuple[int, ...], ...]:
    pairs = ((0, 1), *((0, left) for left in range(count - 2, 0, -1)))
    return pairs if count > 1 else ((0,),)


def _paths(count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """List paths: all of them up to four operands, else from left to right and from right to left.

    A product goes to the end of the list of operands.
    """
    if count > _ALL_PATHS:
        yield _left_to_right(count)
        yield tuple((i - 1, i) for i in range(count - 1, 0, -1))
    elif count > 2:  # noqa: PLR2004 - two operands have one path
        pairs = [itertools.combinations(range(left), 2) for left in range(count, 1, -1)]
        yield from itertools.product(*pairs)


def _variants(candidate: EinsumCandidate, threads: int) -> Iterator[EinsumCandidate]:
    """The ways to write the same plan, each with its cost."""
    operands, plan = candidate.plan.operands, candidate.plan
    absorbed, flags = absorb_transposes(plan.steps)
    for contrib, steps in ((False, plan.steps), (True, absorbed)):
        if contrib and not (flags and onnx_type(operands.dtype) in FUSED):
            break
        name = f"{candidate.name}{', FusedMatMul' if contrib else ''}"
        cost = estimate_steps(operands, steps, threads=threads)
        yield replace(candidate, name=name, cost=cost, contrib=contrib, threads=threads)


_Run: TypeAlias = Callable[[], None]

_START_SHARE, _RACE_SHARE = 0.4, 0.9  # of the budget: no model is started after, the race ends
# The fastest ones are compared, as often, until their intervals are as narrow.
_FINALISTS, _ROUNDS, _PRECISION = 8, 30, 0.02
_WARM_RUNS, _WARM_S = 8, 0.05
_HOPELESS = 2.0  # times the best
_COSTLY = 100.0  # times the lowest estimate: such a model may fill the memory


@dataclass(frozen=True)
class Race:
    """Times of the models that ran, a single sample for those that were left early.

    The finalists were compared until the end; those without a kernel were refused for a reason.
    """

    measured: Mapping[str, Measurement]
    finalists: tuple[str, ...]
    refused: Mapping[str, str]
    baseline: str

    @property
    def winner(self) -> str:
        """Finalist that :func:`fastest` chooses."""
        seconds = {name: self.measured[name].seconds for name in self.finalists}
        return fastest(seconds, self.baseline)


@dataclass(frozen=True, eq=False)
class EinsumSearch:
    """Candidate models of an equation, and the fastest one.

    Parameters
    ----------
    candidates : tuple of EinsumCandidate
        All candidates, the lowest estimated cost first.
    best : EinsumCandidate
        By cost, the candidate of lowest cost. By time, the finalist with the lowest first quartile,
        since disturbances of a machine only add time, if it is shown to be faster than ``Einsum``.
    race : Race or None
        Times, None for a search by cost.
    seconds : float
        Duration of the search.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.ones((4, 5), np.float32), np.ones((6, 5), np.float32)
    >>> search = optimize_einsum("ij,kj->ik", a, b, by="cost", provider="cpu")
    >>> [node.op_type for node in search.model.graph.node]
    ['FusedMatMul']
    """

    candidates: tuple[EinsumCandidate, ...]
    best: EinsumCandidate
    race: Race | None
    seconds: float

    @property
    def model(self) -> onnx.ModelProto:
        """The model of the best candidate; its inputs are the operands in their order."""
        return self.best.model

    def to_frame(self) -> "pd.DataFrame":
        """Describe the candidates.

        Returns
        -------
        pandas.DataFrame
            One row per candidate: finalists by median, then other timed candidates by time, then
            candidates that did not run by cost. Columns ``candidate``, ``threads``, ``steps``
            (number), ``flop``, ``bytes_moved`` (of the steps), ``cost`` (estimated seconds),
            ``median``, ``q1``, ``q3`` (seconds, missing without a run), ``rounds``, ``finalist``.
        """
        frame = pd.DataFrame([self._row(candidate) for candidate in self.candidates])
        order = frame.assign(later=~frame["finalist"]).sort_values(
            ["later", "median", "cost"], kind="stable", na_position="last"
        )
        return order.drop(columns="later").reset_index(drop=True)

    def __str__(self) -> str:
        count = len(self.candidates)
        text = f"{self.best.plan.equation}: {self.best.name} among {count} candidates"
        if self.race is None:
            return f"{text}, estimated {format_seconds(self.best.cost)}"
        measured = self.race.measured
        return (
            f"{text}, {len(measured)} timed in {format_seconds(self.seconds)}: "
            f"median {format_seconds(measured[self.best.name].median)}"
        )

    def _row(self, candidate: EinsumCandidate) -> dict[str, Any]:
        timed = None if self.race is None else self.race.measured.get(candidate.name)
        q1, q3 = (np.nan, np.nan) if timed is None else timed.quartiles
        return {
            "candidate": candidate.name,
            "threads": candidate.threads,
            "steps": len(candidate.plan.steps) if candidate.decomposed else 1,
            "flop": candidate.plan.flop,
            "bytes_moved": candidate.plan.bytes_moved,
            "cost": candidate.cost,
            "median": np.nan if timed is None else timed.median,
            "q1": q1,
            "q3": q3,
            "rounds": 0 if timed is None else timed.repeat,
            "finalist": self.race is not None and candidate.name in self.race.finalists,
        }


def optimize_einsum(
    equation: str,
    *operands: Any,
    by: str = "time",
    budget: float = 2.0,
    seed: int = 0,
    provider: str | Provider = "auto",
    threads: int = 1,
) -> EinsumSearch:
    """Find the fastest model of an equation for given operands.

    The candidates are the plain ``Einsum``, unless ONNX Runtime may compute it wrongly, see
    :func:`~ortmeter.einsum.einsum_model`; decompositions with every order of the letters that
    gives a different graph; and decompositions with other paths, for three operands or more. Each
    may have a variant with transposes fused into the products. An estimate of their cost ranks
    them.

    Parameters
    ----------
    equation : str
        Equation, as in :func:`numpy.einsum`.
    *operands : array or tuple of int
        Operands, or shapes of float32 operands.
    by : {"time", "cost"}
        ``"cost"`` returns the candidate of lowest estimated cost, without running any. ``"time"``
        runs the most promising candidates, then interleaves the fastest ones. None runs that
        is estimated to take a hundred times the quickest decomposition, not even ``Einsum``.
    budget : float
        Maximum seconds of a search by time, if single runs are shorter.
    seed : int
        Seed of the choice of orders if there are too many, of operands given by their shapes, and
        of the order of the samples.
    provider, threads
        Settings of the sessions, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    EinsumSearch
        The candidates and the best model. A search by cost is the same on every machine; a search
        by time compares the same candidates in the same order.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        *by*, *budget* or *threads* has a value that is not accepted.
    ModelError
        ONNX Runtime cannot run any candidate.

    Examples
    --------
    >>> search = optimize_einsum("ij,jk->ik", (8, 8), (8, 8), by="cost", provider="cpu")
    >>> search.best.name
    'decomposed'
    """
    if by not in {"time", "cost"} or not budget > 0 or threads < 0:
        raise InvalidArgumentError(
            f"by={by!r}, budget={budget}, threads={threads}. Accepted: by='time' or 'cost', a "
            "positive budget, threads from 0"
        )
    begin = time.perf_counter()
    read = read_operands(equation, operands, None)
    candidates = list_candidates(read, every_order=by == "time", threads=threads, seed=seed)
    times, best = None, candidates[0]
    provider = resolve_provider(provider)
    if by == "time":
        plain = [c for c in candidates if not c.decomposed]
        rng = np.random.default_rng(seed)
        drawn = [
            rng.standard_normal(x).astype(read.dtype) if isinstance(x, tuple | list) else x
            for x in operands
        ]
        times = race(
            {c.name: c for c in [best, *plain, *candidates]},
            drawn,
            baseline=PLAIN,
            provider=provider,
            budget_s=budget - (time.perf_counter() - begin),
            seed=seed,
        )
        best = next(c for c in candidates if c.name == times.winner)
    seconds = time.perf_counter() - begin
    return EinsumSearch(tuple(candidates), best, times, seconds)


def fastest(seconds: Mapping[str, "np.ndarray[Any, Any]"], baseline: str) -> str:
    """Choose the lowest first quartile, since what disturbs a machine only adds time.

    The baseline is preferred to a candidate that does not pass a sign test on paired rounds, unless
    it takes twice the time.
    """
    quartile = {name: float(np.quantile(taken, 0.25)) for name, taken in seconds.items()}
    best = min(quartile, key=lambda name: quartile[name])
    if baseline not in seconds or quartile[baseline] > _HOPELESS * quartile[best]:
        return best
    return best if is_faster_more_often(seconds[best], seconds[baseline]) else baseline


def race(
    candidates: Mapping[str, EinsumCandidate],
    operands: Sequence[Any],
    *,
    baseline: str,
    provider: Provider,
    budget_s: float,
    seed: int,
) -> Race:
    """Run models, most promising first, and compare the fastest ones.

    The first one runs whatever the budget; the baseline is compared, unless it takes twice the time
    of another one. A model whose estimated cost is far above the lowest, even the baseline, runs
    only if no other did before.
    """
    import_optional("onnxruntime", "cpu", "gpu")
    begin = time.perf_counter()
    runs: dict[str, _Run] = {}
    measured: dict[str, Measurement] = {}
    refused: dict[str, str] = {}
    lowest = min((c.cost for c in candidates.values() if c.decomposed), default=math.inf)
    for name, candidate in follow(candidates.items(), "models"):
        if runs and candidate.cost > _COSTLY * lowest > 0:
            continue
        # The next one may be as fast as the fastest so far.
        next_s = 2 * min((timed.median for timed in measured.values()), default=0.0)
        if runs and time.perf_counter() - begin + next_s > _START_SHARE * budget_s:
            break
        try:
            session = make_session(candidate.model, provider=provider, threads=candidate.threads)
            names = [node.name for node in session.get_inputs()]
            run = BoundSession(session, dict(zip(names, operands, strict=True))).run
            measured[name] = Measurement(name, np.array([[_shortest(run)]]))
        except (OrtMeterError, onnx.shape_inference.InferenceError) as error:
            refused[name] = str(error)
            continue
        runs[name] = run
    if not runs:
        raise ModelError("; ".join(refused.values()))
    quartile = {name: timed.quartiles[0] for name, timed in measured.items()}
    hopeful = [x for x in runs if quartile[x] <= _HOPELESS * min(quartile.values())]
    hopeful.sort(key=lambda name: (name != baseline, quartile[name]))
    finalists = tuple(hopeful[:_FINALISTS])
    left = begin + _RACE_SHARE * budget_s - time.perf_counter()
    if len(finalists) > 1 and left > 0:
        chosen = {name: runs[name] for name in finalists}
        measured |= measure(
            chosen, repeat=_ROUNDS, warmup=1, precision=_PRECISION, budget_s=left, seed=seed
        )
    return Race(measured, finalists, refused, baseline)


def _shortest(run: _Run) -> float:
    """Time of the shortest of a few runs, of one when it is long: the first ones are cold."""
    best, spent = math.inf, 0.0
    for _ in range(_WARM_RUNS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
        spent += best
        if spent > _WARM_S:
            break
    return best
