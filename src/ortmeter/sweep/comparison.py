"""Compare two candidates in several runs of a page, to know whether the verdict holds."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist, stdev
from typing import Any

from ortmeter.sweep._cells import Cell
from ortmeter.timing import Speedup, speedup

__all__ = ["Comparison", "compare_cell"]

_NO_DIFFERENCE = "no difference"
_LEVEL = 0.99


@dataclass(frozen=True)
class Comparison:
    """A candidate beside its baseline, in every run of one configuration on one machine.

    Parameters
    ----------
    page, group : str
        Page, and where its data hold the measurements.
    coordinates : mapping of str to object
        What distinguishes this comparison from the others: parameters, machine, size.
    runs : mapping of int to Speedup
        Speedup that each run finds by itself.
    overall : Speedup
        Speedup of all the runs together; its interval covers what changes from run to run.
    """

    page: str
    group: str
    coordinates: Mapping[str, Any]
    runs: Mapping[int, Speedup]
    overall: Speedup

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.overall.baseline

    @property
    def candidate(self) -> str:
        """Name of the candidate."""
        return self.overall.candidate

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speedup of each run."""
        return tuple(s.ratio for s in self.runs.values())

    @property
    def words(self) -> tuple[str, ...]:
        """Verdict of each run: ``faster``, ``slower`` or ``no difference``."""
        return tuple(s.verdict if s.is_claim else _NO_DIFFERENCE for s in self.runs.values())

    @property
    def holds(self) -> bool:
        """Whether all the runs have the same verdict."""
        return len(set(self.words)) == 1

    @property
    def is_reversed(self) -> bool:
        """Whether a run says faster and another one slower."""
        return {"faster", "slower"} <= set(self.words)

    @property
    def stability(self) -> str:
        """What becomes of the verdict from run to run, in words."""
        if len(self.runs) == 1:
            return "one run"
        if self.holds:
            return f"holds in {len(self.runs)} of {len(self.runs)} runs"
        return f"changes: {', '.join(f'{w} in {n}' for w, n in Counter(self.words).items())}"

    @property
    def between(self) -> float | None:
        """Standard deviation of the logarithm of the ratio from run to run, None for one run."""
        return stdev(map(math.log, self.ratios)) if len(self.runs) > 1 else None

    @property
    def within(self) -> float:
        """Standard error of the logarithm of the ratio that the samples of one run promise.

        Read from the width of the intervals, as for a normal law; root mean square over the runs.
        """
        errors = [
            math.log(s.high / s.low) / (2 * NormalDist().inv_cdf((1 + s.confidence) / 2))
            for s in self.runs.values()
        ]
        return math.hypot(*errors) / math.sqrt(len(errors))

    @property
    def excess(self) -> float | None:
        """How many times more the runs vary than the samples of one run promise."""
        if self.between is None:
            return None
        if self.within == 0:
            return math.inf if self.between > 0 else 0.0
        return self.between / self.within

    @property
    def process_matters(self) -> bool:
        """Whether the runs differ beyond what the samples of each one explain.

        Notes
        -----
        The square of :attr:`excess`, times the degrees of freedom, is compared with the 99 %
        quantile of a chi-square law, as in Cochran's test of homogeneity [1]_.

        References
        ----------
        .. [1] Cochran, *The combination of estimates from different experiments*, Biometrics 10,
           1954.
        """
        if self.excess is None:
            return False
        freedom = len(self.runs) - 1
        return freedom * self.excess**2 > _chi_square_quantile(freedom)


def compare_cell(cell: Cell, baseline: str | None = None) -> list[Comparison]:
    """Compare the candidates of a place of the grid with one of them, in every run.

    Parameters
    ----------
    cell : Cell
        Measurements of that place.
    baseline : str, optional
        Name of the baseline; the first candidate where this one was not measured.

    Returns
    -------
    list of Comparison
        One for each other candidate that was measured in the same rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.timing import Measurement
    >>> fast, slow = Measurement("fast", np.ones((1, 9))), Measurement("slow", np.full((1, 9), 2.0))
    >>> run = {"slow": slow, "fast": fast}
    >>> (found,) = compare_cell(Cell("plot_x", "results", {}, {1: run, 2: run}), "slow")
    >>> found.ratios, found.stability
    ((2.0, 2.0), 'holds in 2 of 2 runs')
    """
    reference = baseline if baseline in cell.candidates else next(iter(cell.candidates), None)
    return [
        _compare(cell, reference, name)
        for name in cell.candidates
        if reference is not None and name != reference and _taken_together(cell, reference, name)
    ]


def _taken_together(cell: Cell, baseline: str, candidate: str) -> bool:
    shapes = [
        (run[baseline].seconds.shape, run[candidate].seconds.shape) for run in cell.runs.values()
    ]
    return all(one == other for one, other in shapes)


def _compare(cell: Cell, baseline: str, candidate: str) -> Comparison:
    runs = {run: speedup(m[baseline], m[candidate]) for run, m in cell.runs.items()}
    overall = next(iter(runs.values()))
    if len(runs) > 1:
        overall = speedup(cell.samples(baseline), cell.samples(candidate))
    return Comparison(cell.page, cell.group, cell.coordinates, runs, overall)


def _chi_square_quantile(freedom: int) -> float:
    """Quantile of the chi-square law, by the approximation of Wilson and Hilferty (1931)."""
    shift = 2 / (9 * freedom)
    return freedom * (1 - shift + NormalDist().inv_cdf(_LEVEL) * math.sqrt(shift)) ** 3
