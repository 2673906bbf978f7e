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
``--report``: the table; 1 if a case holds the ratio in less than 98% or is wrong in more than 1%.
"""

import argparse
import dataclasses
import itertools
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import lines
import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter
from scipy.stats import binom

from ortmeter.evidence import Claim
from ortmeter.timing import Comparison, Measurement, measure
from ortmeter.timing.builds import TYPICAL, between_builds
from ortmeter.timing.processes import collect
from ortmeter.timing.runs import compare_runs

Array = np.ndarray
SECONDS = 1e-3  # of a sample
MOST_CALLS = 6000  # of a candidate: half of them follow a switch
RATIOS = (1.0, 1.03, 1.05, 1.06, 1.10, 1.5)
SETS = 6  # of sessions, in each process


@dataclasses.dataclass(frozen=True)
class Case:
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

    def __init__(self) -> None:
        self.now = 0.0

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
    filtered: Array = lfilter([1.0], [1.0, -correlation], steps)
    return filtered


def spikes(rng: Generator, rounds: int, size: float) -> Array:
    """Add a long sample from time to time."""
    return (rng.random(rounds) < 0.02) * rng.exponential(size, rounds)


def draw(rng: Generator, case: Case, ratio: float, rounds: int) -> list[Array]:
    """Draw the samples of both candidates in one process, the baseline first."""
    shared = correlated(rng, rounds, 0.1, 0.9) + case.drift * np.linspace(0, 1, rounds)
    shared = shared + spikes(rng, rounds, 1.0)
    return [
        SECONDS
        * scale
        * np.exp(
            shared
            + rng.standard_normal() * case.effect
            + np.repeat(rng.standard_normal(case.sets) * case.sessions, rounds // case.sets)
            + correlated(rng, rounds, case.noise, case.correlation)
            + spikes(rng, rounds, 0.5)
        )
        for scale in (ratio, 1.0)
    ]


def one_process(rng: Generator, case: Case, ratio: float) -> Comparison:
    """Measure in one process, with the real loop."""
    clock = Clock()
    drawn = draw(rng, case, ratio, MOST_CALLS)
    candidates = {
        name: clock.candidate(samples)
        for name, samples in zip(("baseline", "candidate"), drawn, strict=True)
    }
    limits = {"warmup": 1, "budget_s": MOST_CALLS * SECONDS, "seed": int(rng.integers(2**31))}
    return measure(candidates, timer=clock, repeat=case.repeat, **limits)


def several_processes(rng: Generator, case: Case, ratio: float) -> Comparison:
    """Measure in several processes, with the real rule and processes that are drawn."""
    clock = Clock()

    def run(_rank: int, keys: Sequence[str], _budget: float) -> dict[str, dict[str, Measurement]]:
        baseline, candidate = draw(rng, case, ratio, case.sets * case.repeat)
        clock.now += 1.0
        both = {
            "baseline": Measurement("baseline", baseline[None], sets=case.sets),
            "candidate": Measurement("candidate", candidate[None], sets=case.sets),
        }
        return dict.fromkeys(keys, both)

    options = {"processes": case.processes, "precision": 0.02, "timer": clock}
    return collect([""], run, budget_s=2.0 * case.processes, **options)[""]


def is_wrong(claim: Claim, ratio: float) -> bool:
    """Whether the verdict contradicts the true ratio."""
    says = {"faster": ratio > 1, "slower": False, "negligible": ratio < 1 + claim.min_effect}
    return not says.get(claim.verdict, True)


class Tally:
    """What was found in the trials of a case."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.widths: list[float] = []

    def add(self, claim: Claim, ratio: float) -> None:
        """Count a claim on a ratio that is known."""
        self.counts["trials"] += 1
        self.counts["decided"] += claim.verdict != "undecided"
        if claim.has_interval:
            self.counts["intervals"] += 1
            self.counts["held"] += claim.low <= ratio <= claim.high
            self.counts["wrong"] += is_wrong(claim, ratio)
            self.counts["right"] += claim.verdict == "faster" and ratio > 1
            self.widths.append(np.log(claim.high / claim.low) / 2)

    def line(self, **case: object) -> dict:
        """Return a line of the results."""
        half = round(float(np.median(self.widths)), 4) if self.widths else None
        return {**case, **self.counts, "half": half}


def in_turn(case: Case, ratio: float, trials: range) -> dict:
    """Run some trials of a case."""
    tally = Tally()
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


def one_run(
    rng: Generator, slowdown: float, *, moved: float, drift: float, effect: float, processes: int
) -> list[Measurement]:
    """Draw the samples of a candidate and of its control, on a machine at its own pace."""
    pace = rng.standard_normal() * moved + np.linspace(-drift / 2, drift / 2, processes)
    levels = {"candidate": (slowdown, effect), "control": (1.0, 0.005)}
    found = []
    for name, (scale, own) in levels.items():
        processes_logs = pace + rng.standard_normal(processes) * own
        rounds = rng.standard_normal((processes, 12)) * 0.03
        logs = (
            processes_logs[:, None] + rounds + spikes(rng, rounds.size, 0.5).reshape(rounds.shape)
        )
        found.append(Measurement(name, SECONDS * scale * np.exp(logs)))
    return found


def runs(case: tuple, slowdown: float, trials: range) -> dict:
    """Compare two runs: ``fails`` counts how often ``--fail-if slower:1.10`` fails a candidate."""
    moved, drift, effect, processes = case
    tally = Tally()
    for seed in trials:
        rng = np.random.default_rng(
            [seed, int(1000 * moved), int(1000 * drift), int(1000 * slowdown), *processes]
        )
        (old, control), (new, same) = (
            one_run(rng, scale, moved=moved, drift=drift, effect=effect, processes=count)
            for scale, count in zip((1.0, slowdown), processes, strict=True)
        )
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
    tally = Tally()
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


def try_some(task: tuple[str, int, int, int]) -> dict:
    """Run the trials of a chunk."""
    kind, rank, first, last = task
    function, cases = KINDS[kind]
    found = function(*cases[rank], range(first, last))
    return {"kind": kind, "case": rank, "first": first, "last": last, **found}


def run(kinds: Sequence[str], trials: int, workers: int) -> None:
    """Add trials to each case, those of few trials first."""
    done: Counter[tuple[str, int]] = Counter()
    for line in lines.read(KEPT):
        place = line["kind"], line["case"]
        done[place] = max(done[place], line["last"])
    tasks = []
    for kind in kinds:
        ranks = np.random.default_rng(0).permutation(len(KINDS[kind][1])).tolist()
        for last, rank in itertools.product(range(CHUNKS[kind], trials + 1, CHUNKS[kind]), ranks):
            first = max(done[kind, rank], last - CHUNKS[kind])
            if first < last:
                tasks.append((kind, rank, first, last))
    with multiprocessing.Pool(workers) as pool:
        for line in pool.imap(try_some, tasks):
            lines.add(KEPT, line)


def report() -> int:
    """Print one line per case and ratio."""
    print(f"{'kind':8s} {'case':42s} processes rounds ratio | held  wrong  decided  none | half")
    cases: dict[tuple[str, int], list[dict]] = {}
    for line in lines.read(KEPT):
        cases.setdefault((line["kind"], line["case"]), []).append(line)
    failures = 0
    for (kind, _), own in sorted(cases.items()):
        counts: Counter[str] = Counter()
        for line in own:
            counts.update({key: line.get(key, 0) for key in COUNTED})
        trials, given = counts["trials"], max(counts["intervals"], 1)
        held, wrong = counts["held"] / given, counts["wrong"] / given
        # Beyond what luck gives once in a hundred cases.
        few = binom.cdf(counts["held"], given, 0.98) < 0.01
        failed = few or binom.sf(counts["wrong"] - 1, given, 0.01) < 0.01
        failures += failed
        effects = f", sessions {own[0]['sessions']:.0%}" if own[0].get("sessions") else ""
        effects += f", processes {own[0]['effect']:.0%}" if own[0].get("effect") else ""
        halves = [line["half"] for line in own if line["half"] is not None]
        print(
            f"{kind:8s} {own[0]['name'] + effects:42s} {own[0]['processes']!s:>9s} "
            f"{own[0].get('repeat', ''):>6} {own[0]['ratio']:5.2f} | {held:6.2%} {wrong:6.2%} "
            f"{counts['decided'] / trials:6.1%} {1 - given / trials:6.1%} | "
            f"{np.median(halves or [np.nan]):.3f} of {trials}{'  FAILS' if failed else ''}"
        )
    print(f"{failures} of {len(cases)} cases hold less than 98% or are wrong in more than 1%")
    return failures


COUNTED = ("trials", "intervals", "held", "wrong", "right", "decided", "fails", "alone")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        sys.exit(report() > 0)
    run(given.kind or list(KINDS), given.trials, given.workers)
