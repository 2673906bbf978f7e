"""Measure how often an interval of ``bench`` holds the true ratio, on noise of real machines.

A trace is the time of one fixed loop, over and over, on a machine that is quiet or not. It says how
fast the machine was at each moment. Two candidates of known times then run on it, through the code
of ``bench``: fresh processes, sets of sessions that differ, calls that pay for a switch.

``taskset -c 0 python _benchmarks/trace_coverage.py --record quiet --seconds 40``: keep a trace of
core 0. What runs beside it is started in a shell: for ``same-core`` and ``neighbour``, ``taskset -c
0 python -c "while True: pass"`` and the same with ``-c 1``; for ``bursts``, the former, that
``kill -STOP`` and ``kill -CONT`` stop for 0.8 s in each second, at random; for ``quota``, the loop
is itself stopped for half of each tenth of a second.
``python _benchmarks/trace_coverage.py --trials 60 --workers 2``: add trials to
``results/trace_coverage.jsonl`` until each of the 27 cells of a trace has so many.
"""

import itertools
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import command
import lines
import numpy as np

from ortmeter.machine.environment import environment
from ortmeter.timing.bench import _PRECISION, BUDGET_S
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measuring import join_sets, measure_sets
from ortmeter.timing.processes import collect
from ortmeter.timing.statistics import PROCESSES

TRACES = Path(__file__).parent / "traces"
KEPT = lines.RESULTS / "trace_coverage.jsonl"
LOOP_S = 2e-4  # of the fixed loop, about
#: What a fresh process takes to start, and two sessions to be created.
START_S, BUILD_S = 0.55, 0.07
#: A call after another candidate takes so much longer, then the next ones.
SWITCH = (1.3, 1.1, 1.03)
RATIOS = (1.0, 1.033, 1.085)
#: Of a call, standard deviation of the ratio of two sessions of one model.
MS, SESSIONS = (0.2, 2.0, 20.0), (0.01, 0.03, 0.07)


def record(name: str, seconds: float) -> None:
    """Time the loop for so long, keep how much longer than its median each one took."""
    x = np.ones((64, 64), np.float32)
    number = max(round(LOOP_S / timeit.timeit(lambda: x @ x, number=1000) * 1000), 1)
    start = time.perf_counter()
    ends = [start]
    while ends[-1] < start + seconds:
        for _ in range(number):
            x @ x
        ends.append(time.perf_counter())
    durations = np.diff(ends)
    median = float(np.median(durations))
    steps = np.round(200 * np.log(durations / median)).astype(np.int16)  # of half a percent
    file = TRACES / f"{name}.npz"
    np.savez_compressed(file, steps=steps, loop_s=median, cpu=environment().cpu)
    print(f"{name}: {len(steps)} loops of {1e6 * median:.0f} us")


class Machine:
    """A clock that runs as fast as the machine of a trace did."""

    def __init__(self, name: str) -> None:
        kept = np.load(TRACES / f"{name}.npz")
        durations = float(kept["loop_s"]) * np.exp(kept["steps"] / 200)
        self.times = [0.0, *np.cumsum(durations).tolist()]
        self.loops, self.loop_s = len(durations), float(kept["loop_s"])
        self.last: object = None
        self.calls, self.done = 0, 0.0

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


class Spec(NamedTuple):
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
        sets = measure_sets(specs, left, START_S, rng)
        return dict.fromkeys(keys, Comparison([join_sets([s[n] for s in sets]) for n in specs]))

    limits = {"processes": PROCESSES, "precision": _PRECISION, "budget_s": BUDGET_S}
    with mock.patch("time.perf_counter", machine):
        return collect([""], run, **limits)[""]


def try_cell(task: tuple[tuple[str, float, float, float], int, int]) -> dict:
    """Run some trials of a cell: what was found, how wide and how long it was."""
    (name, ratio, ms, effect), first, last = task
    machine, seconds = Machine(name), ms / 1e3
    tally, taken = lines.Tally(), []
    for seed in range(first, last):
        drawn = (round(1e6 * number) for number in (seconds, ratio, effect))
        rng = np.random.default_rng([seed, *drawn])
        machine.done = rng.uniform(0, machine.loops)  # of the trace
        machine.work(0.0)
        begin = machine.now
        both = {"a": seconds * ratio, "b": seconds}
        specs = {n: Spec(machine, rng, s, effect) for n, s in both.items()}
        tally.add(bench(machine, rng, specs).speedup("a", "b"), ratio)
        taken.append(machine.now - begin)
    cell = dict(zip(CELL, task[0], strict=True))
    return tally.line(**cell, seconds=round(float(np.median(taken)), 1))


CELL = ("trace", "ratio", "ms", "sessions")
CHUNK = 10  # trials of a line


def run(trials: int, workers: int) -> None:
    """Add trials to each cell, those of few trials first."""
    own = lines.grouped(lines.read(KEPT), *CELL)
    done = {cell: lines.total(each)["trials"] for cell, each in own.items()}
    names = sorted(file.stem for file in TRACES.glob("*.npz"))
    cells = [(name, *of) for *of, name in itertools.product(RATIOS, MS, SESSIONS, names)]
    lines.add_all(KEPT, try_cell, lines.missing(done, cells, trials, CHUNK), workers)


if __name__ == "__main__":
    asked = command.options(__doc__, record="", seconds=40.0, trials=200, workers=1)
    if asked.record:
        record(asked.record, asked.seconds)
    else:
        run(asked.trials, asked.workers)
