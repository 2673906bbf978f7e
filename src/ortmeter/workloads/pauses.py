"""Latency and CPU time of a run after a pause: threads spin, then sleep, caches are lost."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.progress import progress_bar
from ortmeter.timing.loop import collector_off, settling_calls
from ortmeter.timing.percentiles import LEVELS, Percentile, percentiles
from ortmeter.timing.statistics import MIN_ROUNDS, estimate_ratio

__all__ = ["AfterPause", "measure_pauses"]

_WARM_UP_CALLS = 3
_Key = TypeVar("_Key")


@dataclass(frozen=True, eq=False)
class AfterPause:
    """Latencies of single runs after a pause.

    Parameters
    ----------
    pause : float
        Seconds since the end of the previous run.
    seconds : array of shape (rounds,)
        Latencies, in the order of the rounds.
    cpu_seconds : array of shape (rounds,)
        CPU time of the process during the pause and the run, all threads together: threads that
        spin after a run are counted in the pause that follows it.
    """

    pause: float
    seconds: npt.NDArray[np.float64]
    cpu_seconds: npt.NDArray[np.float64]

    @property
    def cpu(self) -> float:
        """CPU seconds of a pause and its run: a mean, since systems count by ticks of some ms."""
        return float(self.cpu_seconds.mean())

    def percentiles(self, levels: Sequence[float] = LEVELS) -> tuple[Percentile, ...]:
        """Return percentiles of the latency."""
        return percentiles(self.seconds, levels)

    def compare(
        self, other: "AfterPause", subject: str, baseline: str, *, confidence: float = 0.99
    ) -> Speedup:
        """Compare with another pause of the same call of :func:`measure_pauses`.

        The ratio of each round gives one number. Below 100 rounds, the interval is Student's.
        """
        rounds = len(self.seconds)
        shape = (1, rounds) if rounds >= MIN_ROUNDS else (rounds, 1)
        theirs, ours = other.seconds.reshape(shape), self.seconds.reshape(shape)
        ratio = estimate_ratio(theirs, ours, confidence, f"{rounds} rounds")
        return Speedup(subject, baseline, ratio)


def measure_pauses(
    calls: Mapping[_Key, Callable[[], object]],
    pauses: Sequence[float],
    *,
    seconds: float,
    rounds: int | None = None,
    before: Callable[[], object] | None = None,
) -> dict[tuple[_Key, float], AfterPause]:
    """Time a run of each candidate after each pause, in rounds of random order.

    Parameters
    ----------
    calls : mapping of callables
        By any key.
    pauses : sequence of float
        Seconds between the end of runs that are not timed, four to six of a short model, and the
        beginning of one that is.
    seconds : float
        Time for everything; the round that began is finished.
    rounds : int, optional
        Number of rounds, if the seconds allow; by default as many as they do.
    before : callable, optional
        What runs before each pause instead of the candidate: a neighbour in the same process.

    Returns
    -------
    dict of AfterPause
        By candidate and pause; all have the same rounds.

    Raises
    ------
    InvalidArgumentError
        A number is out of range.

    Examples
    --------
    >>> found = measure_pauses({"sum": lambda: sum(range(999))}, [0, 0.001], seconds=0.05)
    >>> list(found)
    [('sum', 0), ('sum', 0.001)]
    """
    if not all(0 <= pause < math.inf for pause in pauses):
        raise InvalidArgumentError(f"pauses {list(pauses)}. Accepted: finite numbers from 0")
    rng = np.random.default_rng(0)
    keys = list(itertools.product(calls, pauses))
    rows: list[list[tuple[float, float]]] = []
    deadline, most = time.perf_counter() + seconds, math.inf if rounds is None else rounds
    expected = math.ceil(seconds / max(len(calls) * sum(pauses), 1e-3))
    with collector_off(), progress_bar("rounds", total=expected) as bar:
        settling = {call: _warm_call(call) for call in (*calls.values(), *filter(None, [before]))}
        while not rows or (time.perf_counter() < deadline and len(rows) < most):
            row = [(0.0, 0.0)] * len(keys)
            for rank in rng.permutation(len(keys)).tolist():
                name, pause = keys[rank]
                call = calls[name]
                for _ in range(settling[before or call]):  # whatever ran in between
                    (before or call)()
                cpu = time.process_time()
                if pause:
                    time.sleep(pause)
                start = time.perf_counter()
                call()
                row[rank] = time.perf_counter() - start, time.process_time() - cpu
            rows.append(row)
            bar.update()
    columns = np.array(rows).T  # latency or CPU time, candidate and pause, round
    return {key: AfterPause(key[1], *columns[:, rank]) for rank, key in enumerate(keys)}


def _warm_call(call: Callable[[], object]) -> int:
    """Make a few calls; return how many let the caches settle."""
    for _ in range(_WARM_UP_CALLS):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    return settling_calls(seconds)
