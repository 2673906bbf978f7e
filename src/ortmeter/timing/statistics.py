"""Confidence intervals of the ratio of two latencies.

``_benchmarks/verdict_coverage.py`` measures how often they contain the true ratio.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

from ortmeter.evidence import Estimate

__all__ = ["estimate_mean", "estimate_ratio", "geometric_mean", "ratio_of_means"]

#: Processes that an interval needs, and how many there are where nobody asked.
MIN_PROCESSES, PROCESSES = 3, 5
#: Rounds that an interval needs in one process, to see how far its samples are correlated.
MIN_ROUNDS = 100

#: Standard deviation of the logarithm of the ratio of two sessions of one model, where nothing
#: else differs: ``real_aa.py --kind "one process"``. One process draws one pair.
SESSIONS = 0.011

_SHORTEST_BATCH = 3
_MIN_BATCHES = 10
_MOST_CORRELATED = 0.95
# Half-width of a logarithm: an interval beyond ten times the ratio says nothing, unless 1 is out.
_USELESS = math.log(10)
# Sampling stops when an interval is narrow, and some are narrow by chance: intervals are made for
# this share of the error that is allowed.
_ERROR_LEFT = 0.6
_Array = npt.NDArray[np.float64]


def log_ratio(
    baseline: _Array, candidate: _Array, confidence: float, *, by_ranks: bool = False
) -> tuple[float, float | None]:
    """Estimate the logarithm of the ratio of two latencies, and the half-width of its interval.

    Each row, a process or a set of sessions, gives the median of the ratios of samples taken *in
    turn*, and the geometric mean of the rows is the estimate: a machine that is slow for a while is
    slow for both, whereas the ratio of two medians depends on whose median fell into that while.

    Sets of sessions differ as processes do, and some by a lot: *by_ranks*, the estimate and the
    interval are those of Hodges and Lehmann (*Estimates of location based on rank tests*, 1963).
    Otherwise the interval is Student's over the rows (Kalibera and Jones, *Rigorous benchmarking in
    reasonable time*, 2013). In a single row, batches of consecutive rounds give the numbers of the
    interval: Student's is widened by their first autocorrelation, corrected for its bias (Kendall,
    *Note on bias in the estimation of autocorrelation*, 1954), both in the error and in the degrees
    of freedom. Batches of 3, 6, 12... rounds are tried, as long as there are 10; the widest
    interval is kept.
    """
    rows, rounds = baseline.shape
    logs = np.median(np.log(baseline / candidate), axis=1)
    mean, half = float(logs.mean()), math.inf
    if by_ranks:
        mean, half = _by_ranks(logs, confidence)
    elif rows >= MIN_PROCESSES:
        half = _half_width(logs, 1.0, confidence)
    elif rows == 1 and rounds >= MIN_ROUNDS:
        doublings = int(math.log2(rounds / (_SHORTEST_BATCH * _MIN_BATCHES)))
        lengths = (_SHORTEST_BATCH * 2**i for i in range(doublings + 1))
        batches = (_batch_logs(baseline[0], candidate[0], length) for length in lengths)
        half = max(_half_width(each, _inflation(each), confidence) for each in batches)
    return mean, half if half <= max(_USELESS, abs(mean)) else None


def welch_log_ratio(
    baseline: _Array, candidate: _Array, confidence: float
) -> tuple[float, float | None]:
    """Estimate the logarithm of the ratio of two latencies that were not interleaved.

    Each process gives the logarithm of its median; the interval is Welch's, over the processes of
    both, whose numbers may differ (Welch, *The generalization of Student's problem when several
    different population variances are involved*, 1947). It holds how far processes differ, not how
    far the machine drifted between the two. With few processes of unequal spread, Welch's is a
    little too narrow: it is made for a smaller error than the one that is allowed.
    """
    logs = [np.log(np.median(seconds, axis=1)) for seconds in (baseline, candidate)]
    log = float(logs[0].mean() - logs[1].mean())
    if min(map(len, logs)) < MIN_PROCESSES:
        return log, None
    errors = np.array([x.var(ddof=1) / len(x) for x in logs])
    error = float(errors.sum())
    if error == 0:
        return log, 0.0
    freedom = error**2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, logs, strict=True))
    half = student(freedom, confidence) * math.sqrt(error)
    return log, half if half <= _USELESS else None


def estimate_ratio(
    baseline: npt.ArrayLike, candidate: npt.ArrayLike, confidence: float = 0.99, how: str = ""
) -> Estimate:
    """Estimate the ratio of two positive numbers.

    Parameters
    ----------
    baseline, candidate : array of shape (processes, rounds)
        Samples of both, in the same unit.
    confidence : float
        Level of the interval.
    how : str
        How they were measured.

    Returns
    -------
    Estimate
        *baseline* over *candidate*; without interval when there are too few samples.

    Examples
    --------
    >>> found = estimate_ratio([[2.0], [2.2], [2.1]], [[1.0], [1.1], [1.0]])
    >>> round(found.value, 2), found.exceeds(1)
    (2.03, True)
    """
    log, half = log_ratio(np.asarray(baseline), np.asarray(candidate), confidence)
    return exponential(log, half, confidence, how)


def geometric_mean(values: npt.ArrayLike) -> Estimate:
    """Estimate the geometric mean of independent values.

    Parameters
    ----------
    values : array of shape (n,)
        Positive numbers.

    Returns
    -------
    Estimate
        With an interval at 99%; their median, without interval, when there are fewer than three.

    Examples
    --------
    >>> round(geometric_mean([1.0, 2.0, 4.0]).value, 3)
    2.0
    """
    column = np.ravel(values)[:, None]
    return estimate_ratio(column, np.ones_like(column), how=f"{len(column)} values")


def ratio_of_means(
    values: npt.ArrayLike, others: npt.ArrayLike, confidence: float = 0.99, how: str = ""
) -> Estimate:
    """Estimate the ratio of the means of numbers that were measured in turn.

    Parameters
    ----------
    values, others : array of shape (n,)
        Numbers that are not negative.
    confidence : float
        Level of the interval, that of Student over what each pair adds to the ratio.
    how : str
        How they were measured.

    Returns
    -------
    Estimate
        Mean of *values* over that of *others*; without interval when there are fewer than three.

    Examples
    --------
    >>> ratio_of_means([3.0, 1.0], [1.0, 1.0]).value
    2.0
    """
    ours, theirs = np.asarray(values, dtype=np.float64), np.asarray(others, dtype=np.float64)
    each = ours / ours.mean() - theirs / theirs.mean()
    half = _half_width(each, 1.0, confidence) if len(each) >= MIN_PROCESSES else math.inf
    log = math.log(ours.mean() / theirs.mean())
    return exponential(log, half if half <= max(_USELESS, abs(log)) else None, confidence, how)


def exponential(log: float, half: float | None, confidence: float, how: str) -> Estimate:
    """Return a ratio from its logarithm and the half-width of its interval."""
    low, high = (None, None) if half is None else (math.exp(log - half), math.exp(log + half))
    return Estimate(math.exp(log), low, high, confidence, how)


def is_faster_more_often(candidate: _Array, other: _Array, alpha: float = 0.01) -> bool:
    """One-sided sign test on paired rounds: whether a candidate is faster in enough of them.

    The candidates are interleaved. Disturbances that are longer than a round, or of one round only,
    do not decide.
    """
    from scipy.special import bdtrc

    won = int((candidate < other).sum())
    return bool(bdtrc(won - 1, candidate.size, 0.5) < alpha)


def estimate_mean(values: npt.ArrayLike, confidence: float = 0.99, unit: str = "") -> Estimate:
    """Estimate the mean of independent values.

    Parameters
    ----------
    values : array of shape (n,)
        Numbers.
    confidence : float
        Level of the interval, Student's.
    unit : str
        Unit of the values.

    Returns
    -------
    Estimate
        Without interval when there are fewer than three values.

    Examples
    --------
    >>> print(estimate_mean([1.0, 3.0, 2.0], 0.5))
    2 [1.2, 2.8] (50% CI)
    """
    array = np.asarray(values, dtype=np.float64)
    mean, how = float(array.mean()), f"{len(array)} values"
    if len(array) < MIN_PROCESSES:
        return Estimate(mean, None, None, confidence, how, unit)
    half = _half_width(array, 1.0, confidence)
    return Estimate(mean, mean - half, mean + half, confidence, how, unit)


def _by_ranks(logs: _Array, confidence: float) -> tuple[float, float]:
    """Return the median of the means of all pairs, and how far its interval goes.

    The interval has the values that Wilcoxon's test of signed ranks does not refuse.
    """
    i, j = np.triu_indices(len(logs))
    means = np.sort((logs[i] + logs[j]) / 2)
    middle, end = float(np.median(means)), _rank_of_end(len(logs), confidence)
    return middle, math.inf if end < 0 else float(
        max(middle - means[end], means[-1 - end] - middle)
    )


@functools.lru_cache(maxsize=256)
def _rank_of_end(count: int, confidence: float) -> int:
    """Return how many means of pairs are below the interval, -1 if they are too few for one."""
    chances = np.ones(1)  # of each sum of signed ranks
    for rank in range(1, count + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return int((np.cumsum(chances) <= _ERROR_LEFT * (1 - confidence) / 2).sum()) - 1


def _batch_logs(baseline: _Array, candidate: _Array, length: int) -> _Array:
    count = len(baseline) // length
    logs = np.log(baseline[: count * length] / candidate[: count * length])
    return np.asarray(np.median(logs.reshape(count, length), axis=1))


def _inflation(logs: _Array) -> float:
    """By how much the correlation of neighbours multiplies the variance of the mean."""
    deviations = logs - logs.mean()
    total = float(deviations @ deviations)
    if total == 0:
        return 1.0
    seen = float(deviations[1:] @ deviations[:-1]) / total
    correlation = min(max(seen + (1 + 3 * max(seen, 0.0)) / len(logs), 0.0), _MOST_CORRELATED)
    return (1 + correlation) / (1 - correlation)


def _half_width(logs: _Array, inflation: float, confidence: float) -> float:
    effective = len(logs) / inflation
    quantile = student(max(effective - 1, 1.0), confidence)
    return quantile * float(logs.std(ddof=1)) / math.sqrt(effective)


def student(freedom: float, confidence: float) -> float:
    """Return how many standard errors an interval goes away from its estimate, on each side."""
    return float(student_quantile(freedom, 1 - _ERROR_LEFT * (1 - confidence) / 2))


def student_quantile(freedom: npt.ArrayLike, share: npt.ArrayLike) -> _Array:
    """Return the quantiles of Student's distribution below which it has these shares."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, share))
