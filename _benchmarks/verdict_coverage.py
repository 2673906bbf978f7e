"""Measure how often an interval holds the true ratio, and how often a verdict is wrong.

Samples are drawn with a known ratio and go through the real stopping rule of ``measure``, with a
clock that they advance. Both candidates share slow spells, drift and spikes; each one has its own
correlated noise, spikes, an effect of each of its sessions and one of its process. A verdict is
wrong when it has the wrong sign, when it claims a difference at a ratio of 1, or says negligible
beyond the minimum effect.

``python _benchmarks/verdict_coverage.py --trials 2000 --workers 2``: add trials to
``results/verdict_coverage.jsonl`` until each case has so many. Cases are of three kinds, and
``--kind`` chooses one: ``in turn``; ``runs``, a candidate against the samples of another run,
between which the machine moved, and its reference workload moved with it; ``builds``, ratios
measured in several builds, of which some move much more than others from one to the next.
``methodology_table.py --cases``: which cases hold the ratio in less than 98%, or are wrong in more
than 1%.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import command
import lines
import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

from ortmeter.timing import Comparison, Measurement, measure
from ortmeter.timing.builds import TYPICAL, between_builds
from ortmeter.timing.processes import collect
from ortmeter.timing.runs import compare_runs

Array = np.ndarray
SECONDS = 1e-3  # of a sample
MOST_CALLS = 6000  # of a candidate: half of them follow a switch
RATIOS = (1.0, 1.03, 1.05, 1.06, 1.10, 1.5)
SETS = 6  # of sessions, in each process


class Case(NamedTuple):
    """Noise of the samples, and how they are taken."""

    name: str
    noise: float  # standard deviation of the logarithm of a sample
    correlation: float  # of consecutive samples
    drift: float  # shared, over the whole
    sessions: float  # standard deviation of the effect of a session
    effect: float  # of a process, beyond that of its sessions
    processes: int
    sets: int
    repeat: int  # rounds of a set


NOISES = (
    ("white", 0.05, 0.0, 0.0),
    ("correlated 0.5, drift", 0.08, 0.5, 0.1),
    ("correlated 0.8, drift", 0.08, 0.8, 0.2),
)
CASES = [
    *(Case(*noise, 0.0, 0.0, 1, 1, repeat) for noise in NOISES for repeat in (12, 100, 400)),
    *(
        Case(*noise, *effects, processes, SETS, repeat)
        for noise, effects, processes, repeat in itertools.product(
            NOISES[1:], ((0.02, 0.0), (0.05, 0.0), (0.05, 0.01)), (3, 5, 10), (12, 50)
        )
    ),
]


class Clock:
    """A clock that only the candidates advance."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def candidate(self, seconds: Array) -> Callable[[], None]:
        """Return a function that lasts what the array says, call after call."""
        durations = iter(seconds.tolist())

        def call() -> None:
            self.now += next(durations)

        return call


def correlated(rng: Generator, rounds: int, deviation: float, correlation: float) -> Array:
    """Normal noise whose neighbours are correlated."""
    steps = rng.standard_normal(rounds) * deviation * np.sqrt(1 - correlation**2)
    steps[0] = rng.standard_normal() * deviation
    return lfilter([1.0], [1.0, -correlation], steps)


def spikes(rng: Generator, rounds: int, size: float) -> Array:
    """Add a long sample from time to time."""
    return (rng.random(rounds) < 0.02) * rng.exponential(size, rounds)


def draw(rng: Generator, case: Case, ratio: float, rounds: int) -> dict[str, Array]:
    """Draw the samples of both candidates in one process."""
    shared = correlated(rng, rounds, 0.1, 0.9) + case.drift * np.linspace(0, 1, rounds)
    shared = shared + spikes(rng, rounds, 1.0)
    found = {}
    for name, scale in (("baseline", ratio), ("candidate", 1.0)):
        own = shared + rng.standard_normal() * case.effect
        own = own + np.repeat(rng.standard_normal(case.sets) * case.sessions, rounds // case.sets)
        own = own + correlated(rng, rounds, case.noise, case.correlation) + spikes(rng, rounds, 0.5)
        found[name] = SECONDS * scale * np.exp(own)
    return found


def one_process(rng: Generator, case: Case, ratio: float) -> Comparison:
    """Measure in one process, with the real loop."""
    clock = Clock()
    drawn = draw(rng, case, ratio, MOST_CALLS)
    candidates = {name: clock.candidate(samples) for name, samples in drawn.items()}
    limits = {"warmup": 1, "budget_s": MOST_CALLS * SECONDS, "seed": int(rng.integers(2**31))}
    with mock.patch("time.perf_counter", clock):
        return measure(candidates, repeat=case.repeat, **limits)


def several_processes(rng: Generator, case: Case, ratio: float) -> Comparison:
    """Measure in several processes, with the real rule and processes that are drawn."""
    clock = Clock()

    def run(_rank: int, keys: Sequence[str], _budget: float) -> dict[str, dict[str, Measurement]]:
        drawn = draw(rng, case, ratio, case.sets * case.repeat)
        clock.now += 1.0
        found = {name: Measurement(name, x[None], sets=case.sets) for name, x in drawn.items()}
        return dict.fromkeys(keys, found)

    options = {"processes": case.processes, "precision": 0.02}
    with mock.patch("time.perf_counter", clock):
        return collect([""], run, budget_s=2.0 * case.processes, **options)[""]


def in_turn(case: Case, ratio: float, trials: range) -> dict:
    """Run some trials of a case."""
    tally = lines.Tally()
    for seed in trials:
        rng = np.random.default_rng([seed, int(1000 * ratio), CASES.index(case)])
        take = one_process if case.processes == 1 else several_processes
        tally.add(take(rng, case, ratio).speedup("baseline", "candidate"), ratio)
    kept = ("name", "sessions", "effect", "processes", "sets", "repeat")
    return tally.line(**{key: getattr(case, key) for key in kept}, ratio=ratio)


SLOWDOWNS = (1.0, 1.05, 1.10, 1.25)
FAILS = 1.10
#: Of the machine between runs and along a run, of a process; processes before and now.
RUNS = [
    (moved, drift, effect, processes)
    for moved, drift, effect in ((0, 0, 0.02), (0, 0.05, 0.02), (0.02, 0.05, 0.02), (0.05, 0, 0.05))
    for processes in ((3, 3), (5, 5), (10, 3), (5, 15))
]


def one_run(rng: Generator, slowdown: float, noise: tuple, processes: int) -> list[Measurement]:
    """Draw the samples of a candidate and of its control, on a machine at its own pace."""
    moved, drift, effect = noise
    pace = rng.standard_normal() * moved + np.linspace(-drift / 2, drift / 2, processes)
    found = []
    for name, scale, own in (("candidate", slowdown, effect), ("control", 1.0, 0.005)):
        logs = (pace + rng.standard_normal(processes) * own)[:, None]
        logs = logs + rng.standard_normal((processes, 12)) * 0.03
        logs = logs + spikes(rng, logs.size, 0.5).reshape(logs.shape)
        found.append(Measurement(name, SECONDS * scale * np.exp(logs)))
    return found


def runs(case: tuple, slowdown: float, trials: range) -> dict:
    """Compare two runs: ``fails`` counts how often ``--fail-if slower:1.10`` fails a candidate."""
    *noise, processes = case
    moved, drift, effect = noise
    tally = lines.Tally()
    for seed in trials:
        drawn = (int(1000 * number) for number in (moved, drift, slowdown))
        rng = np.random.default_rng([seed, *drawn, *processes])
        old, control = one_run(rng, 1.0, noise, processes[0])
        new, same = one_run(rng, slowdown, noise, processes[1])
        claim = compare_runs(old, new, references=(control, same))
        tally.add(claim.reversed, slowdown)
        tally.counts["fails"] += claim.has_interval and claim.reversed.low > FAILS
    name = f"machine {moved:.0%} and {drift:.0%}, processes {effect:.0%}"
    return tally.line(name=name, processes=list(processes), ratio=slowdown)


#: How far the logarithm of a ratio moves between builds, and how many ratios do.
MOVES = ([0.005, 0.015, 0.05, 0.12], [0.4, 0.4, 0.15, 0.05])
#: Ratios of a page, builds, processes of each.
PAGES = list(itertools.product((1, 5, 30), (2, 3, 5), (3, 5, 10)))


def builds(case: tuple, ratio: float, trials: range) -> dict:
    """Measure the ratios of a page in builds: ``alone`` counts the intervals of one build."""
    count, many, processes = case
    tally = lines.Tally()
    for seed in trials:
        rng = np.random.default_rng([seed, count, many, processes, int(1000 * ratio)])
        moves, noise = rng.choice(MOVES[0], (count, 1, 1), p=MOVES[1]), (count, many, 1)
        logs = np.log(ratio) + moves * rng.standard_normal(noise)
        within = rng.choice([0.005, 0.01, 0.02, 0.05], (count, 1, 1))
        logs = logs + within * rng.standard_normal((count, many, processes))
        one = Measurement("candidate", np.full((processes, 1), SECONDS))
        measured = [
            [Comparison([Measurement("baseline", SECONDS * np.exp(x[:, None])), one]) for x in row]
            for row in logs
        ]
        between = between_builds(
            [x.speedup("baseline", "candidate", confidence=TYPICAL).estimate for x in row]
            for row in measured
        )
        for here, *before in measured:
            alone = here.speedup("baseline", "candidate")
            here.before, here.between = before, between
            tally.add(here.speedup("baseline", "candidate"), ratio)
            tally.counts["alone"] += alone.low <= ratio <= alone.high
    return tally.line(name=f"{count} ratios, {many} builds", processes=processes, ratio=ratio)


KINDS = {
    "in turn": (in_turn, list(itertools.product(CASES, RATIOS))),
    "runs": (runs, list(itertools.product(RUNS, SLOWDOWNS))),
    "builds": (builds, list(itertools.product(PAGES, RATIOS[:-1]))),
}
KEPT = lines.RESULTS / "verdict_coverage.jsonl"
CHUNKS = {"in turn": 20, "runs": 500, "builds": 20}  # trials of a line


def try_some(task: tuple[tuple[str, int], int, int]) -> dict:
    """Run the trials of a chunk."""
    (kind, rank), first, last = task
    function, cases = KINDS[kind]
    found = function(*cases[rank], range(first, last))
    return {"kind": kind, "case": rank, "first": first, "last": last, **found}


def run(kinds: Sequence[str], trials: int, workers: int) -> None:
    """Add trials to each case, those of few trials first."""
    own = lines.grouped(lines.read(KEPT), "kind", "case")
    done = {case: max(line["last"] for line in each) for case, each in own.items()}
    tasks: list[tuple] = []
    for kind in kinds:
        ranks = np.random.default_rng(0).permutation(len(KINDS[kind][1])).tolist()
        cells = [(kind, rank) for rank in ranks]
        tasks += lines.missing(done, cells, trials, CHUNKS[kind])
    lines.add_all(KEPT, try_some, tasks, workers)


if __name__ == "__main__":
    asked = command.options(__doc__, trials=200, workers=1, kind=("all kinds", *KINDS))
    run([asked.kind] if asked.kind in KINDS else [*KINDS], asked.trials, asked.workers)
