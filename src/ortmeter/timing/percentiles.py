"""Percentiles of latencies, with intervals that assume no distribution.

``_benchmarks/percentile_coverage.py`` measures how often they are wrong.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import LEVEL, UNITS, Estimate
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.statistics import MIN_PROCESSES, student_quantile

__all__ = ["LEVELS", "Percentile", "percentile_rows", "percentiles"]

#: What a table shows where there is no interval, and why.
MISSING = "-"
MISSING_NOTE = "a dash: too few samples; no brackets: too few independent ones for a 99% interval"
#: How a percentile is known whose samples are many, and too correlated for an interval.
_CORRELATED = "correlated samples"
#: Runs that an interval of the 99th percentile needs at least: 528 independent ones.
RUNS_OF_P99 = 570
#: The percentiles that are shown.
LEVELS = (50.0, 90.0, 95.0, 99.0)

# The sum of autocorrelations stops at the first lag beyond so many times the sum (Sokal).
_LAGS = 5
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Percentile(Estimate):
    """A percentile of latencies, in seconds.

    Parameters
    ----------
    value, low, high, confidence, how, unit
        See :class:`~ortmeter.evidence.Estimate`.
    level : float
        Share of the latencies that are below, in percent.

    Examples
    --------
    >>> p99 = Percentile(0.0121, 0.012, 0.0124, level=99)
    >>> p99.name, p99.cell(1e3), Percentile(0.0121).cell(1e3)
    ('p99', '12.1 [12, 12.4]', '-')
    """

    level: float = 50.0

    @property
    def name(self) -> str:
        """The usual name, ``p99``."""
        return f"p{self.level:g}"

    def cell(self, factor: float) -> str:
        """Write it in another unit, with its interval if there is one, a dash for few samples."""
        is_known = self.interval is not None or self.how == _CORRELATED
        return self.written(factor) if is_known else MISSING


def percentiles(
    seconds: npt.ArrayLike | Sequence[npt.ArrayLike], levels: Iterable[float] = LEVELS
) -> tuple[Percentile, ...]:
    """Estimate percentiles, and their 99% intervals between two samples.

    Parameters
    ----------
    seconds : array of shape (samples,) or sequence of such arrays
        Latencies in the order in which they were taken. Several arrays are those of processes, or
        of turns; their lengths may differ.
    levels : iterable of float
        Between 0 and 100, both excluded.

    Returns
    -------
    tuple of Percentile
        In the order of *levels*. There is no interval when the samples are too few for the two
        ranks to exist: the 99th percentile needs 528 independent ones, which takes about 570
        samples at least because their correlation is estimated too.

    Raises
    ------
    InvalidArgumentError
        There is no sample, or a level is out of range.

    Notes
    -----
    The number of independent samples below the percentile is binomial: its quantiles are the ranks
    of the interval. Correlated samples count for fewer: their number is divided by the sum of the
    autocorrelations of the latencies, or of "below the percentile, or not" if it is larger, for
    this percentile and those that are shown below it; in the window of Sokal (*Monte Carlo methods
    in statistical mechanics*, 1997) and with its standard error. From 3 arrays on, the variance
    between arrays divides it if it is larger still, with its degrees of freedom (Korn and Graubard,
    *Confidence intervals for proportions with small expected number of positive counts*, 1998).

    Examples
    --------
    >>> samples = np.random.default_rng(0).permutation(101) / 1000
    >>> median, p99 = percentiles(samples, [50, 99])
    >>> print(median.cell(1e3), p99.cell(1e3))
    50 [37, 63] -
    """
    rows = _latency_rows(seconds)
    wanted = [float(level) for level in levels]
    if wrong := [n for n in wanted if not 0 < n < 100]:  # noqa: PLR2004
        raise InvalidArgumentError(f"{wrong[0]:g}%. Accepted: between 0 and 100, both excluded")
    ordered = np.sort(np.concatenate(rows))
    effective = _effective_size(rows, LEVEL)
    by_level = {}
    for level in sorted({*LEVELS, *wanted}):
        value = float(np.percentile(ordered, level))
        # A queue is more correlated than its tail shows, and a slow spell shows in the tail alone:
        # a tail is never better known than what is below it.
        effective = min(effective, _effective_size([row <= value for row in rows], LEVEL))
        ranks = _ranks(len(ordered), effective, level / 100, LEVEL)
        low, high = (float(ordered[rank - 1]) for rank in ranks) if ranks else (None, None)
        are_many = ranks or _ranks(len(ordered), len(ordered), level / 100, LEVEL)
        how = _CORRELATED if are_many and not ranks else ""
        by_level[level] = Percentile(value, low, high, how=how, unit="s", level=level)
    return tuple(by_level[level] for level in wanted)


def _latency_rows(seconds: Any) -> list[_Array]:
    several = isinstance(seconds, Sequence) and any(np.ndim(row) for row in seconds)
    rows = [np.asarray(row, np.float64) for row in (seconds if several else np.atleast_2d(seconds))]
    rows = [row for row in rows if row.size]
    if not rows or any(row.ndim != 1 for row in rows):
        raise InvalidArgumentError("there is no latency. Accepted: at least one, in flat arrays")
    return rows


def _effective_size(rows: Sequence[npt.NDArray[Any]], confidence: float) -> float:
    """Return how many independent samples would tell as much of the mean."""
    count = sum(map(len, rows))
    pooled = np.concatenate(rows)
    mean, variance = float(pooled.mean()), float(pooled.var())
    if variance == 0:
        return count
    deviations = [row - mean for row in rows]
    inflation = _correlation_sum(deviations, variance)
    if len(rows) >= MIN_PROCESSES:
        from scipy.special import ndtri

        tail = (1 + confidence) / 2
        between = sum(float(row.sum()) ** 2 for row in deviations) / (count * variance)
        between *= len(rows) / (len(rows) - 1)
        ratio = float(student_quantile(len(rows) - 1, tail) / ndtri(tail))
        inflation = max(inflation, between * ratio**2)
    return count / max(inflation, 1.0)


def _correlation_sum(deviations: list[_Array], variance: float) -> float:
    """Sum the autocorrelations up to the lag where they are noise, and add the error of the sum."""
    longest, count = max(map(len, deviations)), sum(map(len, deviations))
    # Twice as long: the transform is circular; a power of two: it is fast.
    length = 1 << (2 * longest - 1).bit_length()
    power = sum(np.abs(np.fft.rfft(row, length)) ** 2 for row in deviations)
    total = np.fft.irfft(power, length)[:longest]
    sums = 2 * np.cumsum(total / (count * variance)) - 1
    noise = np.flatnonzero(np.arange(longest) >= _LAGS * sums)
    lag = int(noise[0]) if noise.size else longest - 1
    return float(sums[lag]) * (1 + math.sqrt(2 * (2 * lag + 1) / count))


def _ranks(count: int, effective: float, share: float, confidence: float) -> tuple[int, int] | None:
    """Return the ranks of the two samples that the percentile lies between, from 1."""
    size = math.floor(effective)
    # The rank from above is that of the complement from below.
    low, high = (_rank_below(size, x, (1 - confidence) / 2) for x in (share, 1 - share))
    if low < 1 or high < 1:
        return None
    return math.floor((low - 1) * count / size) + 1, math.ceil((size + 1 - high) * count / size)


def _rank_below(size: int, share: float, tail: float) -> int:
    """Return the largest rank whose sample is above the percentile with this probability at most.

    The percentile is below the sample of rank k if fewer than k samples are below it, whose number
    is binomial.
    """
    from scipy.special import bdtr

    return int(np.searchsorted(bdtr(np.arange(size), size, share), tail, side="right"))


def percentile_rows(results: Comparison, unit: str = "ms") -> dict[str, dict[str, str]]:
    """Return the percentiles of each candidate, as texts.

    Parameters
    ----------
    results : Comparison
        Returned by :func:`~ortmeter.timing.measure`.
    unit : {"s", "ms", "µs"}
        Unit of the columns.

    Returns
    -------
    dict of str to dict of str to str
        By candidate, ``p90 (ms)``, ``p95 (ms)`` and ``p99 (ms)``, beside the median of the
        comparison: texts such as ``12.1 [12.0, 12.4]``, ``12.1`` where the samples are too
        correlated for an interval, or a dash where they are too few. A sample that is the mean of
        several calls says nothing of the percentiles of a call: there are none without others.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.timing import Comparison, Measurement
    >>> seconds = np.random.default_rng(0).uniform(1e-3, 2e-3, (1, 2000))
    >>> percentile_rows(Comparison([Measurement("model", seconds)]))["model"]["p90 (ms)"]
    '1.9 [1.88, 1.92]'
    """
    if all(m.number > 1 for m in results.values()):
        return {}
    texts = {
        name: percentile_texts(() if m.number > 1 else percentiles(list(m.seconds)), unit)
        for name, m in results.items()
    }
    median = f"p50 ({unit})"  # of all samples, which is not the median of the comparison
    return {
        name: {c: text for c, text in row.items() if c != median} for name, row in texts.items()
    }


def why_missing(results: Comparison) -> str:
    """Say what the dashes of a table of percentiles mean."""
    means = any(measured.number > 1 for measured in results.values())
    return f"{MISSING_NOTE}, or means of several calls" if means else MISSING_NOTE


def percentile_texts(row: Iterable[Percentile], unit: str) -> dict[str, str]:
    """Write the cells of a row: an interval or a dash for each level that is shown."""
    texts = {percentile.level: percentile.cell(UNITS[unit]) for percentile in row}
    return {f"p{level:g} ({unit})": texts.get(level, MISSING) for level in LEVELS}
