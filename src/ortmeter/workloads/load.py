"""Latencies under load: callers that wait for their results, or requests that arrive at a rate.

``_benchmarks/load_theory.py`` compares the waits of a fixed service time with queueing theory.
"""

import bisect
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate, Speedup
from ortmeter.progress import follow
from ortmeter.timing.loop import collector_off, settling_calls
from ortmeter.timing.percentiles import LEVELS, Percentile, percentiles
from ortmeter.timing.statistics import estimate_mean, geometric_mean, ratio_of_means

__all__ = [
    "Load",
    "Point",
    "Turn",
    "compare_best",
    "compare_throughput",
    "measure_load",
]

#: Requests of a point: more would not fit in memory.
MAX_REQUESTS = 5_000_000

_TURNS, _FEWEST_TURNS = 10, 5
_REQUESTS_OF_A_TURN = 200  # a queue needs time to fill
_WARM_UP = 0.1  # share of the time of a point
_FILLING = 0.2  # share of a turn of requests
_SPIN_NS = 200_000  # a sleep may last that much longer
_START_S = 60.0  # for the threads to be ready
_PATIENCE = 2  # a turn of requests ends after so many times its length

_Array = npt.NDArray[np.float64]
_Call = Callable[[], object]
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Point:
    """What is measured under one load.

    Parameters
    ----------
    calls : sequence of callables
        One per thread; two threads never share one.
    rate : float, optional
        Requests that arrive in a second, at random (Poisson), whether or not the previous ones are
        done. By default, each thread calls again as soon as it has its result.
    batch : int
        Requests that a call answers, the rows of its inputs.
    full : bool
        With a rate, whether a call waits until its batch is full. Otherwise it takes the requests
        that wait, and the other rows are for nothing.
    """

    calls: Sequence[_Call]
    rate: float | None = None
    batch: int = 1
    full: bool = True


@dataclass(frozen=True, eq=False)
class Turn:
    """What was served in one turn of a point.

    Parameters
    ----------
    arrivals, starts, ends : array of shape (requests,)
        Seconds since the beginning of the turn, in the order of the arrivals. A caller starts when
        it arrives.
    requests_per_s : float
        Throughput: the sum of those of the threads.
    left : int
        Requests that arrived and were not served.
    """

    arrivals: _Array
    starts: _Array
    ends: _Array
    requests_per_s: float
    left: int = 0


@dataclass(frozen=True, eq=False)
class Load:
    """Turns of a point, taken among those of other points.

    Parameters
    ----------
    point : Point
        What was measured.
    turns : tuple of Turn
        In the order of time.
    """

    point: Point
    turns: tuple[Turn, ...]

    @property
    def requests(self) -> int:
        """Number of requests that were served."""
        return sum(len(turn.ends) for turn in self.turns)

    def percentiles(self, levels: Sequence[float] = LEVELS) -> tuple[Percentile, ...]:
        """Return percentiles of the latency, from the arrival of a request to its end.

        There is none when the queue is not known to be stable: latencies then grow with time.
        """
        if self.point.rate is not None and self.state() != "stable":
            return ()
        rows = [(turn.ends - turn.arrivals)[self.settled(turn)] for turn in self.turns]
        seconds = np.concatenate(rows)
        return percentiles(seconds, levels) if seconds.size else ()

    def throughput(self) -> Estimate:
        """Return the requests per second: a mean of turns, what a single long turn would serve."""
        return estimate_mean([turn.requests_per_s for turn in self.turns])

    def utilization(self) -> Estimate:
        """Return the share of what the threads can serve; above 1, the queue grows.

        It is the rate times the mean time of a run, divided by the number of threads and by the
        requests of a batch.
        """
        if self.point.rate is None:
            raise InvalidArgumentError("callers are always busy. Accepted: a point with a rate")
        scale = self.point.rate / len(self.point.calls) / self.point.batch
        means = [float((turn.ends - turn.starts).mean()) for turn in self.turns if turn.ends.size]
        return geometric_mean([scale * mean for mean in means]) if means else Estimate(math.nan)

    def state(self) -> str:
        """Return ``stable``, ``overloaded``, or ``undecided`` when the interval does not tell."""
        share = self.utilization()
        if share.low is not None and share.low > 1:
            return "overloaded"
        served = not any(turn.left for turn in self.turns)
        return "stable" if served and share.high is not None and share.high < 1 else "undecided"

    def settled(self, turn: Turn) -> npt.NDArray[np.bool_]:
        """Return which requests count: the first ones of a turn found an empty queue."""
        late = 0.0 if self.point.rate is None else _FILLING * float(turn.arrivals[-1:].sum())
        return turn.arrivals >= late


def compare_throughput(
    subject: str, load: Load, baseline: str, other: Load, *, confidence: float = 0.99
) -> Speedup:
    """Compare two points of one call of :func:`measure_load`: more per second is faster.

    Parameters
    ----------
    subject, baseline : str
        Names of the points.
    load, other : Load
        What was measured of the subject and of the baseline.
    confidence : float
        Level of the interval.

    Returns
    -------
    Speedup
        The ratio of the requests per second of all turns together, as :meth:`Load.throughput` has
        them, and Student's interval over turns.

    Examples
    --------
    >>> empty = np.zeros(0)
    >>> def point(speed):
    ...     turns = (Turn(empty, empty, empty, speed),) * 5
    ...     return Load(Point([print]), turns)
    >>> compare_throughput("two callers", point(190.0), "one", point(100.0)).effect
    '1.90 times faster [1.90, 1.90]'
    """
    ours, theirs = ([turn.requests_per_s for turn in each.turns] for each in (load, other))
    ratio = ratio_of_means(ours, theirs, confidence, f"{len(ours)} turns")
    return Speedup(subject, baseline, ratio)


def compare_best(subject: str, loads: Mapping[int, Load], baseline: str, other: Load) -> Speedup:
    """Compare the point that serves most with another one.

    Parameters
    ----------
    subject : str
        Name of the best point; its number stands in braces: ``batches of {}``.
    loads : mapping of int to Load
        By number of callers, or of requests in a batch.
    baseline : str
        Name of the other point.
    other : Load
        What was measured of it.

    Returns
    -------
    Speedup
        The comparisons of all the points hold together at 99%: the level of this one is higher
        (Bonferroni).

    Examples
    --------
    >>> def point(speed):
    ...     return Load(Point([print]), (Turn(*np.zeros((3, 1)), speed),) * 5)
    >>> found = compare_best("batch {}", {2: point(150.0), 4: point(120.0)}, "one", point(100.0))
    >>> found.subject, found.effect, found.confidence
    ('batch 2', '1.50 times faster [1.50, 1.50] (99.5% CI)', 0.995)
    """
    best = max(loads, key=lambda key: loads[key].throughput().value)
    level = 1 - 0.01 / len(loads)
    return compare_throughput(subject.format(best), loads[best], baseline, other, confidence=level)


def measure_load(
    points: Mapping[_Key, Point],
    *,
    seconds: float,
    seed: int = 0,
) -> dict[_Key, Load]:
    """Interleave points, each one several times, in random orders.

    Parameters
    ----------
    points : mapping of Point
        By any key.
    seconds : float
        For each point, warm-up included. A turn serves at least one run per thread.
    seed : int
        Seed of the orders and of the arrivals.

    Returns
    -------
    dict of Load
        With 10 turns of each point, 5 if requests are few, fewer if the runs are long beside
        *seconds*. An interval needs 3 turns.

    Raises
    ------
    InvalidArgumentError
        A rate is out of range.

    Notes
    -----
    Each thread takes the next request as soon as it is free: the queue has one line, and the first
    come is the first served. The latency of a request counts from its arrival, drawn beforehand: a
    slow run delays those that follow, and their latencies say so. Python takes a few microseconds
    per request, one thread at a time.

    The first calls of each caller in a turn find the caches of what ran before. They are made and
    not counted: six below 0.5 ms, five below 5 ms, four below 20 ms, one below 250 ms.

    Examples
    --------
    >>> found = measure_load({2: Point([lambda: sum(range(9999))] * 2)}, seconds=0.05)
    >>> found[2].requests > 2
    True
    """
    for rate in (point.rate for point in points.values()):
        if rate is not None and not 0 < rate * seconds <= MAX_REQUESTS:
            raise InvalidArgumentError(
                f"rate={rate!r} for {seconds:g} s. Accepted: up to {MAX_REQUESTS} requests"
            )
    rng = np.random.default_rng(seed)
    length = {key: seconds * (1 - _WARM_UP) / _turns(p, seconds) for key, p in points.items()}
    turns: dict[_Key, list[Turn]] = {key: [] for key in points}
    rounds = max(_turns(point, seconds) for point in points.values())
    deadline = time.perf_counter() + 1.5 * seconds * len(points)
    threads = max(len(point.calls) for point in points.values())
    with ThreadPoolExecutor(threads, "ortmeter-load") as pool, collector_off():
        for point in points.values():
            _Turn(point).callers(pool, _WARM_UP * seconds)
        for i in follow(range(rounds), "turns"):
            for rank in rng.permutation(len(points)).tolist():
                key = list(points)[rank]
                if i < _turns(points[key], seconds):
                    # The queue goes on from where it was: a short turn would not fill it.
                    before = turns[key][-1:]
                    waiting = sum(t.left + int((t.starts > length[key]).sum()) for t in before)
                    turn = _Turn(points[key]).run(pool, length[key], rng, waiting)
                    turns[key].append(turn)
            if time.perf_counter() >= deadline:
                break
    return {key: Load(points[key], tuple(taken)) for key, taken in turns.items()}


def _turns(point: Point, seconds: float) -> int:
    if point.rate is None:
        return _TURNS
    return min(max(int(point.rate * seconds / _REQUESTS_OF_A_TURN), _FEWEST_TURNS), _TURNS)


def _settled(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Leave out the first calls of a thread, which find the caches of what ran before."""
    median = float(np.median(rows[:, 1] - rows[:, 0])) / 1e9
    return rows[min(settling_calls(median), len(rows) - 1) :]


class _Turn:
    """Threads that begin together, each with its own call and its own list of times."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._origin = 0
        self._stopped = False
        self._line = threading.Lock()
        self._first = 0  # request of the line

    def run(
        self, pool: ThreadPoolExecutor, seconds: float, rng: np.random.Generator, waiting: int
    ) -> Turn:
        if self._point.rate is None:
            return self.callers(pool, seconds)
        # Given their number, the arrivals of a Poisson process are uniform.
        count = int(rng.poisson(self._point.rate * seconds))
        arrivals = np.concatenate([np.zeros(waiting), np.sort(rng.uniform(0, seconds, count))])
        return self.requests(pool, arrivals, seconds)

    def callers(self, pool: ThreadPoolExecutor, seconds: float) -> Turn:
        """Call again and again: the last run of each thread begins before the end."""
        by_thread = self._together(pool, lambda call: self._again(call, int(1e9 * seconds)))
        by_thread = [_settled(rows) for rows in by_thread]
        times = np.concatenate(by_thread) / 1e9
        times = times[np.argsort(times[:, 0], kind="stable")]
        speed = sum(len(rows) / (rows[-1, 1] - rows[0, 0]) * 1e9 for rows in by_thread)
        return Turn(times[:, 0], times[:, 0], times[:, 1], float(speed) * self._point.batch)

    def requests(self, pool: ThreadPoolExecutor, arrivals: _Array, seconds: float) -> Turn:
        """Serve requests in their order; those that wait for too long are left."""
        point = self._point
        asked = len(arrivals) - (len(arrivals) % point.batch if point.full else 0)
        due, until = (1e9 * arrivals[:asked]).astype(np.int64), int(_PATIENCE * 1e9 * seconds)
        line = due.tolist()
        by_thread = self._together(pool, lambda call: self._serve(call, line, until))
        times = np.concatenate([rows.reshape(-1, 4) for rows in by_thread])
        times = times[np.argsort(times[:, 0])]
        counts = times[:, 1] - times[:, 0]
        served = np.repeat(times[:, 1] - np.cumsum(counts), counts) + np.arange(counts.sum())
        starts, ends = (np.repeat(times[:, i] / 1e9, counts) for i in (2, 3))
        speed = len(ends) / max(seconds, float(ends.max(initial=0.0)))
        return Turn(due[served] / 1e9, starts, ends, speed, asked - len(ends))

    def _together(
        self, pool: ThreadPoolExecutor, work: Callable[[_Call], Any]
    ) -> list[npt.NDArray[np.int64]]:
        """Begin in all the threads at once; return their times since then, in nanoseconds."""

        def begin() -> None:
            self._origin = time.perf_counter_ns()

        barrier = threading.Barrier(len(self._point.calls), begin, _START_S)

        def wait_and_work(call: _Call) -> Any:
            barrier.wait()
            return work(call)

        futures = [pool.submit(wait_and_work, call) for call in self._point.calls]
        try:
            return [np.array(future.result(), np.int64) for future in futures]
        finally:  # of an interruption, or of a call that failed: the others stop
            self._stopped = True

    def _now(self) -> int:
        return time.perf_counter_ns() - self._origin

    def _again(self, call: _Call, seconds: int) -> npt.NDArray[np.int64]:
        times: list[tuple[int, int]] = []
        now, until, end = time.perf_counter_ns, self._origin + seconds, 0
        while not self._stopped and (end < until or not times):
            start = now()
            call()
            end = now()
            times.append((start, end))
        return np.array(times) - self._origin

    def _serve(
        self, call: _Call, due: Sequence[int], until: int
    ) -> list[tuple[int, int, int, int]]:
        times: list[tuple[int, int, int, int]] = []
        while True:
            first, last = self._take(due)
            start = self._now()
            if self._stopped or first == last or start > until:
                return times
            call()
            times.append((first, last, start, self._now()))

    def _take(self, due: Sequence[int]) -> tuple[int, int]:
        """Take the next requests of the line, when the first one or the last one is there."""
        with self._line:  # one thread at a time
            first = self._first
            last = min(first + self._point.batch, len(due))
            if first == last:
                return first, last
            begins = due[last - 1 if self._point.full else first]
            while (wait := begins - self._now()) > 0 and not self._stopped:
                # Sleep until shortly before, then spin; sleep(0) lets other threads run.
                time.sleep(max(wait - _SPIN_NS, 0) / 1e9)
            if not self._point.full:
                last = max(bisect.bisect_right(due, self._now(), first, last), first + 1)
            self._first = last
            return first, last
