"""One wave: a fresh process builds every candidate, and times them interleaved.

The default of ONNX Runtime lets its threads spin after a run: a turn ends when they sleep.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ortmeter.child import call
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.settings import spins
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.loop import collector_off, settling_calls
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.workloads.startup import RESULT, start_once

#: What can be made small, seconds, or MiB for the memory; and what less of it is, in words.
OBJECTIVES: Mapping[str, str] = {
    "p50": "times faster",
    "p99": "times lower p99",
    "throughput": "times more runs per second",
    "cpu-time": "times less CPU time",
    "memory": "times less memory",
    "start": "times faster to the first result",
}
_ALONE = {"memory": "peak", "start": "seconds"}  # a process for each candidate, and its phase
_MIN_ROUNDS, _TAIL_ROUNDS, _ROUNDS = 3, 7, 30
#: Candidates that are timed, however late it is: two copies of the default, and one more.
ALWAYS = 3
_BUILDS = 0.5  # share of the time of a wave
_WINDOW_S = 0.04
# Calls and seconds of a round: of the slowest ones, and of a coarse clock.
_LONGER = {"p99": (30, 1.0), "cpu-time": (1000, 0.2)}
_WARM_CALLS, _WARM_S = 10, 0.1
_NAP_S, _ASLEEP_S, _AWAKE_S = 0.008, 0.002, 0.15


def time_wave(
    specs: Mapping[str, SessionSpec], objective: str, *, budget_s: float, limit_s: float, seed: int
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
    limit_s : float
        Seconds after which nothing is begun but the first round, and the first three candidates.
    seed : int
        Of the orders in which they are built and run.

    Returns
    -------
    dict of str to list of float
        By candidate, a sample of each round, seconds per run or MiB: smaller is better. Candidates
        for which there was no time are left out.

    Raises
    ------
    OrtMeterError
        A process failed.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.runtime.providers import Provider
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> spec = SessionSpec(text, {"X": np.ones(4, np.float32)}, {"provider": Provider("cpu")})
    >>> found = time_wave({"abs": spec}, "p50", budget_s=0, limit_s=60, seed=0)
    >>> len(found["abs"])
    3
    """
    names, start = list(specs), time.perf_counter()
    timed: dict[str, list[float]] = {}
    if objective in _ALONE:
        for name in np.random.default_rng(seed).permutation(names).tolist():
            if name in names[:ALWAYS] or time.perf_counter() < start + limit_s:
                found = getattr(start_once(specs[name])[RESULT], _ALONE[objective])
                if found is None:
                    raise InvalidArgumentError("objective='memory': this system does not report it")
                timed[name] = [found]
    else:
        asked = {"objective": objective, "budget_s": budget_s, "limit_s": limit_s, "seed": seed}
        with write_specs(specs) as written:
            timed = call(time_here, {"specs": written, **asked})
    return {name: timed[name] for name in names if name in timed}


def time_here(
    specs: dict[str, SpawnSpec], objective: str, *, budget_s: float, limit_s: float, seed: int
) -> dict[str, list[float]]:
    """Build the candidates in random order in this process, and time them: the child's part."""
    rng, start = np.random.default_rng(seed), time.perf_counter()
    least = _TAIL_ROUNDS if objective == "p99" else _MIN_ROUNDS
    turns: dict[str, _Turn] = {}
    with collector_off():
        for name in rng.permutation(list(specs)).tolist():
            if name in [*specs][:ALWAYS] or time.perf_counter() < start + _BUILDS * limit_s:
                turns[name] = _Turn(specs[name].build(), objective)
        samples: dict[str, list[float]] = {name: [] for name in turns}
        for count in range(1 + _ROUNDS):
            most = limit_s if count < least else min(budget_s, limit_s)
            if count and time.perf_counter() >= start + most:
                break
            for name in rng.permutation(list(turns)).tolist():
                samples[name].append(turns[name].sample())
    if objective == "p99":
        return {name: [float(np.quantile(turn.seconds, 0.99))] for name, turn in turns.items()}
    # The first round of a process is slower.
    return {name: own[len(own) > least :] for name, own in samples.items()}


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
        before = time.process_time()
        taken = self.run(*_LONGER.get(self.objective, (1000, _WINDOW_S)))
        self.rest()
        if self.objective == "cpu-time":  # what threads burn after a run is part of its cost
            return max(time.process_time() - before, 1e-9) / len(taken)
        self.seconds += taken
        return float(np.median(taken))

    def _side_by_side(self) -> float:
        """Return the seconds per run of as many callers as there are cores."""
        callers, start = usable_cores(), time.perf_counter()
        with ThreadPoolExecutor(callers) as pool:
            done = list(pool.map(lambda _: len(self.run(1000, 0.2)), range(callers)))
        spent = time.perf_counter() - start
        self.rest()
        return spent / sum(done)
