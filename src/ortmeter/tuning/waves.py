"""One wave: a fresh process builds every candidate, and times them interleaved.

The default of ONNX Runtime lets its threads spin after a run: a turn ends when they sleep.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ortmeter.child import call
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.settings import DENORMALS, spins
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.loop import collector_off, settling_calls
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.workloads.startup import RESULT, start_once

#: What can be made small: seconds, or MiB for the memory.
OBJECTIVES = ("p50", "p99", "throughput", "cpu-time", "memory", "start")
_ALONE = ("memory", "start")  # a process for each candidate
_MIN_ROUNDS, _TAIL_ROUNDS, _ROUNDS = 3, 7, 30
_WINDOW_S = 0.02
_TAIL_CALLS, _TAIL_S = 30, 1.0  # of a round of p99
_WARM_CALLS, _WARM_S = 10, 0.1
_NAP_S, _ASLEEP_S, _AWAKE_S = 0.008, 0.002, 0.15

Wave = Mapping[str, Sequence[float]]


def time_wave(
    specs: Mapping[str, SessionSpec], objective: str, *, budget_s: float = 10.0, seed: int = 0
) -> dict[str, list[float]]:
    """Time candidates once more, in processes that know nothing of the others.

    Parameters
    ----------
    specs : mapping of str to SessionSpec
        Candidates by name.
    objective : str
        One of :data:`OBJECTIVES`.
    budget_s : float
        Seconds after which no more than 3 rounds are taken.
    seed : int
        Of the orders in which they are built and run.

    Returns
    -------
    dict of str to list of float
        By candidate, a sample of each round, seconds per run or MiB: smaller is better.

    Raises
    ------
    InvalidArgumentError
        The objective is not known.
    OrtMeterError
        A process failed.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.runtime.providers import Provider
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> spec = SessionSpec(text, {"X": np.ones(4, np.float32)}, {"provider": Provider("cpu")})
    >>> {name: len(s) for name, s in time_wave({"abs": spec}, "p50", budget_s=0).items()}
    {'abs': 3}
    """
    if objective not in OBJECTIVES:
        raise InvalidArgumentError(f"objective={objective!r}. Accepted: {', '.join(OBJECTIVES)}")
    names = list(specs)
    if objective in _ALONE:
        order = np.random.default_rng(seed).permutation(len(names)).tolist()
        found = {names[i]: _time_alone(specs[names[i]], objective) for i in order}
        return {name: found[name] for name in names}
    how = {"objective": objective, "budget_s": budget_s, "seed": seed}
    groups: dict[str, list[str]] = {}
    for name, spec in specs.items():
        config = spec.settings.get("session_config") or {}
        groups.setdefault(str(config.get(DENORMALS, "0")), []).append(name)
    timed: dict[str, list[float]] = {}
    with write_specs(specs) as written:
        for group in groups.values():  # the first session of a process decides for DENORMALS
            samples = call(time_here, {"spawn_specs": [written[n] for n in group], **how})
            timed |= dict(zip(group, samples, strict=True))
    rounds = min(map(len, timed.values()))
    return {name: timed[name][:rounds] for name in names}


def _time_alone(spec: SessionSpec, objective: str) -> list[float]:
    phase = start_once(spec)[RESULT]
    if objective == "start":
        return [phase.seconds]
    if phase.peak is None:
        raise InvalidArgumentError("objective='memory': this system does not report it")
    return [phase.peak]


def time_here(
    spawn_specs: list[SpawnSpec], objective: str, budget_s: float, seed: int
) -> list[list[float]]:
    """Build the candidates in random order in this process, and time them: the child's part."""
    rng = np.random.default_rng(seed)
    end = time.perf_counter() + budget_s
    turns: dict[int, _Turn] = {}
    with collector_off():
        for i in rng.permutation(len(spawn_specs)).tolist():
            turns[i] = _Turn(spawn_specs[i].build(), objective)
        least = _TAIL_ROUNDS if objective == "p99" else _MIN_ROUNDS
        rounds: list[list[float]] = []
        while len(rounds) < least or (len(rounds) < _ROUNDS and time.perf_counter() < end):
            taken = {i: turns[i].sample() for i in rng.permutation(len(turns)).tolist()}
            rounds.append([taken[i] for i in range(len(turns))])
    if objective == "p99":
        return [[float(np.quantile(turns[i].seconds, 0.99))] for i in range(len(turns))]
    return [list(samples) for samples in zip(*rounds, strict=True)]


class _Turn:
    """A session that takes its turns; the seconds of its calls are kept for a percentile."""

    def __init__(self, spec: SessionSpec, objective: str) -> None:
        self.call: Callable[[], Any] = spec.call(spec.session())
        self.spins, self.objective = spins(spec.settings), objective
        self.seconds: list[float] = []
        warm = self.run(_WARM_CALLS, _WARM_S)
        self.rest()
        self.settling = settling_calls(float(np.median(warm)))

    def run(self, calls: int, seconds: float) -> list[float]:
        """Call so often, or until the seconds are over; at least once."""
        taken: list[float] = []
        while not taken or (len(taken) < calls and sum(taken) < seconds):
            start = time.perf_counter()
            self.call()
            taken.append(time.perf_counter() - start)
        return taken

    def rest(self) -> None:
        """Wait until the threads of this session sleep."""
        until = time.perf_counter() + _AWAKE_S
        while self.spins and time.perf_counter() < until:
            before = time.process_time()
            time.sleep(_NAP_S)
            if time.process_time() - before < _ASLEEP_S:
                return

    def sample(self) -> float:
        """Return what a round says: calls that bring its data to the caches are not timed."""
        for _ in range(self.settling):
            self.call()
        if self.objective == "throughput":
            return self._side_by_side()
        if self.objective == "cpu-time":
            before = time.process_time()
            count = len(self.run(1000, 5 * _WINDOW_S))  # a coarse clock
            self.rest()  # what threads burn after a run is part of its cost
            return max(time.process_time() - before, 1e-9) / count
        tail = self.objective == "p99"
        taken = self.run(*(_TAIL_CALLS, _TAIL_S) if tail else (1000, _WINDOW_S))
        self.rest()
        self.seconds += taken
        return float(np.median(taken))

    def _side_by_side(self) -> float:
        """Return the seconds per run of as many callers as there are cores."""
        callers = usable_cores()
        start = time.perf_counter()
        with ThreadPoolExecutor(callers) as pool:
            done = list(pool.map(lambda _: len(self.run(1000, 5 * _WINDOW_S)), range(callers)))
        spent = time.perf_counter() - start
        self.rest()
        return spent / sum(done)
