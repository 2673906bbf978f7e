"""Which cells of a matrix are slower, or faster, than the best contender before them.

The speedup of a cell is over the best earlier contender: the lowest of its speedups over each one.
Each set of processes of a pass gives the logarithm of one ratio, since its contenders ran in turn;
Student's test is over the sets. A cell is slower when it is so beside one earlier contender
(Bonferroni over them), faster when it is so beside all of them, and in every pass. Claims are held
to a false discovery rate over the whole matrix (Benjamini and Hochberg, *Controlling the false
discovery rate*, 1995), and the intervals to the matching coverage (Benjamini and Yekutieli, *False
discovery rate-adjusted multiple confidence intervals for selected parameters*, 2005): a cell is
claimed when its interval excludes the effects that are too small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.matrix import AGAIN, ROWS
from ortmeter.timing.statistics import MIN_PROCESSES

#: Verdicts on a cell; the first contender that runs a case has none, an empty text.
VERDICTS = ("faster", "slower", "undecided", "absent")

_CLAIMED = ("faster", "slower")
_Array = npt.NDArray[np.float64]


def compare_cells(
    times: pd.DataFrame,
    order: Sequence[str],
    *,
    min_effect: float = 0.05,
    error: float = 0.01,
    level: float | None = None,
) -> pd.DataFrame:
    """Compare each contender with the best one before it, case by case.

    Parameters
    ----------
    times : pandas.DataFrame
        Median times (µs), see :class:`~ortmeter.observatory.matrix.Matrix`.
    order : sequence of str
        Columns of the contenders, the oldest first.
    min_effect : float
        Smallest relative difference worth a claim: 0.5 for "more than 1.5 times slower".
    error : float
        Expected share of false claims among the claims.
    level : float, optional
        Largest ``p`` of a claim, by default that of Benjamini and Hochberg for *error*.

    Returns
    -------
    pandas.DataFrame
        Index ``threads``, ``case``, ``contender``, without the first contender. Columns:
        ``baseline``, the best earlier contender; ``before`` and ``after``, median times (µs);
        ``speedup`` over the baseline, geometric mean of the sets, with its interval ``low`` and
        ``high``; ``p``; ``verdict``, one of :data:`VERDICTS`, empty for the first contender that
        runs the case.

    Raises
    ------
    InvalidArgumentError
        There are less than two contenders, one is not a column, or a number is out of range.

    Notes
    -----
    The interval is the hull of those of the passes. A pass of less than three sets decides nothing.

    Examples
    --------
    >>> sets = [[1], range(2), range(4), ["Abs", "Exp"]]
    >>> index = pd.MultiIndex.from_product(sets, names=ROWS)
    >>> times = pd.DataFrame({"1.30": 10.0, "1.31": [10.0, 20.0] * 8}, index=index)
    >>> compare_cells(times, ["1.30", "1.31"])["verdict"].tolist()
    ['undecided', 'slower']
    """
    _check(times, order, min_effect, error, level)
    axes = [times.index.unique(name) for name in ROWS]
    # By threads, pass, set, case, contender.
    table = times[list(order)].reindex(pd.MultiIndex.from_product(axes, names=ROWS))
    measured = table.to_numpy(float).reshape(*map(len, axes), len(order))
    logs = np.log(measured)
    pairs = [_pairs(logs[..., :j], logs[..., j]) for j in range(1, len(order))]
    p = np.stack([found.p_value(math.log1p(min_effect)) for found in pairs], axis=-1)
    if level is None:
        level = _level(p, error)
    bounds = [found.interval(level) for found in pairs]
    low, high = (np.exp(np.stack(side, axis=-1)) for side in zip(*bounds, strict=True))
    best = np.stack([found.best for found in pairs], axis=-1)
    speedup = np.exp(np.stack([found.lowest for found in pairs], axis=-1))
    medians = _median(measured)
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
        [threads, cases, list(order)[1:]], names=["threads", "case", "contender"]
    )
    return pd.DataFrame({name: values.ravel() for name, values in cells.items()}, index=index)


def control_claims(
    times: pd.DataFrame,
    last: str,
    *,
    min_effect: float = 0.05,
    error: float = 0.01,
    level: float | None = None,
) -> pd.DataFrame:
    """Compare the last contender with itself: every claim is false.

    Parameters
    ----------
    times : pandas.DataFrame
        With the control, see :func:`compare_cells`.
    last : str
        The contender that has a control.
    min_effect, error, level : float
        As in :func:`compare_cells`; ``level=claim_level(cells, error)`` judges the control as the
        matrix was.

    Returns
    -------
    pandas.DataFrame
        As :func:`compare_cells` does.
    """
    order = [last, last + AGAIN]
    return compare_cells(times, order, min_effect=min_effect, error=error, level=level)


def claim_level(cells: pd.DataFrame, error: float = 0.01) -> float:
    """Return the largest ``p`` of a claim; the intervals hold at 1 minus this level.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    error : float
        What it was given.

    Returns
    -------
    float
        *error* times the share of the cells that are claimed.
    """
    return _level(cells["p"].to_numpy(), error)


def since(cells: pd.DataFrame, release: str) -> "pd.Series[str]":
    """Return since which contender a release has its verdict, without a break.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    release : str
        A contender.

    Returns
    -------
    pandas.Series
        The first contender of the run of equal verdicts that ends at this release, index
        ``threads`` and ``case``; cells that are not faster or slower are left out.

    Raises
    ------
    InvalidArgumentError
        The contender was not compared with an earlier one.
    """
    table = cells.pivot_table(
        "verdict", ["threads", "case"], "contender", aggfunc="first", sort=False
    )
    if release not in table.columns:
        raise InvalidArgumentError(
            f"release={release!r}. Accepted: {', '.join(map(str, table.columns))}"
        )
    table = table.loc[:, :release]
    last = table[release]
    table = table[last.isin(_CLAIMED)]
    # Backwards, the columns that are equal to the last one until the first that is not.
    run = table.eq(last[table.index], axis=0).iloc[:, ::-1].cumprod(axis=1).sum(axis=1)
    first = table.columns.to_numpy()[len(table.columns) - run.to_numpy(int)]
    return pd.Series(first, index=table.index, name="since", dtype=str)


def losses(cells: pd.DataFrame, release: str) -> pd.DataFrame:
    """Return the cells of a release that are slower than the best one before, the worst first.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    release : str
        A contender.

    Returns
    -------
    pandas.DataFrame
        The cells, index ``threads`` and ``case``, with a column ``since``.
    """
    return _claimed(cells, release, "slower").sort_values("speedup", kind="stable")


def gains(cells: pd.DataFrame, release: str) -> pd.DataFrame:
    """Return the cells of a release that are faster than all those before, the best first.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`compare_cells`.
    release : str
        A contender.

    Returns
    -------
    pandas.DataFrame
        The cells, index ``threads`` and ``case``, with a column ``since``.
    """
    found = _claimed(cells, release, "faster")
    return found.sort_values("speedup", ascending=False, kind="stable")


def _claimed(cells: pd.DataFrame, release: str, verdict: str) -> pd.DataFrame:
    first = since(cells, release)
    found = cells.xs(release, level="contender")
    return found[found["verdict"] == verdict].join(first)


@dataclass(frozen=True)
class _Pairs:
    """Logarithms of the speedups of one contender over each earlier one.

    Arrays of shape (threads, passes, cases, earlier contenders), but for the last three, without
    passes: the mean over all sets, and which earlier contenders run the case.
    """

    means: _Array
    errors: _Array
    freedom: _Array
    overall: _Array
    runs: npt.NDArray[np.bool_]

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """How many earlier contenders there are, by threads and case."""
        return np.asarray(self.runs.sum(axis=-1))

    @property
    def best(self) -> npt.NDArray[np.int64]:
        """Rank of the best earlier contender."""
        return np.asarray(np.where(self.runs, self.overall, np.inf).argmin(axis=-1))

    @property
    def lowest(self) -> _Array:
        """Speedup over the best earlier contender, NaN where there is none."""
        found = np.where(self.runs, self.overall, np.inf).min(axis=-1)
        return np.where(self.count > 0, found, np.nan)

    def p_value(self, effect: float) -> _Array:
        """Test that the speedup over the best one is within an effect; NaN where there is none."""
        from scipy.special import stdtr

        # Of the least favourable pass; one that is too short decides nothing.
        slower, faster = (
            np.nan_to_num(stdtr(self.freedom, side / self.errors), nan=1.0).max(axis=1)
            for side in (self.means + effect, effect - self.means)
        )
        slower = np.where(self.runs, slower, 1.0).min(axis=-1, initial=1.0) * self.count
        faster = np.where(self.runs, faster, 0.0).max(axis=-1)
        p = np.minimum(2 * np.minimum(slower, faster), 1.0)
        return np.where(self.count > 0, p, np.nan)

    def interval(self, level: float) -> tuple[_Array, _Array]:
        """Bound the speedup over the best one: the hull of the passes."""
        from scipy.special import stdtrit

        count = np.maximum(self.count, 1)[:, None, :, None]
        least = self.means + stdtrit(self.freedom, level / 2) * self.errors
        most = self.means - stdtrit(self.freedom, level / 2 / count) * self.errors
        sides = (least.min(axis=1), most.max(axis=1))
        found = (np.where(self.runs, side, np.inf).min(axis=-1) for side in sides)
        low, high = (np.where(self.count > 0, side, np.nan) for side in found)
        return low, high


def _pairs(earlier: _Array, later: _Array) -> _Pairs:
    """Pair the times of each set, of shape (threads, passes, sets, cases, earlier contenders)."""
    logs = earlier - later[..., None]
    known = np.isfinite(logs)
    logs = np.where(known, logs, 0.0)
    count = known.sum(axis=2)
    is_enough = count >= MIN_PROCESSES
    means = logs.sum(axis=2) / np.maximum(count, 1)
    squares = np.where(known, logs - means[:, :, None], 0.0) ** 2
    variance = squares.sum(axis=2) / np.maximum(count - 1, 1)
    # Equal ratios have no error: it stays positive, so that there is a quotient.
    errors = np.maximum(np.sqrt(variance / np.maximum(count, 1)), np.finfo(float).tiny)
    runs = count.sum(axis=1) > 0
    overall = logs.sum(axis=(1, 2)) / np.maximum(count.sum(axis=1), 1)
    means, errors = (np.where(is_enough, array, np.nan) for array in (means, errors))
    return _Pairs(means, errors, np.maximum(count - 1, 1).astype(float), overall, runs)


def _level(p: _Array, error: float) -> float:
    """Return the largest p-value that Benjamini and Hochberg reject."""
    from scipy.stats import false_discovery_control

    tested = p[np.isfinite(p)]
    if not tested.size:
        return error
    rejected = int(np.count_nonzero(false_discovery_control(tested) <= error))
    return error * max(rejected, 1) / tested.size


def _median(measured: _Array) -> _Array:
    """Return the median of the sets of all passes, NaN where nothing was measured."""
    threads, passes, sets, cases, contenders = measured.shape
    rows = measured.transpose(0, 3, 4, 1, 2).reshape(-1, passes * sets)
    found = np.full(len(rows), np.nan)
    has_any = np.isfinite(rows).any(axis=1)
    found[has_any] = np.nanmedian(rows[has_any], axis=1)
    return found.reshape(threads, cases, contenders)


def _check(
    times: pd.DataFrame,
    order: Sequence[str],
    min_effect: float,
    error: float,
    level: float | None,
) -> None:
    unknown = [name for name in order if name not in times.columns]
    if unknown or len({*order}) < max(len(order), 2):
        raise InvalidArgumentError(
            f"order={list(order)!r}. Accepted: two contenders or more of "
            f"{', '.join(map(str, times.columns))}"
        )
    if not 0 <= min_effect < math.inf or not 0 < error < 1 or not (level is None or 0 < level < 1):
        raise InvalidArgumentError(
            f"min_effect={min_effect!r}, error={error!r}, level={level!r}. Accepted: an effect "
            "from 0, an error and a level between 0 and 1"
        )
