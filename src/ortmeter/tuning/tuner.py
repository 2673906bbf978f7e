"""Find the fastest setting of a model that is safe: refuse, race, combine, confirm."""

import dataclasses
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import EncodeError

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.evidence import Speedup
from ortmeter.machine.preflight import Preflight, preflight
from ortmeter.progress import follow
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.loading import ModelLike, is_path, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import graph_digest
from ortmeter.runtime.settings import DEFAULT as PLAIN
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_mean
from ortmeter.tuning.files import Journal, key_of, run_metric
from ortmeter.tuning.guard import Guard
from ortmeter.tuning.race import AGAIN, DEFAULT, LEAST_GAIN, Confirmation, Race, confirm, run_race
from ortmeter.tuning.space import Change, Setup, apply, list_changes
from ortmeter.tuning.waves import OBJECTIVES, time_wave
from ortmeter.workloads.startup import RESULT, start_once

logger = logging.getLogger(__name__)

_Feeds = Mapping[str, Any]

#: Seconds of a search where nobody asked.
BUDGET_S = 300.0
# Shares of the budget after which checks, the screen, then the combinations end.
_CHECK, _SCREEN, _COMBINE = 0.35, 0.6, 0.75
_LEAST = 3  # candidates and waves, whatever the budget
_WAVES = 10  # of a screen, about: a share of its time is for one
_CONFIRM = (6, 12)  # waves of a confirmation
_DRAWN = 3  # samples that calibrate, where the inputs are drawn
_HELD_OUT = 3  # one of so many
_FULL = 3  # axes of which every combination is raced

#: Outcome of a candidate after which the budget ended.
LATE = "not tried"

#: What a smaller number of an objective is, in words.
BETTER: Mapping[str, str] = {
    "p50": "times faster",
    "p99": "times lower p99",
    "throughput": "times more runs per second",
    "cpu-time": "times less CPU time",
    "memory": "times less memory",
    "start": "times faster to the first result",
}


@dataclass(frozen=True)
class Tried:
    """What one candidate brought.

    Parameters
    ----------
    setup : Setup
        The candidate; its spec is that of the default where it could not be made.
    outcome : str
        What became of it: ``faster``, ``no gain``, ``slower``, ``undecided``, or why it was refused
        before the clock.
    speedup : Speedup, optional
        By how many times it was better than the default in the race, where it was timed.
    error : float, optional
        Largest error over the largest value of an output, where it ran.
    not_chosen : str
        Why it may not be chosen, although it is timed.
    """

    setup: Setup
    outcome: str
    speedup: Speedup | None = None
    error: float | None = None
    not_chosen: str = ""

    @property
    def ratio(self) -> float:
        """By how many times it was better, 0 if it was not timed."""
        return self.speedup.ratio if self.speedup else 0.0

    @property
    def told(self) -> str:
        """What became of it, in words."""
        small = self.outcome == "faster" and self.ratio < LEAST_GAIN
        outcome = f"faster, below {LEAST_GAIN}" if small else self.outcome
        return f"{outcome}, not chosen: {self.not_chosen}" if self.not_chosen else outcome

    @property
    def interval(self) -> str:
        """The same with its interval, in words."""
        return self.speedup.interval if self.speedup else ""


@dataclass(frozen=True)
class Tuning:
    """What a search found, see :func:`tune`.

    Parameters
    ----------
    default : SessionSpec
        What ``onnxruntime.InferenceSession(path)`` does.
    setup : Setup
        What to use: the default, unless a win was confirmed.
    objective : str
        What was made small.
    confirmation : Confirmation, optional
        The best candidate beside the default, None where nothing was worth it.
    again : Speedup, optional
        The copy of the default in the race, None where there was none.
    tried : mapping of str to Tried
        What became of each candidate, by name.
    unjudged : tuple of Change
        What this machine cannot judge now.
    machine : Preflight
        What others did meanwhile.
    checks : int
        Inputs on which each exact candidate was compared.
    seconds : float
        What it took.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    default: SessionSpec
    setup: Setup
    objective: str
    confirmation: Confirmation | None
    again: Speedup | None
    tried: Mapping[str, Tried]
    unjudged: tuple[Change, ...]
    machine: Preflight
    checks: int
    seconds: float
    interrupted: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether something is worth setting."""
        return bool(self.setup.changes)

    def __str__(self) -> str:
        better, done = BETTER[self.objective], self.confirmation
        if done is None:
            told = f"Keep the defaults: no candidate was {LEAST_GAIN} {better} or more"
            aside = f" (two equal sessions: {self.again.interval})" if self.again else ""
            return f"{told}{aside}."
        found, count = done.speedup, done.comparison[DEFAULT].processes
        if self.is_changed:
            return (
                f"{found.ratio:.2f} {better} {found.brackets} than the default, in {count} fresh "
                f"processes that chose nothing: set {self.setup.name}."
            )
        if not done.is_steady:
            again = done.again.interval
            return (
                "Keep the defaults: this machine is not steady enough to say. Two equal sessions "
                f"of the default differed by a factor of {again} in {count} processes."
            )
        return (
            f"Keep the defaults: the best candidate, {done.winner}, was {found.interval} {better} "
            f"in {count} fresh processes, which is not shown to be {LEAST_GAIN} or more."
        )


def tune(
    model: ModelLike,
    feeds: _Feeds | Sequence[_Feeds] | None = None,
    *,
    objective: str = "p50",
    max_error: float | None = None,
    metric: str | None = None,
    at_least: float | None = None,
    memory_limit: float | None = None,
    tries: Collection[str] = (),
    cores: int | None = None,
    budget_s: float = BUDGET_S,
    provider: str | Provider = "cpu",
    journal: Path | None = None,
    seed: int = 0,
) -> Tuning:
    """Find the setting of a model that is the fastest, safe, and shown to be so.

    The command ``ortmeter tune`` does the same, and writes what it found.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array, or several, optional
        Inputs, by default random, see :func:`~ortmeter.runtime.feeds.random_feeds`. The first ones
        are timed; outputs are compared on all, on others drawn like them, and on the edges of free
        sizes. Where a conversion is calibrated, a third of them is held out.
    objective : {"p50", "p99", "throughput", "cpu-time", "memory", "start"}
        What is made small: seconds per run, or MiB.
    max_error : float, optional
        Largest error, over the largest value of an output, of a candidate that changes values.
        Without it or a metric, none is chosen.
    metric : str, optional
        Command that judges a candidate that changes values: it gets the file of the model and that
        of its session, and prints a score, or one score per sample.
    at_least : float, optional
        What the score, or the low end of the 99% interval of the mean score, must reach.
    memory_limit : float, optional
        MiB by which a fresh process may grow until its first result.
    tries : collection of {"shapes", "precision", "provider"}
        What changes the interface or the values of the model, and is tried too.
    cores : int, optional
        Cores to use, of those that this process may use; by default all.
    budget_s : float
        Seconds of the search, its confirmation included. What is begun is ended.
    provider : str or Provider
        See :func:`~ortmeter.runtime.sessions.make_session`.
    journal : path, optional
        File that keeps each wave of measurements: the same call goes on from there.
    seed : int
        Of random inputs, and of the orders of measurements.

    Returns
    -------
    Tuning
        What to set, or that nothing is worth it, with the numbers.

    Raises
    ------
    InvalidArgumentError
        An argument is not accepted.
    ModelError, ProviderUnavailableError, FeedError
        The model cannot be read or run as it is, or its inputs cannot be drawn.

    Notes
    -----
    Candidates and two copies of the default are interleaved in fresh processes. A candidate leaves
    when an interval that holds at any stop says that it gains less than 1.5%. The best one of each
    axis is raced in combination with the others, and the winner, which gains 3% at least, is
    confirmed in processes that chose nothing.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = tune(text, cores=1, budget_s=0)
    >>> found.tried["optimization=none"].outcome
    'same optimized graph as default'
    """
    if objective not in OBJECTIVES:
        raise InvalidArgumentError(f"objective={objective!r}. Accepted: {', '.join(OBJECTIVES)}")
    if cores is not None and not hasattr(os, "sched_setaffinity"):
        raise InvalidArgumentError("cores: this system does not let a process choose its cores")
    if (metric is None) != (at_least is None):
        raise InvalidArgumentError("--metric (metric=) and --at-least (at_least=) go together")
    asked = [objective, sorted(tries), max_error, metric, at_least, memory_limit, cores, seed]
    resolved = resolve_provider(provider)
    with ExitStack() as stack:
        if cores is not None:
            own = os.sched_getaffinity(0)
            if not 1 <= cores <= len(own):
                raise InvalidArgumentError(f"cores={cores}. Accepted: 1 to {len(own)}")
            os.sched_setaffinity(0, sorted(own)[:cores])
            stack.callback(os.sched_setaffinity, 0, own)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortmeter-")))
        samples, calibrating = _samples(model, feeds, seed)
        plain = {**PLAIN, "threads": cores or 0, "provider": resolved}
        default = SessionSpec(model, samples[0], plain, {}, bound=False)
        machine = preflight(cores or 0, resolved)
        changes = list_changes(resolved, usable_cores(), objective, tries)
        unjudged = tuple(c for c in changes if c.quiet and machine.is_shared)
        search = _Search(
            default=default,
            objective=objective,
            changes=[change for change in changes if change not in unjudged],
            calibrating=calibrating,
            folder=folder,
            journal=Journal(journal, key_of(default, samples, asked)),
            budget_s=budget_s,
            max_error=max_error,
            metric=(metric or "", at_least or 0.0),
            memory_limit=memory_limit,
            seed=seed,
        )
        held_out = len(samples) - (len(calibrating) if feeds is not None else 0)
        guard = stack.enter_context(Guard(default, samples, held_out))
        search.check(guard)
        interrupted = False
        try:
            search.race(guard)
        except KeyboardInterrupt:
            interrupted = True
        confirmation = search.confirm()
        setup = Setup(default)
        if confirmation is not None and confirmation.is_win:
            setup = _in_memory(search.setups[search.best], default)
        return Tuning(
            default,
            setup,
            objective,
            confirmation,
            search.again,
            search.tried,
            unjudged,
            preflight(cores or 0, resolved, since=machine),
            guard.checks,
            search.spent,
            interrupted,
        )


@dataclass
class _Search:
    """The state of a search: candidates, what became of them, the clock."""

    default: SessionSpec
    objective: str
    changes: Sequence[Change]
    calibrating: Sequence[_Feeds]
    folder: Path
    journal: Journal
    budget_s: float
    max_error: float | None
    metric: tuple[str, float]
    memory_limit: float | None
    seed: int
    setups: dict[str, Setup] = field(default_factory=dict)
    tried: dict[str, Tried] = field(default_factory=dict)
    best: str = DEFAULT
    again: Speedup | None = None
    begun: float = field(default_factory=time.perf_counter)
    wave_s: float = 1.0

    @property
    def spent(self) -> float:
        """Seconds of this search, those of an earlier one that it goes on from included."""
        return time.perf_counter() - self.begun + self.journal.replayed_s

    def check(self, guard: Guard) -> None:
        """Make each candidate, refuse what fails, what is the same and what is not safe."""
        graphs = {graph_digest(self.default.model, **self.default.settings): DEFAULT}
        known = self.journal.refused
        for change in follow(sorted(self.changes, key=_cost), "candidates checked"):
            late = len(self.setups) >= _LEAST and self.spent > _CHECK * self.budget_s
            if reason := known.get(change.name) or (LATE if late and not known else ""):
                self._refuse(Setup(self.default, (change,)), reason)
                continue
            setup = self._made([change])
            graph = self._graph(setup) if setup and change.graph else ""
            if setup and graph and graph in graphs:
                self._refuse(setup, f"same optimized graph as {graphs[graph]}")
            elif setup:
                graphs |= {graph: setup.name} if graph else {}
                self._examine(guard, setup)

    def race(self, guard: Guard) -> None:
        """Race single changes, then combinations of those that gain; find the best."""
        race = self._run({n: self._axis(s) for n, s in self.setups.items()}, _SCREEN)
        single = [name for name in race.survivors() if self._may_be_chosen(name)]
        if race.equal_differ or not single:
            self.best = DEFAULT
            return
        names = [single[0]]
        for chosen in _combinations([self.setups[name].changes[0] for name in single]):
            setup = self._made(sorted(chosen, key=self.changes.index))
            if setup is not None and self._examine(guard, setup):
                names.append(setup.name)
        if len(names) > 1:
            self._run(dict.fromkeys(names, "combination"), _COMBINE)

    def confirm(self) -> Confirmation | None:
        """Time the best again, in processes that chose nothing."""
        if self.best == DEFAULT:
            return None
        left = (self.budget_s - self.spent) / max(self.wave_s, 0.1)
        return confirm(self._timer, self.best, int(min(max(left, _CONFIRM[0]), _CONFIRM[1])))

    def _axis(self, setup: Setup) -> str:
        """Return what competes with a candidate: nothing, if it may not be chosen."""
        return setup.changes[0].axis if self._may_be_chosen(setup.name) else setup.name

    def _may_be_chosen(self, name: str) -> bool:
        return not self.tried[name].not_chosen

    def _run(self, axes: Mapping[str, str], until: float) -> Race:
        race = Race(self._timer, axes)
        try:
            run_race(race, goes_on=lambda: self.spent < until * self.budget_s)
        finally:  # Ctrl-C keeps what is known
            known = {name: race.estimate(name) for name in axes if race.logs.get(name)}
            for name, found in known.items():
                outcome = race.left.get(name) or ("faster" if found.exceeds(1) else "undecided")
                self.tried[name] = dataclasses.replace(
                    self.tried[name], outcome=outcome, speedup=Speedup(name, DEFAULT, found)
                )
            if known:
                self.again = Speedup(AGAIN, DEFAULT, race.estimate(AGAIN))
            sizes = {n: len(self.setups[n].changes) for n in known if self._may_be_chosen(n)}
            self.best = race.winner(sizes) if known else self.best
        return race

    def _timer(self, names: Sequence[str]) -> Mapping[str, Sequence[float]]:
        specs = {
            name: self.default if name in {DEFAULT, AGAIN} else self.setups[name].spec
            for name in names
        }
        left = (self.budget_s - self.spent) / _LEAST
        share = max(min(_SCREEN * self.budget_s / _WAVES, left), 1.0)
        start, seed = time.perf_counter(), self.seed + self.journal.rank
        found = self.journal.wave(
            names,
            lambda: time_wave(specs, self.objective, budget_s=share, seed=seed),
            {name: tried.outcome for name, tried in self.tried.items() if name not in self.setups},
        )
        self.wave_s = time.perf_counter() - start
        logger.info("wave %d: %d candidates, %.0f s", self.journal.rank, len(names), self.spent)
        return found

    def _made(self, changes: Sequence[Change]) -> Setup | None:
        """Make a candidate, its model in a file; tell why it cannot be made."""
        try:
            setup = apply(self.default, changes, self.calibrating)
            if setup.spec.model is self.default.model:
                return setup
            content = load_model(setup.spec.model).SerializeToString()
        except (OrtMeterError, MemoryError, EncodeError, ValueError) as error:
            reason = str(error).removeprefix(f"precision={changes[0].name!r}: ").splitlines()[0]
            self._refuse(Setup(self.default, tuple(changes)), f"cannot be made: {reason[:160]}")
            return None
        file = self.folder / f"{len(self.tried)}.onnx"
        file.write_bytes(content)
        return Setup(dataclasses.replace(setup.spec, model=file), setup.changes)

    def _graph(self, setup: Setup) -> str:
        with suppress(OrtMeterError):  # the guard says why
            return graph_digest(setup.spec.model, **setup.spec.settings)
        return ""

    def _examine(self, guard: Guard, setup: Setup) -> bool:
        """Keep a candidate that is safe; one that nothing says how to judge is timed, no more."""
        found = guard.examine(setup, self.max_error)
        reason = found.reason or self._beyond(setup)
        if reason:
            self._refuse(setup, reason, found.error)
            return False
        is_judged = setup.is_exact or self.max_error is not None or self.metric[0]
        not_chosen = "" if is_judged else f"error {found.error:.2g}"
        self.setups[setup.name] = setup
        self.tried[setup.name] = Tried(setup, "", None, found.error, not_chosen)
        return not not_chosen

    def _beyond(self, setup: Setup) -> str:
        """Return the limit that a candidate exceeds, nothing if there is none."""
        if self.memory_limit is not None:
            peak = start_once(setup.spec)[RESULT].peak or 0.0
            if peak > self.memory_limit:
                return f"memory {peak:.0f} MiB, over {self.memory_limit:.0f}"
        command, at_least = self.metric
        if command and not setup.is_exact:
            score = estimate_mean(run_metric(command, setup, self.folder))
            if (score.value if score.low is None else score.low) < at_least:
                return f"metric {score}, below {at_least:g}"
        return ""

    def _refuse(self, setup: Setup, reason: str, error: float | None = None) -> None:
        self.tried[setup.name] = Tried(setup, reason, None, error)


def _samples(
    model: ModelLike, feeds: _Feeds | Sequence[_Feeds] | None, seed: int
) -> tuple[list[_Feeds], list[_Feeds]]:
    """Return the inputs, those that calibrate nothing first, and those that may calibrate."""
    if feeds is None:
        drawn = [random_feeds(model, seed=seed + i) for i in range(1 + _DRAWN)]
        return [drawn[0]], list(drawn[1:])
    given = [feeds] if isinstance(feeds, Mapping) else list(feeds)
    if not given:
        raise InvalidArgumentError("no feeds. Accepted: one mapping or more, or None")
    held_out, rest = given[::_HELD_OUT], [f for i, f in enumerate(given) if i % _HELD_OUT]
    return [*held_out, *rest], rest


def _cost(change: Change) -> bool:
    """Put what is cheap to check first: a rewriter takes seconds to import."""
    return change.model not in {"", "patterns", "shapes"}


def _combinations(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """List the sets of changes to race: all of few; of many, the largest and pairs of the best."""
    sizes = range(2, len(changes) + 1)
    for size, chosen in ((n, c) for n in sizes for c in itertools.combinations(changes, n)):
        few = len(changes) <= _FULL
        if few or size >= len(changes) - 1 or (size == 2 and changes[0] in chosen):  # noqa: PLR2004
            yield chosen


def _in_memory(setup: Setup, default: SessionSpec) -> Setup:
    """Return a setup whose model outlives the folder of the search."""
    if setup.spec.model is default.model or not is_path(setup.spec.model):
        return setup
    model = load_model(setup.spec.model)
    return Setup(dataclasses.replace(setup.spec, model=model), setup.changes)
