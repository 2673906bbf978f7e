"""Measure how often an interval holds the true ratio, and how often a verdict is wrong.

Samples are drawn with a known ratio and go through the real stopping rule of ``measure``, with a
clock that they advance. Both candidates share slow spells, drift and spikes; each one has its own
correlated noise, spikes, and an effect of its process. A verdict is wrong when it has the wrong
sign, when it claims a difference at a ratio of 1, or says negligible beyond the minimum effect.

``python _benchmarks/verdict_coverage.py --trials 2000 --workers 2``
``python _benchmarks/verdict_coverage.py --same 200``: two identical sessions against each other, in
10 fresh processes, ten pairs at a time; how many differences are claimed? With ``--processes 1``,
each pair has one fresh process.
``python _benchmarks/verdict_coverage.py --runs --trials 2000``: a candidate against the samples of
another run, between which the machine moved; its control moved with it. How often does ``--fail-if
slower:1.10`` fail a candidate that is not slower by more than 1.10?
``python _benchmarks/verdict_coverage.py --builds --trials 1000``: ratios measured in several
builds, of which some move much more than others from one to the next.
"""

import argparse
import dataclasses
import itertools
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

import ortmeter
from ortmeter.evidence import Claim
from ortmeter.timing import Candidate, Comparison, Measurement, measure, measure_each
from ortmeter.timing.builds import TYPICAL, between_builds
from ortmeter.timing.processes import collect
from ortmeter.timing.runs import compare_runs, drift_ratio

Array = np.ndarray
SECONDS = 1e-3  # of a sample
MOST_ROUNDS = 1500
RATIOS = (1.0, 1.03, 1.05, 1.06, 1.10, 1.5)


@dataclasses.dataclass(frozen=True)
class Case:
    """Noise of the samples, and how they are taken."""

    name: str
    noise: float  # standard deviation of the logarithm of a sample
    correlation: float  # of consecutive samples
    drift: float  # shared, over the whole
    effect: float  # standard deviation of the effect of a process
    processes: int
    repeat: int


NOISES = (
    ("white", 0.05, 0.0, 0.0),
    ("correlated 0.5, drift", 0.08, 0.5, 0.1),
    ("correlated 0.8, drift", 0.08, 0.8, 0.2),
)
CASES = [
    *(Case(*noise, 0.0, 1, repeat) for noise in NOISES for repeat in (12, 100, 400)),
    *(
        Case(f"{noise[0]}, effect {effect:.0%}", *noise[1:], effect, processes, repeat)
        for noise, effect, processes, repeat in itertools.product(
            NOISES[1:], (0.02, 0.05), (3, 5, 10), (12, 400)
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
    return (rng.random(rounds) < 0.02) * rng.exponential(size, rounds)  # noqa: PLR2004


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
            + correlated(rng, rounds, case.noise, case.correlation)
            + spikes(rng, rounds, 0.5)
        )
        for scale in (ratio, 1.0)
    ]


def one_process(rng: Generator, case: Case, ratio: float, seed: int) -> Comparison:
    """Measure in one process, with the real loop."""
    clock = Clock()
    drawn = draw(rng, case, ratio, MOST_ROUNDS + 50)
    candidates = {
        name: clock.candidate(samples)
        for name, samples in zip(("baseline", "candidate"), drawn, strict=True)
    }
    budget = MOST_ROUNDS * SECONDS
    options = {"repeat": case.repeat, "warmup": 1, "budget_s": budget, "seed": seed}
    return measure(candidates, timer=clock, **options)


def several_processes(rng: Generator, case: Case, ratio: float) -> Comparison:
    """Measure in several processes, with the real rule and processes that are drawn."""
    clock = Clock()

    def run(_rank: int, keys: Sequence[str], _budget: float) -> dict[str, dict[str, Measurement]]:
        baseline, candidate = draw(rng, case, ratio, case.repeat)
        clock.now += 1.0
        both = {
            "baseline": Measurement("baseline", baseline[None]),
            "candidate": Measurement("candidate", candidate[None]),
        }
        return dict.fromkeys(keys, both)

    options = {"processes": case.processes, "precision": 0.02, "timer": clock}
    return collect([""], run, budget_s=2.0 * case.processes, **options)[""]


def is_wrong(claim: Claim, ratio: float) -> bool:
    """Whether the verdict contradicts the true ratio."""
    says = {"faster": ratio > 1, "slower": False, "negligible": ratio < 1 + claim.min_effect}
    return not says.get(claim.verdict, True)


def try_case(
    task: tuple[Case, float, int],
) -> tuple[Case, float, int, Counter[str], float, float]:
    """Run the trials of a case; return a row of the table."""
    case, ratio, trials = task
    counts: Counter[str] = Counter()
    widths: list[float] = []
    rounds: list[int] = []
    for seed in range(trials):
        rng = np.random.default_rng([seed, int(1000 * ratio)])
        if case.processes == 1:
            found = one_process(rng, case, ratio, seed)
        else:
            found = several_processes(rng, case, ratio)
        claim = found.speedup("baseline", "candidate")
        rounds.append(found["baseline"].seconds.size)
        counts["without"] += not claim.has_interval
        if claim.has_interval:
            counts["held"] += claim.low <= ratio <= claim.high
            counts["wrong"] += is_wrong(claim, ratio)
            counts["right"] += claim.verdict == ("faster" if ratio >= 1.05 else claim.verdict)  # noqa: PLR2004
            counts[claim.verdict] += 1
            widths.append(np.log(claim.high / claim.low) / 2)
    return (
        case,
        ratio,
        trials,
        counts,
        float(np.median(widths or [np.nan])),
        float(np.median(rounds)),
    )


def print_table(trials: int, workers: int, repeat: int | None, *, several: bool) -> int:
    """Print one line per case and ratio."""
    print(f"{'case':42s} proc repeat ratio | held  wrong  power  none | half-width  samples")
    failures = 0
    chosen = [case for case in CASES if repeat in {None, case.repeat}]
    chosen = [case for case in chosen if case.processes > 1 or not several]
    tasks = [(case, ratio, trials) for case in chosen for ratio in RATIOS]
    with multiprocessing.Pool(workers) as pool:
        for case, ratio, total, counts, width, rounds in pool.imap(try_case, tasks):
            given = max(total - counts["without"], 1)
            held, wrong = counts["held"] / given, counts["wrong"] / given
            none = counts["without"] / total
            power = f"{counts['right'] / total:6.1%}" if ratio >= 1.05 else "     -"  # noqa: PLR2004
            failed = held < 0.98 or wrong > 0.01 or none > 0.05  # noqa: PLR2004
            failures += failed
            print(
                f"{case.name:42s} {case.processes:4d} {case.repeat:6d} {ratio:5.2f} | {held:5.1%} "
                f"{wrong:5.2%} {power} {none:5.1%} | {width:10.3f} {rounds:8.0f}"
                f"{'  FAILS' if failed else ''}",
                flush=True,
            )
    print(f"{failures} of {len(tasks)} cases hold less than 98% or are wrong in more than 1%")
    return failures


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


def print_runs(trials: int) -> int:
    """Compare two runs; print one line per case and slowdown."""
    print("moved drift effect processes slower | held  wrong   fails  none | half-width")
    failures = 0
    for (moved, drift, effect, processes), slowdown in itertools.product(RUNS, SLOWDOWNS):
        rng = np.random.default_rng([int(1000 * moved), int(1000 * slowdown), *processes])
        counts: Counter[str] = Counter()
        widths: list[float] = []
        for _ in range(trials):
            (old, control), (new, same) = (
                one_run(rng, scale, moved=moved, drift=drift, effect=effect, processes=count)
                for scale, count in zip((1.0, slowdown), processes, strict=True)
            )
            claim = compare_runs(old, new, drift=drift_ratio(control, same))
            counts["none"] += not claim.has_interval
            if claim.has_interval:
                counts["held"] += claim.low <= 1 / slowdown <= claim.high
                counts["wrong"] += is_wrong(claim.reversed, slowdown)
                counts["fails"] += claim.reversed.low > FAILS
                widths.append(np.log(claim.high / claim.low) / 2)
        given = max(trials - counts["none"], 1)
        held, wrong = counts["held"] / given, counts["wrong"] / given
        fails, none = counts["fails"] / trials, counts["none"] / trials
        failed = held < 0.98 or wrong > 0.01 or (slowdown <= FAILS and fails > 0.01)  # noqa: PLR2004
        failures += failed
        print(
            f"{moved:5.0%} {drift:5.0%} {effect:6.0%} {processes[0]:4d} {processes[1]:4d} "
            f"{slowdown:6.2f} | {held:5.1%} {wrong:5.2%} {fails:6.1%} {none:5.1%} | "
            f"{float(np.median(widths or [np.nan])):10.3f}{'  FAILS' if failed else ''}",
            flush=True,
        )
    print(f"{failures} of {len(RUNS) * len(SLOWDOWNS)} cases hold less than 98% or are wrong")
    return failures


#: How far the logarithm of a ratio moves between builds, and how many ratios do.
MOVES = ([0.005, 0.015, 0.05, 0.12], [0.4, 0.4, 0.15, 0.05])
#: Ratios of a page, builds, processes of each.
PAGES = list(itertools.product((1, 5, 30), (2, 3, 5), (3, 5, 10)))


def print_builds(trials: int) -> int:
    """Measure the ratios of pages in builds; print one line per case and ratio."""
    print("ratios builds processes ratio | held  (one build)  wrong  decided | half-width")
    failures = 0
    for (count, builds, processes), ratio in itertools.product(PAGES, RATIOS[:-1]):
        rng = np.random.default_rng([count, builds, processes, int(1000 * ratio)])
        tally: Counter[str] = Counter()
        widths: list[float] = []
        while tally["all"] < trials:
            moves, noise = rng.choice(MOVES[0], (count, 1, 1), p=MOVES[1]), (count, builds, 1)
            logs = np.log(ratio) + moves * rng.standard_normal(noise)
            within = rng.choice([0.005, 0.01, 0.02, 0.05], (count, 1, 1))
            logs = logs + within * rng.standard_normal((count, builds, processes))
            one = Measurement("candidate", np.full((processes, 1), SECONDS))
            measured = [
                [
                    Comparison([Measurement("baseline", SECONDS * np.exp(x[:, None])), one])
                    for x in row
                ]
                for row in logs
            ]
            between = between_builds(
                [x.speedup("baseline", "candidate", confidence=TYPICAL).estimate for x in row]
                for row in measured
            )
            for here, *before in measured:
                alone = here.speedup("baseline", "candidate")
                here.before, here.between = before, between
                claim = here.speedup("baseline", "candidate")
                tally["all"] += 1
                tally["held"] += claim.low <= ratio <= claim.high
                tally["alone"] += alone.low <= ratio <= alone.high
                tally["wrong"] += is_wrong(claim, ratio)
                tally["decided"] += claim.verdict != "undecided"
                widths.append(np.log(claim.high / claim.low) / 2)
        held, own, wrong, decided = (
            tally[x] / tally["all"] for x in ("held", "alone", "wrong", "decided")
        )
        failed = held < 0.98 or wrong > 0.015  # noqa: PLR2004
        failures += failed
        print(
            f"{count:6d} {builds:6d} {processes:9d} {ratio:5.2f} | {held:5.1%} {own:11.1%} "
            f"{wrong:7.2%} {decided:8.1%} | {float(np.median(widths)):10.3f}"
            f"{'  FAILS' if failed else ''}",
            flush=True,
        )
    print(f"{failures} of {len(PAGES) * len(RATIOS[:-1])} cases hold less than 98% or are wrong")
    return failures


TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[64, 64] X) => (float[64, 64] Y) { Z = MatMul(X, X)  Y = Softmax(Z) }"""
PAIRS = 10  # pairs that share their processes


def make_pair() -> dict[str, Candidate]:
    """Make two sessions of one model."""
    feeds = {"X": np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)}
    options = {"provider": "cpu", "threads": 1}
    return {name: ortmeter.session_candidate(TEXT, feeds, **options) for name in ("one", "same")}


def same_in_one_process(trial: int) -> Sequence[Claim]:
    """Compare the sessions of a pair in this process, which is fresh."""
    found = measure(make_pair(), budget_s=5.0, seed=trial)
    return [found.speedup("one", "same")]


def same_in_processes(trial: int, processes: int) -> Sequence[Claim]:
    """Compare the sessions of some pairs in fresh processes."""
    pairs = {i: make_pair() for i in range(PAIRS)}
    options = {"processes": processes, "budget_s": 300.0, "seed": 1000 * trial}
    return measure_each(pairs, axis="pair", **options).speedup("one", "same")


def print_same(trials: int, processes: int) -> int:
    """Compare a session with itself: every difference that is claimed is wrong."""
    if processes > 1:
        found = (same_in_processes(trial, processes) for trial in range(trials // PAIRS))
    else:
        pool = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
        found = pool.imap(same_in_one_process, range(trials))
    verdicts: Counter[str] = Counter()
    for trial, claims in enumerate(found):
        for claim in claims:
            verdicts[claim.verdict] += 1
            if claim.verdict in {"faster", "slower"}:
                print(f"trial {trial}: {claim}", flush=True)
    wrong = sum(verdicts[v] for v in ("faster", "slower"))
    print(f"{wrong} wrong claims in {verdicts.total()}: {dict(verdicts)}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeat", type=int, help="only the cases of that many rounds")
    parser.add_argument("--several", action="store_true", help="only those of several processes")
    parser.add_argument("--same", type=int, default=0, metavar="TRIALS")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--runs", action="store_true", help="against the samples of another run")
    parser.add_argument("--builds", action="store_true", help="ratios measured in several builds")
    given = parser.parse_args()
    if given.builds:
        sys.exit(print_builds(given.trials) > 0)
    if given.runs:
        sys.exit(print_runs(given.trials) > 0)
    if given.same:
        sys.exit(print_same(given.same, given.processes) > 0.01 * given.same)
    sys.exit(print_table(given.trials, given.workers, given.repeat, several=given.several) > 0)
