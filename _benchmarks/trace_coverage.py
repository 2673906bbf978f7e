"""Measure how often an interval of ``bench`` holds the true ratio, on noise of real machines.

A trace is the time of one fixed loop, over and over, on a machine that is quiet or not. It says how
fast the machine was at each moment. Two candidates of known times then run on it, through the code
of ``bench``: fresh processes, sets of sessions that differ, calls that pay for a switch.

``python _benchmarks/trace_coverage.py --record quiet --seconds 40``: keep a trace. With
``--beside neighbour`` a process takes the other core, with ``same-core`` the one of the loop, with
``bursts`` a core for a fifth of the time; with ``quota`` the loop is stopped for half of each tenth
of a second.
``python _benchmarks/trace_coverage.py --trials 60 --workers 2``: add trials to
``results/trace_coverage.jsonl`` until each of the 27 cells of a trace has so many.
``python _benchmarks/trace_coverage.py --report``: the table; 1 if a trace holds less than 98.5%.
"""

import argparse
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lines
import numpy as np

from ortmeter.machine.environment import environment
from ortmeter.timing.bench import _PRECISION, BUDGET_S
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.processes import collect
from ortmeter.timing.sets import join_sets, measure_sets
from ortmeter.timing.statistics import PROCESSES

TRACES = Path(__file__).parent / "traces"
KEPT = lines.RESULTS / "trace_coverage.jsonl"
LOOP_S = 2e-4  # of the fixed loop, about
#: What a fresh process takes to start, and two sessions to be created.
START_S, BUILD_S = 0.55, 0.07
#: A call after another candidate takes so much longer, then the next ones.
SWITCH = (1.3, 1.1, 1.03)
RATIOS = (1.0, 1.033, 1.085)
#: Seconds of a call, standard deviation of the ratio of two sessions of one model.
SECONDS, SESSIONS = (2e-4, 2e-3, 2e-2), (0.01, 0.03, 0.07)


def neighbour(cores: str) -> subprocess.Popen[bytes]:
    """Start a process that takes a core."""
    program = "x = 0\nwhile True: x += 1"
    return subprocess.Popen(["taskset", "-c", cores, sys.executable, "-c", program])  # noqa: S607


@contextlib.contextmanager
def beside(what: str) -> Iterator[None]:
    """Run the loop beside other work, on core 0."""
    os.sched_setaffinity(0, {0})
    ends = threading.Event()
    other = neighbour("0" if what == "same-core" else "1") if what in KINDS[1:4] else None

    def burst() -> None:
        while not ends.is_set():
            other.send_signal(signal.SIGSTOP)
            ends.wait(random.expovariate(1 / 0.8))
            other.send_signal(signal.SIGCONT)
            ends.wait(random.expovariate(1 / 0.2))

    if what == "bursts":
        os.sched_setaffinity(other.pid, {0})
        threading.Thread(target=burst, daemon=True).start()
    if what == "quota":
        program = (
            "import os, signal, sys, time\nwhile True:\n"
            "    for s in (signal.SIGSTOP, signal.SIGCONT):\n"
            "        os.kill(int(sys.argv[1]), s)\n        time.sleep(0.05)\n"
        )
        other = subprocess.Popen([sys.executable, "-c", program, str(os.getpid())])
    try:
        yield
    finally:
        ends.set()
        if other is not None:
            other.kill()
            other.wait()
            os.kill(os.getpid(), signal.SIGCONT)


KINDS = ("quiet", "neighbour", "same-core", "bursts", "quota")


def record(name: str, what: str, seconds: float) -> None:
    """Time the loop for so long, keep how much longer than its median each one took."""
    x = np.ones((64, 64), np.float32)
    begin = time.perf_counter()
    for _ in range(1000):
        x @ x
    number = max(round(LOOP_S / ((time.perf_counter() - begin) / 1000)), 1)
    taken = []
    with beside(what):
        end = time.perf_counter() + seconds
        start = time.perf_counter()
        while start < end:
            for _ in range(number):
                x @ x
            now = time.perf_counter()
            taken.append(now - start)
            start = now
    durations = np.array(taken)
    median = float(np.median(durations))
    steps = np.round(200 * np.log(durations / median)).astype(np.int16)  # of half a percent
    TRACES.mkdir(exist_ok=True)
    np.savez_compressed(
        TRACES / f"{name}.npz", steps=steps, loop_s=median, cpu=environment().cpu, beside=what
    )
    print(f"{name}: {len(steps)} loops of {1e6 * median:.0f} us, {what}")


class Machine:
    """A clock that runs as fast as the machine of a trace did."""

    def __init__(self, name: str) -> None:
        kept = np.load(TRACES / f"{name}.npz")
        durations = float(kept["loop_s"]) * np.exp(kept["steps"] / 200)
        self.times = [0.0, *np.cumsum(durations).tolist()]
        self.loops = len(durations)
        self.loop_s = float(kept["loop_s"])
        self.last: object = None
        self.calls = 0
        self.begin(0.0)

    def begin(self, loops: float) -> None:
        """Begin after so many loops of the trace."""
        self.done = loops
        self.work(0.0)

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def work(self, seconds: float) -> None:
        """Do what takes so long at the median pace."""
        self.done += seconds / self.loop_s
        rounds, rest = divmod(self.done, self.loops)
        rank = int(rest)
        before, after = self.times[rank], self.times[rank + 1]
        self.now = rounds * self.times[-1] + before + (rest - rank) * (after - before)

    def function(self, seconds: float) -> Callable[[], None]:
        """Return a call of so long, longer after a call of another function."""

        def call() -> None:
            self.calls = self.calls + 1 if self.last is call else 0
            self.last = call
            self.work(seconds * (SWITCH[self.calls] if self.calls < len(SWITCH) else 1.0))

        return call


@dataclasses.dataclass
class Spec:
    """What a session takes: candidates are built from it as from a spawn spec."""

    machine: Machine
    rng: np.random.Generator
    seconds: float
    effect: float

    def build(self) -> Callable[[], None]:
        """Create a session."""
        self.machine.work(BUILD_S / 2)
        own = np.exp(self.effect / np.sqrt(2) * self.rng.standard_normal())
        return self.machine.function(self.seconds * own)


def bench(machine: Machine, rng: np.random.Generator, specs: dict[str, Spec]) -> Comparison:
    """Do what ``bench`` does, processes and sessions apart."""

    def run(_rank: int, keys: Sequence[str], budget_s: float) -> dict[str, Comparison]:
        machine.work(START_S)
        left = max(budget_s - START_S, START_S)
        sets = measure_sets(specs, left, START_S, rng, timer=machine)
        return dict.fromkeys(keys, Comparison([join_sets([s[n] for s in sets]) for n in specs]))

    limits = {"processes": PROCESSES, "precision": _PRECISION, "budget_s": BUDGET_S}
    return collect([""], run, timer=machine, **limits)[""]


def try_cell(task: tuple[str, float, float, float, int, int]) -> dict:
    """Run some trials of a cell: what was found, how wide and how long it was."""
    name, ratio, seconds, effect, first, last = task
    machine = Machine(name)
    counts = Counter(trials=last - first)
    widths, taken = [], []
    for seed in range(first, last):
        rng = np.random.default_rng(
            [seed, *(round(1e6 * number) for number in (seconds, ratio, effect))]
        )
        machine.begin(rng.uniform(0, machine.loops))
        begin = machine.now
        specs = {
            n: Spec(machine, rng, s, effect) for n, s in (("a", seconds * ratio), ("b", seconds))
        }
        claim = bench(machine, rng, specs).speedup("a", "b")
        taken.append(machine.now - begin)
        counts["undecided"] += claim.verdict == "undecided"
        if claim.has_interval:
            counts["intervals"] += 1
            counts["held"] += claim.low <= ratio <= claim.high
            counts["apart"] += not claim.low <= 1 <= claim.high
            widths.append(np.log(claim.high / claim.low) / 2)
    cell = {"trace": name, "ratio": ratio, "ms": 1e3 * seconds, "sessions": effect}
    half = round(float(np.median(widths)), 4) if widths else None
    return {**cell, **counts, "half": half, "seconds": round(float(np.median(taken)), 1)}


def cell_of(line: dict) -> tuple[str, float, float, float]:
    """Return what makes a cell."""
    return line["trace"], line["ratio"], line["ms"] / 1e3, line["sessions"]


CHUNK = 10  # trials of a line


def run(trials: int, workers: int) -> None:
    """Add trials to each cell, those of few trials first."""
    done: Counter[tuple[str, float, float, float]] = Counter()
    for line in lines.read(KEPT):
        done[cell_of(line)] += line["trials"]
    names = sorted(file.stem for file in TRACES.glob("*.npz"))
    tasks = []
    for last in range(CHUNK, trials + CHUNK, CHUNK):
        for *of_candidates, name in itertools.product(RATIOS, SECONDS, SESSIONS, names):
            cell = (name, *of_candidates)
            first = max(done[cell], last - CHUNK)
            if first < min(last, trials):
                tasks.append((*cell, first, min(last, trials)))
    with multiprocessing.Pool(workers) as pool:
        for line in pool.imap(try_cell, tasks):
            lines.add(KEPT, line)


def report() -> int:
    """Print a line per trace, ratio, time of a call and difference of sessions."""
    print("trace         ratio    ms  sessions |   held  found  undecided | half-width  seconds")
    kept = lines.read(KEPT)
    pooled: dict[str, Counter[str]] = {}
    for cell in sorted({cell_of(line) for line in kept}):
        own = [line for line in kept if cell_of(line) == cell]
        counts = Counter()
        for line in own:
            counts.update({key: line.get(key, 0) for key in COUNTED})
        pooled.setdefault(cell[0], Counter()).update(counts)
        trials, held = counts["trials"], counts["held"] / max(counts["intervals"], 1)
        width, taken = (np.median([line[key] or 0 for line in own]) for key in ("half", "seconds"))
        name, ratio, seconds, effect = cell
        print(
            f"{name:12s} {ratio:6.3f} {1e3 * seconds:5g} {effect:9.0%} | {held:6.1%} "
            f"{counts['apart'] / trials:6.1%} {counts['undecided'] / trials:10.1%} | "
            f"{width:10.3f} {taken:8.1f}"
        )
    for name, counts in pooled.items():
        print(f"{name}: {counts['held'] / counts['intervals']:.2%} of {counts['intervals']} hold")
    return sum(counts["held"] < LEAST * counts["intervals"] for counts in pooled.values())


COUNTED = ("trials", "intervals", "held", "apart", "undecided")
LEAST = 0.985  # share of the intervals that must hold the ratio


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", metavar="NAME")
    parser.add_argument("--beside", choices=KINDS, default="quiet")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        sys.exit(report() > 0)
    if given.record:
        record(given.record, given.beside, given.seconds)
    else:
        run(given.trials, given.workers)
