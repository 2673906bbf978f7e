"""Find the fastest setting of a model that is safe: refuse, race, combine, confirm."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.machine.preflight import Preflight, preflight
from ortmeter.progress import follow
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.loading import ModelLike, load_model, write_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import graph_digest
from ortmeter.runtime.settings import DEFAULT as PLAIN
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import MIN_PROCESSES, estimate_mean
from ortmeter.tuning.files import Journal, key_of, run_metric
from ortmeter.tuning.guard import Guard, first_line
from ortmeter.tuning.race import DEFAULT, LATE, LEAST_GAIN, Confirmation, Race, confirm, run_race
from ortmeter.tuning.space import Change, Setup, apply, list_changes
from ortmeter.tuning.waves import OBJECTIVES, time_wave
from ortmeter.workloads.startup import RESULT, Phase, start_once

_Feeds = Mapping[str, Any]

#: Seconds of a search where nobody asked.
BUDGET_S = 300.0
# Shares of the budget after which checks, the screen, the combinations and the confirmation end.
_CHECK, _SCREEN, _COMBINE, _CONFIRM = 0.35, 0.6, 0.75, 0.95
_LEAST = 3  # candidates, whatever the budget
_WAVE, _SHORTEST_S = 0.06, 1.0  # of a wave: share of the budget, and seconds
_PLANNED, _MOST = 6, 12  # waves of a confirmation: planned, and at most
_STARTED = 6  # candidates
DRAWN = 4  # samples, where inputs are drawn and a conversion is calibrated
_HELD_OUT = 3  # one of so many

#: Outcome of a candidate that needs an idle machine.
SHARED = "not judged, because other processes use the cores (run again on an idle machine)"


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
    race : Race
        The last race.
    tried : mapping of str to Setup
        What became of each candidate, by name.
    starts : mapping of str to Phase
        Seconds and memory (MiB) of a fresh process until its first result: of the default, of the
        best candidate and of others that are faster, where there was time.
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
    race: Race
    tried: Mapping[str, Setup]
    starts: Mapping[str, Phase]
    machine: Preflight
    checks: int
    seconds: float
    interrupted: bool = False

    @property
    def measured(self) -> dict[str, Any]:
        """The objective, and the median of the default in the race, plain values."""
        median, unit = in_unit(self.objective, float(np.median(self.race.default)))
        return {"objective": self.objective, "default": median, "unit": unit}

    @property
    def control(self) -> str:
        """By how much the two copies of the default differed, and what they are for."""
        again = (self.confirmation or self.race).again
        told = "Two equal sessions of the default, a control, differed by a factor of"
        return f"{told} {again.interval}: what they differ by is noise."

    def __str__(self) -> str:
        better, done = OBJECTIVES[self.objective], self.confirmation
        keep = "Keep the defaults ({objective} {default:.3g} {unit})".format_map(self.measured)
        if done is None:
            return f"{keep}: no candidate was {LEAST_GAIN} {better} or more. {self.control}"
        found, count = done.speedup, done.comparison[DEFAULT].processes
        if self.setup.changes:
            return (
                f"{found.ratio:.2f} {better} {found.brackets} than the default, in {count} fresh "
                f"processes that chose nothing: set {self.setup.name}."
            )
        if not done.is_steady:
            return f"{keep}: this machine is not steady enough to say. {self.control}"
        return (
            f"{keep}: the best candidate, {done.winner}, was {found.interval} {better} in {count} "
            f"fresh processes, which is not shown to be {LEAST_GAIN} or more."
        )


def in_unit(objective: str, sample: float) -> tuple[float, str]:
    """Return a sample in the unit in which it is read."""
    if objective == "throughput":
        return 1 / sample, "runs/s"
    return (sample, "MiB") if objective == "memory" else (1e3 * sample, "ms")


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
    Candidates and two copies of the default are interleaved in fresh processes. After each one, the
    worse half leaves, and those that gain less than 1.5% with 99% confidence. The best one of each
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
    asked = objective, budget_s, seed, max_error, memory_limit, metric, at_least
    resolved = resolve_provider(provider)
    with ExitStack() as stack:
        if cores is not None:
            own = os.sched_getaffinity(0)
            if not 1 <= cores <= len(own):
                raise InvalidArgumentError(f"cores={cores}. Accepted: 1 to {len(own)}")
            os.sched_setaffinity(0, sorted(own)[:cores])
            stack.callback(os.sched_setaffinity, 0, own)
        if feeds is None:
            drawn = range(DRAWN if "precision" in tries else 1)
            feeds = [random_feeds(model, seed=seed + rank) for rank in drawn]
        given = [feeds] if isinstance(feeds, Mapping) else list(feeds)
        if not given:
            raise InvalidArgumentError("no feeds. Accepted: one mapping or more, or None")
        calibrating = [one for rank, one in enumerate(given) if rank % _HELD_OUT]
        samples = [*given[::_HELD_OUT], *calibrating]
        plain = {**PLAIN, "threads": cores or 0, "provider": resolved}
        default = SessionSpec(model, samples[0], plain, bound=False)
        machine = preflight(cores or 0, resolved)
        guard = stack.enter_context(Guard(default, samples, len(samples) - len(calibrating)))
        guard.refer()
        key = key_of(guard.references, (*asked, sorted(tries), cores))
        changes = list_changes(resolved, usable_cores(), objective, tries)
        kept = Journal(journal or guard.folder / "journal.json", key)
        search = _Search(guard, default, changes, calibrating, kept, machine.is_shared, *asked)
        search.check()
        interrupted = search.race()
        confirmation, setup = search.confirm(), Setup(default)
        if confirmation is not None and confirmation.is_win:
            setup = search.tried[search.best]
            if setup.spec.model is not model:  # its file goes with the folder
                spec = replace(setup.spec, model=load_model(setup.spec.model))
                setup = replace(setup, spec=spec)
        known = confirmation, search.last, search.tried, search.starts()
        told = preflight(cores or 0, resolved, since=machine), len(guard.references), search.spent
        return Tuning(default, setup, objective, *known, *told, interrupted)


@dataclass
class _Search:
    """The state of a search: candidates, what became of them, the clock."""

    guard: Guard
    default: SessionSpec
    changes: Sequence[Change]
    calibrating: Sequence[_Feeds]
    journal: Journal
    is_shared: bool
    objective: str
    budget_s: float
    seed: int
    max_error: float | None
    memory_limit: float | None
    metric: str | None
    at_least: float | None
    graphs: dict[str, str] = field(default_factory=dict)
    tried: dict[str, Setup] = field(default_factory=dict)
    best: str = ""
    last: Race = field(init=False)
    begun: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        """Seconds of this search, those of an earlier one that it goes on from included."""
        return time.perf_counter() - self.begun + self.journal.replayed_s

    def check(self) -> None:
        """Add each candidate while there is time."""
        self.graphs[graph_digest(self.default.model, **self.default.settings)] = DEFAULT
        for change in follow(self.changes, "candidates checked"):
            free = [one for one in self.tried.values() if not one.outcome]
            late = LATE if len(free) >= _LEAST and self.spent > _CHECK * self.budget_s else ""
            self._add([change], SHARED if change.quiet and self.is_shared else late)

    def race(self) -> bool:
        """Race single changes, then combinations of those that gain; whether Ctrl-C ended it."""
        free = [name for name, one in self.tried.items() if not one.outcome]
        try:
            race = self._run({name: self.tried[name].changes[0].axis for name in free}, _SCREEN)
            single = [] if race.equal_differ else race.survivors()
            if not single:
                self.best = DEFAULT
            names = single[:1]
            several = [single[:count] for count in range(2, len(single) + 1)]
            for chosen in several + [[single[0], other] for other in single[2:]]:
                changes = [change for name in chosen for change in self.tried[name].changes]
                if self.spent < _COMBINE * self.budget_s:
                    names += self._add(sorted(changes, key=self.changes.index))
            if len(names) > 1:
                self._run(dict.fromkeys(names, "combination"), _COMBINE)
        except KeyboardInterrupt:
            if not self.best:  # nothing is known
                raise
            return True
        return False

    def confirm(self) -> Confirmation | None:
        """Time the best again, in processes that chose nothing."""
        if self.best == DEFAULT:
            return None
        until = _CONFIRM * self.budget_s
        timer = partial(self._time, until, self.journal.rank + _PLANNED)
        return confirm(timer, self.best, lambda count: count < _MOST and self.spent < until)

    def starts(self) -> dict[str, Phase]:
        """Measure fresh starts of the default, the best and what else is faster, in time."""
        ranked = sorted(self.tried.values(), key=lambda one: (one.name != self.best, -one.ratio))
        faster = [one for one in ranked if one.outcome == "faster" or one.name == self.best]
        found = {}
        for one in [Setup(self.default), *faster[:_STARTED]] if faster else ():
            if self.spent < self.budget_s:
                with suppress(OrtMeterError):
                    found[one.name] = start_once(one.spec)[RESULT]
        return found

    def _run(self, axes: Mapping[str, str], share: float) -> Race:
        until = share * self.budget_s
        asides = [name for name in axes if self.tried[name].not_chosen]
        race = Race(partial(self._time, until, self.journal.rank + MIN_PROCESSES), axes, asides)
        try:
            run_race(race, goes_on=lambda: self.spent < until)
        finally:  # Ctrl-C keeps what is known
            if race.default:
                for name in axes:
                    claim = race.speedup(name) if name in race.logs else None
                    judged = replace(self.tried[name], outcome=race.outcome(name), speedup=claim)
                    self.tried[name] = judged
                self.last = race
                self.best = race.winner({name: len(self.tried[name].changes) for name in axes})
        return race

    def _time(self, until: float, last: int, names: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Time candidates, in an equal share of the time for the waves before the last one."""
        rank = self.journal.rank
        limit = max((until - self.spent) / max(last - rank, 1), _SHORTEST_S)
        how = {"budget_s": min(limit / 2, _WAVE * self.budget_s), "limit_s": limit}
        specs = {n: self.tried[n].spec if n in self.tried else self.default for n in names}
        take = partial(time_wave, specs, self.objective, seed=self.seed + rank, **how)
        return self.journal.wave(names, take)

    def _add(self, changes: Sequence[Change], why_not: str = "") -> list[str]:
        """Make a candidate unless something is against it; name it if it may be raced."""
        untried = Setup(self.default, tuple(changes), why_not)
        setup = untried if why_not else self._try(untried)
        self.tried[setup.name] = setup
        return [] if setup.outcome or setup.not_chosen else [setup.name]

    def _try(self, setup: Setup) -> Setup:
        """Make a candidate, its model in a file, and say why it is refused, if it is."""
        try:
            setup = apply(self.default, setup.changes, self.calibrating)
            if setup.spec.model is not self.default.model:
                file = self.guard.folder / f"{len(self.tried)}.onnx"
                write_model(load_model(setup.spec.model), file)
                setup = replace(setup, spec=replace(setup.spec, model=file))
            acts = all(change.graph for change in setup.changes)
            graph = graph_digest(setup.spec.model, **setup.spec.settings) if acts else ""
        except (OrtMeterError, MemoryError, ValueError) as error:
            return replace(setup, outcome=f"cannot be made: {first_line(error)}")
        if graph and (same := self.graphs.setdefault(graph, setup.name)) != setup.name:
            return replace(setup, outcome=f"same optimized graph as {same}")
        setup = self.guard.examine(setup)
        is_judged = setup.is_exact or self.max_error is not None or self.metric
        not_chosen = "" if is_judged else f"error {setup.error:.2g} (--max-error accepts it)"
        return replace(setup, outcome=setup.outcome or self._beyond(setup), not_chosen=not_chosen)

    def _beyond(self, setup: Setup) -> str:
        """Return the limit that a candidate exceeds, nothing if there is none."""
        if not setup.is_exact and self.max_error is not None and setup.error > self.max_error:
            return f"error {setup.error:.2g}, over {self.max_error:g}"
        if self.memory_limit is not None:
            peak = start_once(setup.spec)[RESULT].peak or 0.0
            if peak > self.memory_limit:
                return f"memory {peak:.0f} MiB, over {self.memory_limit:.0f}"
        if self.metric and not setup.is_exact:
            score = estimate_mean(run_metric(self.metric, setup, self.default, self.guard.folder))
            if (score.value if score.low is None else score.low) < (self.at_least or 0.0):
                return f"metric {score}, below {self.at_least:g}"
        return ""
