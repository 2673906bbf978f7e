"""Which cells of a matrix are slower, or faster, than the best candidate before them.

The speedup of a cell is over the best earlier candidate: the lowest of its speedups over each one.
Each set of processes gives the logarithm of one ratio, since its candidates are interleaved.
Student's test is over the sets of all passes, and each pass must show the difference alone. A cell
is slower when it is slower than one earlier candidate (Bonferroni over them), faster when it is
faster than all of them. Claims are held to a false discovery rate over the whole matrix (Benjamini
and Hochberg, *Controlling the false discovery rate*, 1995), and intervals to the coverage that goes
with it (Benjamini and Yekutieli, *False discovery rate-adjusted multiple confidence intervals for
selected parameters*, 2005): the interval of a claim excludes the effects that are too small.

``_benchmarks/matrix_error.py`` measures the false claims.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate
from ortmeter.observatory.matrix import ROWS
from ortmeter.timing.statistics import MIN_PROCESSES, student_quantile

__all__ = ["claim_level", "claimed", "compare_cells", "estimates"]

_ERROR = 0.01  # expected share of false claims among the claims
_Array = npt.NDArray[np.float64]


def compare_cells(
    times: pd.DataFrame,
    order: Sequence[str],
    *,
    min_effect: float = 0.05,
    level: float | None = None,
) -> pd.DataFrame:
    """Compare each candidate with the best one before it, case by case.

    Parameters
    ----------
    times : pandas.DataFrame
        Median times (µs), see :class:`~ortmeter.observatory.matrix.Matrix`.
    order : sequence of str
        Columns of the candidates, the oldest first.
    min_effect : float
        Smallest relative difference worth a claim: 0.5 for "more than 1.5 times slower".
    level : float, optional
        Largest ``p`` of a claim, by default that of Benjamini and Hochberg for 1% of false claims.

    Returns
    -------
    pandas.DataFrame
        Index ``threads``, ``case``, ``candidate``, without the first candidate. Columns:
        ``baseline``, the best earlier candidate; ``before`` and ``after``, median times (µs);
        ``speedup`` over the baseline, geometric mean of the sets, with its interval ``low`` and
        ``high``; ``p``; ``verdict``, ``faster``, ``slower``, ``undecided`` or ``absent``, empty for
        the first candidate that runs the case.

    Raises
    ------
    InvalidArgumentError
        There are less than two candidates, one is not a column, or a number is out of range.

    Notes
    -----
    A pass shows a difference beyond *min_effect* at the level of 1%. When all passes do, ``p`` is
    that of all the sets, and else that of the least favourable pass. A pass of less than three sets
    decides nothing.

    Examples
    --------
    >>> sets = [[1], range(2), range(4), ["Abs", "Exp"]]
    >>> index = pd.MultiIndex.from_product(sets, names=ROWS)
    >>> times = pd.DataFrame({"1.30": 10.0, "1.31": [10.0, 20.0] * 8}, index=index)
    >>> compare_cells(times, ["1.30", "1.31"])["verdict"].tolist()
    ['undecided', 'slower']
    """
    unknown = [name for name in order if name not in times.columns]
    if unknown or len({*order}) < max(len(order), 2):
        raise InvalidArgumentError(
            f"order={list(order)!r}. Accepted: two candidates or more of "
            f"{', '.join(map(str, times.columns))}"
        )
    if not 0 <= min_effect < math.inf or not (level is None or 0 < level < 1):
        raise InvalidArgumentError(
            f"min_effect={min_effect!r}, level={level!r}. Accepted: an effect from 0, a "
            "level between 0 and 1"
        )
    axes = [times.index.unique(name) for name in ROWS]
    # By threads, pass, set, case, candidate.
    table = times[list(order)].reindex(pd.MultiIndex.from_product(axes, names=ROWS))
    logs = np.log(table.to_numpy(float)).reshape(*map(len, axes), len(order))
    pairs = [_Pairs(logs[..., :j], logs[..., j]) for j in range(1, len(order))]
    p = np.stack([pair.p_value(math.log1p(min_effect)) for pair in pairs], axis=-1)
    if level is None:
        level = claim_level(p)
    bounds = [pair.interval(level) for pair in pairs]
    with np.errstate(over="ignore"):
        low, high = (np.exp(np.stack(side, axis=-1)) for side in zip(*bounds, strict=True))
    best = np.stack([pair.best for pair in pairs], axis=-1)
    speedup = np.exp(np.stack([pair.least(pair.all.means) for pair in pairs], axis=-1))
    medians = table.groupby(level=["threads", "case"], sort=False).median().to_numpy()
    medians = medians.reshape(logs.shape[0], *logs.shape[3:])
    before = np.take_along_axis(medians, best, axis=-1)
    is_absent, is_tested = np.isnan(medians[..., 1:]), np.isfinite(p)
    conditions = [is_absent, ~is_tested, (p <= level) & (speedup > 1), p <= level]
    cells = {
        "baseline": np.where(is_tested, np.asarray(order)[best], ""),
        "before": np.where(is_tested, before, np.nan),
        "after": medians[..., 1:],
        "speedup": speedup,
        "low": low,
        "high": high,
        "p": p,
        "verdict": np.select(conditions, ["absent", "", "faster", "slower"], "undecided"),
    }
    threads, _, _, cases = axes
    index = pd.MultiIndex.from_product(
        [threads, cases, list(order)[1:]], names=["threads", "case", "candidate"]
    )
    return pd.DataFrame({name: values.ravel() for name, values in cells.items()}, index=index)


def claim_level(p: npt.ArrayLike) -> float:
    """Return the largest ``p`` of a claim; the intervals hold at 1 minus this level.

    Parameters
    ----------
    p : array
        Those of the cells, see :func:`compare_cells`.

    Returns
    -------
    float
        1% times the share of the cells that are claimed.

    Examples
    --------
    >>> claim_level([1e-4, 0.5])
    0.005
    """
    from scipy.stats import false_discovery_control

    known = np.asarray(p, float)
    tested: _Array = known[np.isfinite(known)]
    if not tested.size:
        return _ERROR
    rejected = int(np.count_nonzero(false_discovery_control(tested) <= _ERROR))
    return _ERROR * max(rejected, 1) / tested.size


def claimed(cells: pd.DataFrame, release: str, verdict: str) -> pd.DataFrame:
    """Return the cells of a release that are slower than the best one before, or faster than all.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    release : str
        A candidate.
    verdict : str
        ``slower``, the worst first, or ``faster``, the best first.

    Returns
    -------
    pandas.DataFrame
        The cells, index ``threads`` and ``case``, with a column ``since``: the first candidate of
        the run of equal verdicts that ends at this release.

    Raises
    ------
    InvalidArgumentError
        The candidate was not compared with an earlier one.

    Examples
    --------
    >>> sets = [[1], range(2), range(4), ["Abs", "Exp"]]
    >>> index = pd.MultiIndex.from_product(sets, names=ROWS)
    >>> times = pd.DataFrame({"1.29": 10.0, "1.30": [10.0, 20.0] * 8}, index=index)
    >>> times["1.31"] = times["1.30"]
    >>> claimed(compare_cells(times, list(times)), "1.31", "slower")["since"].to_dict()
    {(1, 'Exp'): '1.30'}
    """
    table = cells.pivot_table(
        "verdict", ["threads", "case"], "candidate", aggfunc="first", sort=False
    )
    if release not in table.columns:
        raise InvalidArgumentError(
            f"release={release!r}. Accepted: {', '.join(map(str, table.columns))}"
        )
    table = table.loc[table[release] == verdict, :release]
    # Backwards, the columns that are equal to the last one until the first that is not.
    run = (table == verdict).iloc[:, ::-1].cumprod(axis=1).sum(axis=1)
    first = table.columns.to_numpy()[len(table.columns) - run.to_numpy(int)]
    own = cells.xs(release, level="candidate")
    own = own[own["verdict"] == verdict].join(
        pd.Series(first, index=table.index, name="since", dtype=str)
    )
    return own.sort_values("speedup", ascending=verdict == "slower", kind="stable")


def estimates(cells: pd.DataFrame, *, slower: bool = False) -> "pd.Series[Any]":
    """Make an estimate of each speedup.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    slower : bool
        Whether to tell how many times slower each cell is, instead of how many times faster.

    Returns
    -------
    pandas.Series
        An :class:`~ortmeter.evidence.Estimate` for each row that has a speedup, without interval
        where the sets are too few.

    Examples
    --------
    >>> cells = pd.DataFrame({"speedup": [0.5], "low": [0.4], "high": [0.625]}, index=["Exp"])
    >>> str(estimates(cells)["Exp"]), str(estimates(cells, slower=True)["Exp"])
    ('0.5 [0.4, 0.625]', '2 [1.6, 2.5]')
    """
    known = cells.dropna(subset="speedup")
    numbers = 1 / known[["speedup", "high", "low"]] if slower else known[["speedup", "low", "high"]]
    rows = numbers.astype(object).where(numbers.notna(), None).itertuples(index=False)
    return pd.Series([Estimate(*row) for row in rows], index=known.index, dtype=object)


class _Student:
    """Means of logarithms, their standard errors and degrees of freedom, NaN without enough."""

    def __init__(self, logs: _Array, axes: tuple[int, ...]) -> None:
        known = np.ma.masked_invalid(logs)
        count = known.count(axes)
        errors = np.ma.sqrt(known.var(axes, ddof=1) / count).filled(np.nan)
        # Equal ratios have no error: it stays positive, so that there is a quotient.
        errors = np.maximum(errors, np.finfo(float).tiny)
        self.errors = np.where(count >= MIN_PROCESSES, errors, np.nan)
        self.means: _Array = known.mean(axes).filled(np.nan)
        self.freedom = np.maximum(count - 1.0, 1)

    def tails(self, effect: float) -> _Array:
        """Test that the means are within an effect: the p-values of below, and of above."""
        from scipy.special import stdtr

        with np.errstate(over="ignore"):
            sides = np.stack([self.means + effect, effect - self.means]) / self.errors
        p = stdtr(self.freedom, sides)
        return np.where(np.isnan(p), 1.0, p)

    def end(self, tail: float | _Array) -> _Array:
        """Return the lower end of intervals that miss with this probability on that side."""
        return self.means + student_quantile(self.freedom, tail) * self.errors


class _Pairs:
    """Logarithms of the speedups of one candidate over each earlier one.

    Arrays have the shape (threads, cases, earlier candidates), without the last one once the best
    is chosen.
    """

    def __init__(self, earlier: _Array, later: _Array) -> None:
        logs = earlier - later[..., None]  # threads, passes, sets, cases, earlier candidates
        self.passes, self.all = _Student(logs, (2,)), _Student(logs, (1, 2))
        self.runs = np.isfinite(self.all.means)
        self.count = self.runs.sum(axis=-1)

    @property
    def best(self) -> npt.NDArray[np.int64]:
        """Rank of the best earlier candidate."""
        return np.asarray(np.where(self.runs, self.all.means, np.inf).argmin(axis=-1))

    def least(self, values: _Array) -> _Array:
        """Lowest value of the earlier candidates that ran."""
        least = np.where(self.runs, values, np.inf).min(axis=-1)
        return np.where(self.count > 0, least, np.nan)

    def p_value(self, effect: float) -> _Array:
        """Test that the speedup over the best one is within an effect; NaN where there is none."""
        together, alone = self.all.tails(effect), self.passes.tails(effect).max(axis=2)
        slower, faster = np.where(alone <= _ERROR / 2, together, np.maximum(together, alone))
        slower = self.least(slower) * self.count
        faster = np.where(self.runs, faster, 0.0).max(axis=-1)
        return np.asarray(np.minimum(2 * np.minimum(slower, faster), 1.0))

    def interval(self, level: float) -> tuple[_Array, _Array]:
        """Bound the speedup over the best one."""
        count = np.maximum(self.count, 1)[..., None]
        high = 2 * self.all.means - self.all.end(level / 2 / count)
        return self.least(self.all.end(level / 2)), self.least(high)
