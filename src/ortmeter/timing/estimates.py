"""Positive numbers with their confidence intervals, and how they are written."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortmeter.timing.comparison import UNITS, common_unit
from ortmeter.timing.measurement import rounded
from ortmeter.timing.statistics import log_ratio


@dataclass(frozen=True)
class Estimate:
    """A positive number and its interval, None when there are too few samples for one.

    Examples
    --------
    >>> Estimate(812.3, 805.0, 820.0).text, Estimate(812.3).text
    ('812 [805, 820]', '812')
    >>> Estimate(0.0121, 0.012, 0.0124).seconds
    '12.1 [12, 12.4] ms'
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def exceeds(self, bound: float) -> bool | None:
        """Whether it is above a bound, None when the interval does not tell."""
        if self.interval is None or self.interval[0] < bound <= self.interval[1]:
            return None
        return self.interval[0] >= bound

    @property
    def text(self) -> str:
        """The number and its interval, with three digits."""
        return self.written()

    @property
    def seconds(self) -> str:
        """The same of a duration in seconds, in the unit that suits it."""
        unit = common_unit([self.value])
        return f"{self.written(UNITS[unit])} {unit}"

    def written(self, factor: float = 1.0) -> str:
        """Write this many times the number and its interval, with three digits."""
        value, *ends = (f"{rounded(factor * x, 3):g}" for x in (self.value, *(self.interval or ())))
        return f"{value} [{', '.join(ends)}]" if ends else value


def estimate_ratio(
    baseline: npt.ArrayLike, candidate: npt.ArrayLike, confidence: float
) -> Estimate:
    """Estimate the ratio of two positive numbers from samples of shape (processes, rounds)."""
    log, half = log_ratio(np.asarray(baseline), np.asarray(candidate), confidence)
    ends = () if half is None else (math.exp(log - half), math.exp(log + half))
    return Estimate(math.exp(log), *ends)


def geometric_mean(values: npt.ArrayLike, confidence: float = 0.99) -> Estimate:
    """Estimate the geometric mean of independent values: an interval needs three."""
    column = np.ravel(values)[:, None]
    return estimate_ratio(column, np.ones_like(column), confidence)
