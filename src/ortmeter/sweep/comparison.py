"""Compare two candidates in several runs of a page, to know whether the verdict holds."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.sweep._cells import Cell
from ortmeter.timing import Measurement, speedup
from ortmeter.timing.claims import Claim

__all__ = ["RunComparison", "compare_cell"]


@dataclass(frozen=True)
class RunComparison:
    """A candidate beside its baseline, in every run of one configuration on one machine.

    Parameters
    ----------
    page, group : str
        Page, and where its data hold the measurements.
    runs : mapping of int to Claim
        What each run finds by itself.
    overall : Claim
        What all the runs say together; its place is what distinguishes this comparison from the
        others: options, machine, size.
    """

    page: str
    group: str
    runs: Mapping[int, Claim]
    overall: Claim

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.overall.baseline

    @property
    def candidate(self) -> str:
        """Name of the candidate."""
        return self.overall.candidate

    @property
    def coordinates(self) -> Mapping[str, Any]:
        """Place on the grid."""
        return self.overall.where

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speedup of each run."""
        return tuple(claim.ratio or math.nan for claim in self.runs.values())

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Verdict of each run."""
        return tuple(claim.verdict for claim in self.runs.values())

    @property
    def is_decided(self) -> bool:
        """Whether every run has an interval, and one at least a verdict that is not undecided."""
        known = all(claim.has_interval for claim in self.runs.values())
        return known and set(self.verdicts) != {"undecided"}

    @property
    def holds(self) -> bool:
        """Whether all the runs have the same verdict."""
        return len(set(self.verdicts)) == 1

    @property
    def is_reversed(self) -> bool:
        """Whether a run says faster and another one slower."""
        return {"faster", "slower"} <= set(self.verdicts)

    @property
    def stability(self) -> str:
        """What becomes of the verdict from run to run, ``faster in 2, undecided in 1``."""
        counts = Counter(self.verdicts).items()
        return ", ".join(f"{verdict} in {count}" for verdict, count in counts)

    @property
    def between(self) -> float | None:
        """Standard deviation of the logarithm of the ratio from run to run, None for one run."""
        return statistics.stdev(map(math.log, self.ratios)) if len(self.runs) > 1 else None

    @property
    def within(self) -> float | None:
        """Half-width of the interval that a run promises, in logarithm; the mean of the runs.

        None when a run has too few samples for an interval.
        """
        widths = [
            math.log(claim.high / claim.low) / 2
            for claim in self.runs.values()
            if claim.low is not None and claim.high is not None
        ]
        return statistics.mean(widths) if len(widths) == len(self.runs) else None

    @property
    def runs_differ(self) -> bool | None:
        """Whether the intervals of two runs have no common point, None without intervals.

        Notes
        -----
        Each interval alone misses what it estimates in less than 1 % of the cases. That two of them
        do not meet is rarer still when the runs have one ratio: the test is conservative.
        """
        lows = [claim.low for claim in self.runs.values() if claim.low is not None]
        highs = [claim.high for claim in self.runs.values() if claim.high is not None]
        if not len(lows) == len(highs) == len(self.runs):
            return None
        return max(lows) > min(highs)


def compare_cell(cell: Cell, baseline: str | None = None) -> list[RunComparison]:
    """Compare the candidates of a place of the grid with one of them, in every run.

    Parameters
    ----------
    cell : Cell
        Measurements of that place.
    baseline : str, optional
        Name of the baseline; the first candidate where this one was not measured.

    Returns
    -------
    list of RunComparison
        One for each other candidate that was measured in the same rounds.

    Notes
    -----
    Over several runs, each one gives one number, its ratio, and the interval is Student's over
    runs, from 3: what changes from a process to the next is in it. A run alone has the interval of
    its own samples.

    Examples
    --------
    >>> from ortmeter.timing import Comparison
    >>> run = Comparison([Measurement("slow", [[2.0] * 100]), Measurement("fast", [[1.0] * 100])])
    >>> (found,) = compare_cell(Cell("plot_x", "results", {}, {1: run, 2: run, 3: run}), "slow")
    >>> found.ratios, found.stability
    ((2.0, 2.0, 2.0), 'faster in 3')
    >>> print(found.overall)
    fast is 2.00 times faster than slow (99% interval 2.00 to 2.00, 3 runs)
    """
    reference = baseline if baseline in cell.candidates else next(iter(cell.candidates), None)
    return [
        _compare(cell, reference, name)
        for name in cell.candidates
        if reference is not None and name != reference and _may_compare(cell, reference, name)
    ]


def _may_compare(cell: Cell, baseline: str, candidate: str) -> bool:
    """Whether they were taken in the same rounds, by a clock that is fine enough."""
    pairs = [(run[baseline].seconds, run[candidate].seconds) for run in cell.runs.values()]
    return all(one.shape == two.shape and min(one.min(), two.min()) > 0 for one, two in pairs)


def _compare(cell: Cell, baseline: str, candidate: str) -> RunComparison:
    runs = {
        run: dataclasses.replace(measured.speedup(baseline, candidate), where=cell.coordinates)
        for run, measured in cell.runs.items()
    }
    overall = next(iter(runs.values()))
    if len(runs) > 1:
        ratios = np.array([[claim.ratio] for claim in runs.values()], dtype=np.float64)
        pair = Measurement(baseline, ratios), Measurement(candidate, np.ones_like(ratios))
        how = f"{len(runs)} runs"
        overall = dataclasses.replace(speedup(*pair), where=cell.coordinates, how=how)
    return RunComparison(cell.page, cell.group, runs, overall)
