"""The models of an equation that differ, and the fastest one."""

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

from ortmeter.einsum.cost import estimate_einsum, estimate_steps
from ortmeter.einsum.emit import einsum_model, emit_model
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
_LARGER = 8  # times the operands: what a product element by element may write


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
    split : bool
        Whether slow transposes are replaced by two fast ones.
    threads : int
        Threads of its session, see :func:`~ortmeter.runtime.sessions.make_session`.
    """

    name: str
    plan: EinsumPlan
    cost: float
    order: str | None = None
    decomposed: bool = True
    contrib: bool = False
    split: bool = False
    threads: int = 1

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model, whose inputs are the operands in their order."""
        operands, steps = self.plan.operands, self.plan.steps
        if not self.decomposed:
            return einsum_model(self.plan.equation, *operands.shapes, dtype=operands.dtype)
        return emit_model(operands, steps, contrib=self.contrib, split=self.split)


def list_candidates(
    operands: Operands, *, threads: int = 1, seed: int = 0
) -> list[EinsumCandidate]:
    """Write the models that differ, the most promising first; one of them is the plain Einsum.

    ONNX Runtime may compute the plain Einsum wrongly, or not survive it: it is then left out.
    """
    plain = make_plan(operands)
    distinct: dict[object, EinsumCandidate] = {}
    for planned in _plans(plain, distinct_orders(operands, np.random.default_rng(seed))):
        for candidate in _variants(planned, threads):
            key = (candidate.plan.steps, candidate.contrib, candidate.split)
            distinct.setdefault(key, candidate)
    found = [*distinct.values()]
    if not operands.is_empty:
        # The plan of the plain operator only describes the equation.
        seconds = estimate_einsum(operands)
        found.insert(0, EinsumCandidate(PLAIN, plain, seconds, decomposed=False, threads=threads))
    return sorted(found, key=lambda c: c.cost)


def distinct_orders(operands: Operands, rng: np.random.Generator) -> list[str]:
    """List orders of the letters that may give distinct graphs, drawn when there are over 120.

    With two operands, only the order inside each group matters (batch, rows, columns, summed
    letters), and which of rows and columns comes first: one order stands for all those that agree
    on that.
    """
    if len(operands.shapes) < 2:  # noqa: PLR2004 - no product
        return []
    groups = _groups(operands)
    if math.prod(math.factorial(len(group)) for group in groups) <= _MOST_ORDERS:
        choices = itertools.product(*map(itertools.permutations, groups))
        chosen = [tuple(map("".join, choice)) for choice in choices]
    else:
        chosen = [
            tuple("".join(rng.permutation(list(group))) for group in groups)
            for _ in range(_MOST_ORDERS)
        ]
    orders = [
        "".join(part)
        for batch, rows, columns, *others in chosen
        for part in ((batch, rows, columns, *others), (batch, columns, rows, *others))
    ]
    return list(dict.fromkeys(orders))


def _groups(operands: Operands) -> tuple[str, ...]:
    """Letters that a product treats alike; all of them when there are several products."""
    inputs, output = operands.equation.inputs, operands.equation.output
    letters = "".join(dict.fromkeys("".join(inputs)))
    if len(inputs) != 2:  # noqa: PLR2004 - one product
        return letters, "", ""
    left, right = (
        set(x) - set(stretched) for x, stretched in zip(inputs, operands.stretched, strict=True)
    )
    shared = left & right
    groups = (shared & set(output), left - shared, right - shared, shared - set(output))
    named = ["".join(x for x in letters if x in group) for group in groups]
    rest = "".join(x for x in letters if not any(x in group for group in named))
    return (*named, rest)


def _plans(plain: EinsumPlan, orders: Sequence[str]) -> Iterator[EinsumCandidate]:
    """Plans of each order, then of each path; their cost is not known yet."""
    operands = plain.operands
    for order in orders:
        yield EinsumCandidate(f"order {order}", make_plan(operands, order=order), 0.0, order)
    yield EinsumCandidate("decomposed", plain, 0.0)
    for path in _paths(len(operands.shapes)):
        name = ", ".join(f"{i} {j}" for i, j in path)
        yield EinsumCandidate(f"path {name}", make_plan(operands, path=path), 0.0)
    if _suits_elements(operands):
        yield EinsumCandidate("product, then sum", make_plan(operands, elementwise=True), 0.0)


def _paths(count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """List paths: all of them up to four operands, else from left to right and from right to left.

    A product goes to the end of the list of operands.
    """
    if count > _ALL_PATHS:
        yield ((0, 1), *((0, left) for left in range(count - 2, 0, -1)))
        yield tuple((i - 1, i) for i in range(count - 1, 0, -1))
    elif count > 2:  # noqa: PLR2004 - two operands have one path
        pairs = [itertools.combinations(range(left), 2) for left in range(count, 1, -1)]
        yield from itertools.product(*pairs)


def _suits_elements(operands: Operands) -> bool:
    """Return whether a product element by element may beat products of tiny matrices."""
    inputs, output = operands.equation.inputs, operands.equation.output
    if len(inputs) != 2:  # noqa: PLR2004 - one product
        return False
    summed = "".join(set(inputs[0]) & set(inputs[1]) - set(output))
    elements = operands.count(output + summed)
    largest = max(map(math.prod, operands.shapes))
    return bool(summed) and elements <= _LARGER * largest


def _variants(candidate: EinsumCandidate, threads: int) -> Iterator[EinsumCandidate]:
    """The ways to write the same plan, each with its cost."""
    operands, plan = candidate.plan.operands, candidate.plan
    absorbed, flags = absorb_transposes(plan.steps)
    for contrib, steps in ((False, plan.steps), (True, absorbed)):
        if contrib and not flags:
            break
        name = f"{candidate.name}{', FusedMatMul' if contrib else ''}"
        cost = estimate_steps(operands, steps, threads=threads)
        written = replace(candidate, name=name, cost=cost.whole, contrib=contrib, threads=threads)
        yield written
        if cost.split < cost.whole:
            name += ", split transposes"
            yield replace(written, name=name, cost=cost.split, split=True)


_Run: TypeAlias = Callable[[], None]

_START_SHARE = 0.4  # of the budget, after which no model is started
_END_SHARE = 0.9  # of the budget, at the end of the comparison
_FINALISTS, _ROUNDS = 12, 30
_RUNS_AROUND = 3  # warm-up and calibration of measure
_WARM_RUNS, _WARM_S = 8, 0.05
_HOPELESS = 2.0  # times the best
_COSTLY = 100.0  # times the lowest estimate: such a model may fill the memory
_SAMPLE_S = 2e-4  # a sample of measure lasts as long, at least


@dataclass(frozen=True, eq=False)
class EinsumSearch:
    """Candidate models of an equation, and the fastest one.

    Parameters
    ----------
    candidates : tuple of EinsumCandidate
        All candidates, the lowest estimated cost first.
    measured : mapping of str to Measurement
        Times of the candidates that ran, a single sample for those that were left early.
    finalists : tuple of str
        Names of those that were compared until the end.
    seconds : float
        Duration of the search.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.ones((4, 5), np.float32), np.ones((6, 5), np.float32)
    >>> search = optimize_einsum("ij,kj->ik", a, b, budget=0.2, provider="cpu")
    >>> search.best.name in search.finalists, [x.name for x in search.model.graph.input]
    (True, ['X0', 'X1'])
    """

    candidates: tuple[EinsumCandidate, ...]
    measured: Mapping[str, Measurement]
    finalists: tuple[str, ...]
    seconds: float

    @property
    def best(self) -> EinsumCandidate:
        """The finalist of the lowest first quartile, since what disturbs a machine only adds time.

        ``Einsum`` is preferred to one that does not pass a sign test on paired rounds, unless it
        takes twice the time.
        """
        finalists = {name: self.measured[name] for name in self.finalists}
        best = min(finalists.values(), key=lambda timed: timed.quartiles[0])
        plain = finalists.get(PLAIN, best)
        is_slow = plain.quartiles[0] > _HOPELESS * best.quartiles[0]
        is_kept = not (is_slow or is_faster_more_often(best.seconds, plain.seconds))
        name = plain.name if is_kept else best.name
        return next(candidate for candidate in self.candidates if candidate.name == name)

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
        ascending = {"finalist": False, "median": True, "cost": True}
        return frame.sort_values([*ascending], ascending=[*ascending.values()], ignore_index=True)

    def __str__(self) -> str:
        best = self.best
        return (
            f"{best.plan.equation}: {best.name} among {len(self.candidates)} candidates, "
            f"{len(self.measured)} timed in {format_seconds(self.seconds)}: "
            f"median {format_seconds(self.measured[best.name].median)}"
        )

    def _row(self, candidate: EinsumCandidate) -> dict[str, Any]:
        timed = self.measured.get(candidate.name)
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
            "finalist": candidate.name in self.finalists,
        }


def optimize_einsum(
    equation: str,
    *operands: Any,
    budget: float = 2.0,
    seed: int = 0,
    provider: str | Provider = "auto",
    threads: int = 1,
) -> EinsumSearch:
    """Find the fastest model of an equation for given operands, by running it.

    The candidates are the plain ``Einsum``, unless ONNX Runtime may compute it wrongly, see
    :func:`~ortmeter.einsum.einsum_model`; decompositions with every order of the letters that
    gives a different graph; decompositions with other paths, for three operands or more; and an
    element-wise product followed by a sum. Each has variants with transposes fused into the
    products, and with slow transposes replaced by two fast ones.

    An estimate of their cost ranks them. The most promising ones run, then the fastest ones are
    interleaved. None runs that is estimated to take a hundred times the quickest decomposition, not
    even ``Einsum``. Where nothing can be timed, :func:`~ortmeter.einsum.decompose_einsum` chooses
    by the estimate alone.

    Parameters
    ----------
    equation : str
        Equation, as in :func:`numpy.einsum`.
    *operands : array or tuple of int
        Operands, or shapes of float32 operands.
    budget : float
        Maximum seconds of the search, if single runs are shorter.
    seed : int
        Seed of the choice of orders if there are too many, of operands given by their shapes, and
        of the order of the samples.
    provider, threads
        Settings of the sessions, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    EinsumSearch
        The candidates and the best model. Two searches compare the same candidates in the same
        order.

    Raises
    ------
    EinsumError
        As for :func:`~ortmeter.einsum.decompose_einsum`.
    InvalidArgumentError
        *budget* or *threads* has a value that is not accepted, or a size is free.
    ModelError
        ONNX Runtime cannot run any candidate.

    Examples
    --------
    >>> search = optimize_einsum("ij,jk->ik", (8, 8), (8, 8), budget=0.2, provider="cpu")
    >>> search.best in search.candidates
    True
    """
    if not budget > 0 or threads < 0:
        raise InvalidArgumentError(
            f"budget={budget}, threads={threads}. Accepted: a positive budget, threads from 0"
        )
    begin = time.perf_counter()
    read = read_operands(equation, operands, None)
    if read.free or not operands:
        raise InvalidArgumentError(
            f"{equation!r} has operands of shapes {read.shapes}. Accepted: operands, or shapes "
            "without free sizes"
        )
    candidates = list_candidates(read, threads=threads, seed=seed)
    plain = [c for c in candidates if not c.decomposed]
    rng = np.random.default_rng(seed)
    drawn = [
        rng.standard_normal(x).astype(read.dtype) if isinstance(x, tuple | list) else x
        for x in operands
    ]
    measured, finalists = race(
        {c.name: c for c in [candidates[0], *plain, *candidates]},
        drawn,
        provider=resolve_provider(provider),
        budget_s=budget - (time.perf_counter() - begin),
        seed=seed,
    )
    seconds = time.perf_counter() - begin
    return EinsumSearch(tuple(candidates), measured, finalists, seconds)


def race(
    candidates: Mapping[str, EinsumCandidate],
    operands: Sequence[Any],
    *,
    provider: Provider,
    budget_s: float,
    seed: int,
) -> tuple[dict[str, Measurement], tuple[str, ...]]:
    """Run models, most promising first, and compare the fastest ones; return times and finalists.

    The first one runs whatever the budget; the plain Einsum is compared until the end, unless it
    takes twice the time of another one. A model whose estimated cost is far above the lowest, even
    the plain Einsum, runs only if no other did before.
    """
    import_optional("onnxruntime", "cpu", "gpu")
    begin = time.perf_counter()
    runs: dict[str, _Run] = {}
    shortest: dict[str, float] = {}
    refused: list[str] = []
    lowest = min((c.cost for c in candidates.values() if c.decomposed), default=math.inf)
    for name, candidate in follow(candidates.items(), "models"):
        if runs and candidate.cost > _COSTLY * lowest > 0:
            continue
        # The next one may be as fast as the fastest so far.
        next_s = 2 * min(shortest.values(), default=0.0)
        if runs and time.perf_counter() - begin + next_s > _START_SHARE * budget_s:
            break
        try:
            session = make_session(candidate.model, provider=provider, threads=candidate.threads)
            names = [node.name for node in session.get_inputs()]
            run = BoundSession(session, dict(zip(names, operands, strict=True))).run
            shortest[name] = _shortest(run)
        except (OrtMeterError, onnx.shape_inference.InferenceError) as error:
            refused.append(str(error))
            continue
        runs[name] = run
    if not runs:
        raise ModelError("; ".join(refused))
    measured = {name: Measurement(name, np.array([[s]])) for name, s in shortest.items()}
    left = begin + _END_SHARE * budget_s - time.perf_counter()
    finalists = _promising(shortest, left)
    if len(finalists) < 2:  # noqa: PLR2004 - nothing to compare
        return measured, tuple(runs)
    measured |= measure(
        {name: runs[name] for name in finalists},
        repeat=_ROUNDS,
        warmup=1,
        precision=0.02,
        budget_s=left,
        seed=seed,
    )
    return measured, finalists


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


def _promising(shortest: Mapping[str, float], left_s: float) -> tuple[str, ...]:
    """Choose the plain Einsum and the fastest, as many as can be compared in the time left."""
    limit = _HOPELESS * min(shortest.values())
    hopeful = [name for name, seconds in shortest.items() if seconds <= limit]
    hopeful.sort(key=lambda name: (name != PLAIN, shortest[name]))
    times = [(_ROUNDS + _RUNS_AROUND) * max(shortest[name], _SAMPLE_S) for name in hopeful]
    count = sum(spent <= left_s for spent in itertools.accumulate(times))
    return tuple(hopeful[: min(count, _FINALISTS)])
