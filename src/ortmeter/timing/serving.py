"""What theory expects of a load: the latencies of a queue, the batch where a roofline bends."""

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.load import Load, Point, compare_throughput
from ortmeter.timing.peaks import Peaks

__all__ = ["GROWTH", "Knee", "expected_knee", "expected_latencies", "find_knee"]

#: A doubling of the batch pays when it adds this share of throughput.
GROWTH = 0.1

_DOUBLINGS = 40
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Knee:
    """The batch from which no doubling pays: at least *low*, at most *high*, None if unknown.

    Examples
    --------
    >>> print(Knee(8, 8), Knee(8, 32), Knee(8, None), sep=", ")
    8, between 8 and 32, 8 or more
    """

    low: int
    high: int | None

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return f"{self.low}" if self.low == self.high else f"between {self.low} and {self.high}"

    @property
    def measured(self) -> str:
        """The same of a measurement, which says when it is undecided."""
        return str(self) if self.high in {self.low, None} else f"undecided {self}"

    def within(self, other: "Knee") -> bool | None:
        """Return whether a knee lies within bounds, None when its interval does not tell."""
        top, most = self.high or math.inf, other.high or math.inf
        if top < other.low or self.low > most:
            return False
        return True if self.low >= other.low and top <= most else None


def find_knee(loads: Mapping[int, Load], *, confidence: float = 0.99) -> Knee:
    """Find the batch from which throughput grows by less than 10% per doubling.

    Parameters
    ----------
    loads : mapping of int to Load
        By batch, points of one call of :func:`~ortmeter.timing.load.measure_load`.
    confidence : float
        Level of the whole interval: that of each step is higher (Bonferroni).

    Returns
    -------
    Knee
        *low* is the batch after the last step that is known to pay, *high* the first one from which
        no step pays for sure.

    Examples
    --------
    >>> from ortmeter.timing.load import Turn
    >>> def planted(speed):
    ...     turns = [Turn(*np.zeros((3, 1)), speed * x) for x in (0.99, 1.0, 1.01)]
    ...     return Load(Point([int]), tuple(turns))
    >>> print(find_knee({1: planted(10), 2: planted(20), 4: planted(21), 8: planted(21)}))
    2
    """
    batches = sorted(loads)
    if len(batches) < 2:  # noqa: PLR2004 - a step
        raise InvalidArgumentError(f"got batches {batches}. Accepted: two or more")
    steps = list(itertools.pairwise(batches))
    level = 1 - (1 - confidence) / len(steps)
    pays = [
        compare_throughput(str(b), loads[b], str(a), loads[a], confidence=level).exceeds(
            (1 + GROWTH) ** math.log2(b / a)
        )
        for a, b in steps
    ]
    low = max((b for (_, b), known in zip(steps, pays, strict=True) if known), default=batches[0])
    flat = len(list(itertools.takewhile(lambda known: known is False, reversed(pays))))
    return Knee(low, steps[-flat][0] if flat else None)


def expected_knee(flop: float, bytes_read: float, peaks: Peaks) -> Knee:
    """Return the batch where a roofline no longer grows, from the work of a model.

    Parameters
    ----------
    flop : float
        Operations of a request.
    bytes_read : float
        Bytes that a call reads once for all its requests: the weights, unless a cache keeps them.
    peaks : Peaks
        Of the machine, see :func:`~ortmeter.timing.peaks.measured_peaks`.

    Returns
    -------
    Knee
        *low* if operations and bytes overlap perfectly, *high* if they do not at all.

    Examples
    --------
    >>> print(expected_knee(flop=2e6, bytes_read=4e6, peaks=Peaks(gflop_per_s=80, gb_per_s=20)))
    between 8 and 64
    """
    work, reading = flop / peaks.gflop_per_s, bytes_read / peaks.gb_per_s
    batches = 2.0 ** np.arange(_DOUBLINGS)
    ends = []
    for times in (np.maximum(batches * work, reading), batches * work + reading):
        gains = 2 * times[:-1] / times[1:]
        ends.append(int(batches[np.argmax(gains < 1 + GROWTH)]))
    return Knee(*ends)


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
        Seconds, of the requests that :meth:`~ortmeter.timing.load.Load.settled` counts. A server
        starts as soon as it is free and its requests are there; there are as many servers as
        threads.

    Examples
    --------
    >>> from ortmeter.timing.load import Turn
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


def _starts(arrivals: _Array, point: Point, seconds: float) -> _Array:
    """Start each run as soon as a server is free and its requests are there."""
    free = [0.0] * len(point.calls)
    starts = np.empty_like(arrivals)
    first = 0
    while first < len(arrivals):
        last = min(first + point.batch, len(arrivals))
        start = max(heapq.heappop(free), arrivals[last - 1 if point.full else first])
        if not point.full:
            last = first + int(np.searchsorted(arrivals[first:last], start, side="right"))
        starts[first:last] = start
        heapq.heappush(free, start + seconds)
        first = last
    return starts
