"""What a sweep measured, on its grid: candidates compared in several runs of each configuration."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ortmeter.dtypes import numpy_dtype
from ortmeter.plotting.sweep import is_number
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.timing import Comparison, Measurement, speedup
from ortmeter.timing.claims import Claim

_T = TypeVar("_T")
_K = TypeVar("_K")

MACHINE = "machine"
# The option of the pages for the type of elements, by its number in ONNX, and what is shown.
_ITYPE, _TYPE = "itype", "type"


@dataclass(frozen=True)
class Cell:
    """A group of candidates at one place of the grid, what each run measured there.

    The coordinates are the options that vary, the machine, the axis of the measurements.
    """

    page: str
    group: str
    coordinates: Mapping[str, Any]
    runs: dict[int, Comparison] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates that every run has, in the order of the page."""
        first, *others = self.runs.values()
        return tuple(name for name in first if all(name in other for other in others))

    def samples(self, candidate: str) -> Measurement:
        """All the samples of a candidate, in one row."""
        samples = [measured[candidate].seconds.ravel() for measured in self.runs.values()]
        return Measurement(candidate, np.concatenate(samples)[None])


def make_cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """Gather the runs of each place of the grid, page by page and group by group."""
    varying = varying_options(outcome.task for outcome in outcomes)
    cells: dict[tuple[Any, ...], Cell] = {}
    groups: dict[tuple[str, str], None] = {}
    for outcome in outcomes:
        if outcome.record is None:
            continue
        for group, where, found in outcome.record.comparisons():
            page, place = outcome.task.page, make_coordinates(outcome, varying, where)
            groups[page, group] = None
            cell = cells.setdefault((page, group, *place.items()), Cell(page, group, place))
            cell.runs[outcome.task.run] = found
    ranks = list(groups)
    return sorted(cells.values(), key=lambda cell: ranks.index((cell.page, cell.group)))


def varying_options(tasks: Iterable[Task]) -> dict[str, tuple[Any, ...]]:
    """Find the options that have several values, as numbers when all of them are.

    >>> varying_options([Task("plot_x", {"size": n, "threads": "1"}) for n in ("8", "16")])
    {'size': (8, 16)}
    """
    texts: dict[str, dict[str, None]] = {}
    for task in tasks:
        for name, text in task.options.items():
            texts.setdefault(name, {})[text] = None
    return {name: _as_numbers(tuple(found)) for name, found in texts.items() if len(found) > 1}


def make_coordinates(
    outcome: Outcome,
    varying: Mapping[str, tuple[Any, ...]],
    where: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Place a task, or *where* inside its page it measured or said something, on the grid.

    Element types are named; an axis that has the name of an option and another value, one of those
    that the option lists, is "measured".
    """
    options = dict(
        _coordinate(name, outcome.task.options[name], is_numeric=all(map(is_number, values)))
        for name, values in varying.items()
        if name in outcome.task.options
    )
    options[MACHINE] = outcome.machine
    inside = {
        f"{name} measured" if options.get(name, value) != value else name: value
        for name, value in (where or {}).items()
    }
    return {**options, **inside}


def group_by(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Gather what has the same key, in the order of the items."""
    groups: dict[_K, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def varying_names(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the coordinates that do not have one value everywhere."""
    names = dict.fromkeys(name for place in places for name in place)
    return [name for name in names if len({place.get(name) for place in places}) > 1]


def _coordinate(name: str, text: str, *, is_numeric: bool) -> tuple[str, Any]:
    if not is_numeric:
        return name, text
    (value,) = _as_numbers((text,))
    return (_TYPE, str(numpy_dtype(value))) if name == _ITYPE else (name, value)


def _as_numbers(texts: tuple[str, ...]) -> tuple[Any, ...]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return texts
    return tuple(int(v) if v.is_integer() else v for v in values)


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
        found = self._intervals
        return statistics.mean(math.log(high / low) / 2 for low, high in found) if found else None

    @property
    def runs_differ(self) -> bool | None:
        """Whether the intervals of two runs have no common point, None without intervals.

        Each one misses what it estimates in less than 1 % of the cases. That two of them do not
        meet is rarer still when the runs have one ratio: the test is conservative.
        """
        lows, highs = zip(*self._intervals, strict=True) if self._intervals else ((), ())
        return max(lows) > min(highs) if lows else None

    @property
    def _intervals(self) -> list[tuple[float, float]]:
        """Those of all the runs, none when a run has too few samples."""
        runs = self.runs.values()
        found = [(c.low, c.high) for c in runs if c.low is not None and c.high is not None]
        return found if len(found) == len(runs) else []


def compare_cell(cell: Cell, baseline: str | None = None) -> list[RunComparison]:
    """Compare the candidates of a place with the baseline, the first one where it is absent.

    Over several runs, each one gives one number, its ratio, and the interval is Student's over
    runs, from 3: what changes from a process to the next is in it. A run alone has the interval of
    its own samples.
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
