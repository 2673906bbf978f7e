"""Compare two measurements, with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.measurement import Measurement

__all__ = ["Speedup", "enumerate_items", "speedup", "summarize"]

_RESAMPLES = 1000
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """How many times faster a candidate is than a baseline.

    Parameters
    ----------
    baseline, candidate : str
        Names of what is compared.
    ratio : float
        Median latency of the baseline divided by the candidate's; above 1 the candidate is faster.
    low, high : float
        Confidence interval of the ratio.
    confidence : float
        Level of the interval.
    min_effect : float
        Smallest relative difference that is worth a claim.
    """

    baseline: str
    candidate: str
    ratio: float
    low: float
    high: float
    confidence: float = 0.99
    min_effect: float = 0.05

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``equivalent`` or ``undecided``, said of the candidate.

        A claim needs an interval that leaves 1 out, and a ratio beyond the minimum effect. When the
        whole interval is within the minimum effect, the two are equivalent.
        """
        if self.low > 1 and self.ratio >= 1 + self.min_effect:
            return "faster"
        if self.high < 1 and self.ratio <= 1 / (1 + self.min_effect):
            return "slower"
        if 1 / (1 + self.min_effect) < self.low and self.high < 1 + self.min_effect:
            return "equivalent"
        return "undecided"

    @property
    def claim(self) -> str:
        """The verdict in words, without numbers."""
        if self.is_claim:
            return f"{self.candidate} is {self.verdict} than {self.baseline}"
        return f"no difference can be claimed between {self.candidate} and {self.baseline}"

    @property
    def is_claim(self) -> bool:
        """Whether one of the two is said to be faster."""
        return self.verdict in {"faster", "slower"}

    def __str__(self) -> str:
        if not self.is_claim:
            below = f", below {self.min_effect:.0%}" if self.verdict == "equivalent" else ""
            interval = self._interval(self.low, self.high)
            return f"{self.claim} (ratio {self.ratio:.2f}{below}, {interval})"
        if self.verdict == "faster":
            times, bounds = self.ratio, (self.low, self.high)
        else:
            times, bounds = 1 / self.ratio, (1 / self.high, 1 / self.low)
        return (
            f"{self.candidate} is {times:.2f} times {self.verdict} than {self.baseline} "
            f"({self._interval(*bounds)})"
        )

    def _interval(self, low: float, high: float) -> str:
        return f"{self.confidence:.0%} interval {low:.2f} to {high:.2f}"


def speedup(
    baseline: Measurement,
    candidate: Measurement,
    *,
    confidence: float = 0.99,
    min_effect: float = 0.05,
    seed: int = 0,
) -> Speedup:
    """Compare two measurements taken by the same call of :func:`~ortmeter.timing.measure`.

    Parameters
    ----------
    baseline, candidate : Measurement
        Both have the same rounds and processes.
    confidence : float
        Level of the interval, 0.99 by default: a page draws many of them.
    min_effect : float
        Smallest relative difference that is worth a claim.
    seed : int
        Seed of the resampling.

    Returns
    -------
    Speedup
        Ratio of medians, its interval and the verdict.

    Raises
    ------
    InvalidArgumentError
        The measurements were not taken together.

    Notes
    -----
    The interval is a block bootstrap [1]_ of the logarithm of the ratio of medians. Samples of one
    process are correlated, so blocks of about ``sqrt(repeat)`` consecutive rounds are drawn, the
    same ones for both sides, since a slow spell hits both. With several processes, processes are
    drawn first, then blocks inside each, and the spread is widened by ``sqrt(k / (k - 1))`` because
    a few processes resampled vary less than new ones would.

    References
    ----------
    .. [1] Künsch, *The jackknife and the bootstrap for general stationary observations*,
       Annals of Statistics 17, 1989.

    Examples
    --------
    >>> slow = Measurement("slow", [[2.0, 2.1, 1.9, 2.0]])
    >>> fast = Measurement("fast", [[1.0, 1.05, 0.95, 1.0]])
    >>> speedup(slow, fast).verdict
    'faster'
    """
    if baseline.seconds.shape != candidate.seconds.shape:
        raise InvalidArgumentError(
            f"{baseline.name!r} has {baseline.seconds.shape} samples and {candidate.name!r} "
            f"{candidate.seconds.shape}. Accepted: two measurements of one call of measure"
        )
    if min(baseline.median, candidate.median) <= 0:
        raise InvalidArgumentError("A median of zero seconds: the clock is too coarse to compare")
    ratio = baseline.median / candidate.median
    deviations = _resampled_logs(baseline.seconds, candidate.seconds, seed) - math.log(ratio)
    if baseline.processes > 1:
        deviations *= math.sqrt(baseline.processes / (baseline.processes - 1))
    tail = (1 - confidence) / 2
    low, high = ratio * np.exp(np.quantile(deviations, [tail, 1 - tail]))
    return Speedup(
        baseline.name, candidate.name, ratio, float(low), float(high), confidence, min_effect
    )


def summarize(speedups: Mapping[Any, Speedup], key: str) -> str:
    """Say in one sentence how a candidate compares to a baseline at several sizes.

    Parameters
    ----------
    speedups : mapping of Speedup
        For each size, or type, or another key, the speedup of the same candidate.
    key : str
        What the keys are.

    Returns
    -------
    str
        The keys by verdict, with the ratio of each and its interval.

    Examples
    --------
    >>> wins = Speedup("two", "one", ratio=1.5, low=1.4, high=1.6)
    >>> ties = Speedup("two", "one", ratio=1.0, low=0.9, high=1.1)
    >>> summarize({8: wins, 16: wins}, "size")
    'one is faster than two at size 8 (1.50, 1.40 to 1.60) and 16 (1.50, 1.40 to 1.60)'
    >>> summarize({8: ties}, "size")
    'no difference can be claimed between one and two at size 8 (1.00, 0.90 to 1.10)'
    """
    groups: dict[str, list[str]] = {}
    for value, s in speedups.items():
        groups.setdefault(s.claim, []).append(
            f"{value} ({s.ratio:.2f}, {s.low:.2f} to {s.high:.2f})"
        )
    return "; ".join(
        f"{claim} at {key} {enumerate_items(found)}" for claim, found in groups.items()
    )


def enumerate_items(items: Sequence[str]) -> str:
    """Write ``a, b and c``.

    Parameters
    ----------
    items : sequence of str
        At least one.
    """
    *start, last = items
    return f"{', '.join(start)} and {last}" if start else last


def _resampled_logs(baseline: _Array, candidate: _Array, seed: int) -> _Array:
    """Logarithms of the ratio of medians in resampled rounds, of shape (resamples,)."""
    rng = np.random.default_rng(seed)
    processes, repeat = baseline.shape
    length = math.ceil(math.sqrt(repeat))
    blocks = math.ceil(repeat / length)
    logs = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        rows = (
            rng.integers(0, processes, (processes, 1)) if processes > 1 else np.zeros((1, 1), int)
        )
        starts = rng.integers(0, repeat, (processes, blocks, 1))
        # Blocks wrap around, so that the first and the last rounds are drawn as often as others.
        rounds = (starts + np.arange(length)).reshape(processes, -1)[:, :repeat] % repeat
        logs[i] = np.log(np.median(baseline[rows, rounds]) / np.median(candidate[rows, rounds]))
    return logs
