"""What theory expects of a load, and whether it holds: tails of a queue."""

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ortmeter.evidence import Estimate, Finding, Speedup
from ortmeter.workloads.load import Load, Point, compare_throughput

__all__ = [
    "expected_latencies",
    "find_lost_batches",
    "find_tails",
    "find_won_split",
]

_FEW = 8  # requests
_WON, _LOST = (1.05, math.inf), (0.0, 1 / 1.05)  # speedups that matter
_Array = npt.NDArray[np.float64]


def find_lost_batches(loads: Mapping[str, Mapping[int, Load]]) -> Finding:
    """Find whether every batch of a few requests serves less than single requests.

    Parameters
    ----------
    loads : mapping of str to mapping of int to Load
        By model and batch, from 1; those of more than 8 do not count.

    Returns
    -------
    Finding
        All its intervals hold together (Bonferroni); the extremes are told.

    Examples
    --------
    >>> from ortmeter.workloads.load import Turn
    >>> def planted(speed):
    ...     return Load(Point([int]), (Turn(*np.zeros((3, 1)), speed),) * 3)
    >>> found = find_lost_batches({"cnn": {1: planted(10), 2: planted(5), 4: planted(15)}})
    >>> found.outcomes, found.evidence
    ((True, False), 'speedup, cnn, batch 2: 0.50 [0.50, 0.50]; cnn, batch 4: 1.50 [1.50, 1.50]')
    """
    few = {(name, b): loads[name][b] for name in loads for b in loads[name] if b <= _FEW}
    level = 1 - 0.01 / max(len(few), _FEW)  # the same for one model as for two
    claims = [
        compare_throughput(f"{name}, batch {b}", load, "apart", few[name, 1], confidence=level)
        for (name, b), load in few.items()
        if b > 1
    ]
    ranked = sorted(claims, key=lambda claim: claim.ratio)
    return _find_each(claims, _LOST, ranked[:: max(len(ranked) - 1, 1)])


def find_won_split(
    whole: Mapping[str, Mapping[int, Load]], parts: Mapping[str, Mapping[int, Load]]
) -> Finding:
    """Find whether the largest batch is served faster when callers share it.

    Parameters
    ----------
    whole : mapping of str to mapping of int to Load
        By model and batch, one call at a time.
    parts : mapping of str to mapping of int to Load
        Several callers: each one takes the largest batch that makes no more than the whole.

    Returns
    -------
    Finding
        A case per model.

    Examples
    --------
    >>> from ortmeter.workloads.load import Turn
    >>> def planted(speed, callers):
    ...     return Load(Point([int] * callers), (Turn(*np.zeros((3, 1)), speed),) * 3)
    >>> whole = {"cnn": {1: planted(10, 1), 2: planted(20, 1)}}
    >>> parts = {"cnn": {1: planted(30, 2), 2: planted(40, 2)}}
    >>> print(find_won_split(whole, parts).evidence)
    speedup, cnn: 1.50 [1.50, 1.50]
    """
    claims = []
    for name, loads in whole.items():
        shared, last = parts[name], max(loads)
        share = max((b for b in shared if b * len(shared[b].point.calls) <= last), default=1)
        claims.append(compare_throughput(name, shared[share], "whole", loads[last]))
    return _find_each(claims, _WON)


def _find_each(
    claims: Sequence[Speedup], bounds: tuple[float, float], told: Sequence[Speedup] = ()
) -> Finding:
    outcomes = tuple(held for c in claims for held in c.estimate.within(*bounds).outcomes)
    listed = "; ".join(f"{claim.subject}: {claim.interval}" for claim in told or claims)
    return Finding(outcomes, f"speedup, {listed}")


def expected_latencies(load: Load, seconds: float) -> _Array:
    """Return the latencies of the same requests if every run lasted as long: the queue M/D/c.

    Parameters
    ----------
    load : Load
        Requests at a rate.
    seconds : float
        Time of a run.

    Returns
    -------
    array of shape (requests,)
        Seconds, of the requests that :meth:`~ortmeter.workloads.load.Load.settled` counts. A server
        starts as soon as it is free and its requests are there; there are as many servers as
        threads.

    Examples
    --------
    >>> from ortmeter.workloads.load import Turn
    >>> arrivals = np.array([0.0, 1.0, 1.5, 9.0])
    >>> load = Load(Point([int], rate=0.4), (Turn(arrivals, arrivals, arrivals, 0.4),))
    >>> expected_latencies(load, 2.0).tolist()  # the first one found an empty queue
    [2.0]
    """
    rows = [
        (_starts(turn.arrivals, load.point, seconds) + seconds - turn.arrivals)[load.settled(turn)]
        for turn in load.turns
    ]
    return np.concatenate(rows)


def find_tails(pairs: Iterable[tuple[Estimate | None, float]], factor: float) -> Finding:
    """Find whether percentiles of latencies are within a factor of what a queue predicts.

    Parameters
    ----------
    pairs : iterable of tuple of Estimate and float
        What is measured, None when the queue has no percentile, and what is predicted: seconds.
    factor : float
        Largest ratio of one to the other.

    Returns
    -------
    Finding
        A case without interval does not tell.

    Examples
    --------
    >>> found = find_tails([(Estimate(0.012, 0.011, 0.013), 0.010), (None, 0.010)], 1.5)
    >>> found.outcomes, found.evidence
    ((True, None), 'measured over predicted: 1.20 to 1.20')
    """
    outcomes: list[bool | None] = []
    ratios = []
    for measured, seconds in pairs:
        if measured is None or measured.interval is None:
            outcomes.append(None)
        else:
            outcomes += measured.within(seconds / factor, factor * seconds).outcomes
            ratios.append(measured.value / seconds)
    ends = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "none"
    return Finding(tuple(outcomes), f"measured over predicted: {ends}")


def _starts(arrivals: _Array, point: Point, seconds: float) -> _Array:
    """Start each run as soon as a server is free and its requests are there."""
    free, times = [0.0] * len(point.calls), arrivals.tolist()
    starts: list[float] = []
    while (first := len(starts)) < len(times):
        last = min(first + point.batch, len(times))
        start = max(free[0], times[last - 1 if point.full else first])
        if not point.full:
            last = bisect.bisect_right(times, start, first, last)
        starts += [start] * (last - first)
        heapq.heapreplace(free, start + seconds)
    return np.array(starts)
