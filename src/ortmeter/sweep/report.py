"""Results of a sweep: candidates compared at each place of the grid, in one table."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd

from ortmeter.evidence import Speedup, rounded
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.timing import Comparison
from ortmeter.timing.statistics import geometric_mean

_MS = 1e3
_CONSTANTS = ("page", "group", "machine")
_BASELINE = {"speedup": 1.0, "low": 1.0, "high": 1.0, "verdict": "baseline", "each run": ""}
_MEDIAN = "median (ms)"


@dataclass(frozen=True)
class RunComparison:
    """A candidate beside its baseline at one place of the grid: in each run, in all together.

    Parameters
    ----------
    runs : mapping of int to Speedup
        What each process found, with the interval of its own samples.
    page, group : str
        What was swept, and which of its comparisons that is.

    Examples
    --------
    >>> from ortmeter.evidence import Estimate
    >>> found = [Speedup("one", "two", Estimate(x, x - 0.1, x + 0.1)) for x in (1.2, 1.5, 1.9)]
    >>> alike = RunComparison(dict(enumerate(found, 1)))
    >>> alike.stability, alike.overall.verdict
    ('faster in 3', 'undecided')
    """

    runs: Mapping[int, Speedup]
    page: str = ""
    group: str = ""

    @functools.cached_property
    def overall(self) -> Speedup:
        """All the runs together.

        Over several runs, each one gives one number, its ratio, and the interval is Student's over
        runs, from 3: what changes from a process to the next is in it. A run alone has the
        interval of its own samples.
        """
        first = next(iter(self.runs.values()))
        if len(self.runs) == 1:
            return first
        mean = geometric_mean([claim.ratio for claim in self.runs.values()])
        together = dataclasses.replace(mean, how=f"{len(self.runs)} runs")
        return msgspec.structs.replace(first, estimate=together)

    @property
    def coordinates(self) -> Mapping[str, Any]:
        """Where it was measured."""
        return next(iter(self.runs.values())).where

    @property
    def pair(self) -> tuple[str, str, str, str]:
        """Page, group, baseline and candidate."""
        return (self.page, self.group, self.overall.baseline, self.overall.subject)

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
    def stability(self) -> str:
        """What becomes of the verdict from run to run, ``faster in 2, no interval in 1``."""
        verdicts = (c.verdict if c.has_interval else "no interval" for c in self.runs.values())
        counts = Counter(verdicts).most_common()
        return ", ".join(f"{verdict} in {count}" for verdict, count in counts)


#: What each run measured at a place of the grid (page, group, options, machine, axis).
_Cell: TypeAlias = tuple[Mapping[str, Any], Mapping[int, Comparison]]


def _candidates(runs: Mapping[int, Comparison]) -> list[str]:
    """Name the candidates that every run has, in the order of the page."""
    first, *others = runs.values()
    return [name for name in first if all(name in other for other in others)]


def _compare(place: Mapping[str, Any], runs: Mapping[int, Comparison]) -> list[RunComparison]:
    """Compare the candidates with the first one, where they were taken in the same rounds."""
    baseline, *others = _candidates(runs) or [""]
    where = {name: value for name, value in place.items() if name not in ("page", "group")}
    found = []
    for name in others:
        pairs = [(run[baseline].seconds, run[name].seconds) for run in runs.values()]
        # A sample of 0 is below the resolution of the clock.
        if all(old.shape == new.shape and min(old.min(), new.min()) > 0 for old, new in pairs):
            claims = {n: run.speedup(baseline, name).at(**where) for n, run in runs.items()}
            found.append(RunComparison(claims, place["page"], place["group"]))
    return found


def _rows(place: Mapping[str, Any], runs: Mapping[int, Comparison]) -> Iterator[dict[str, Any]]:
    """Yield the place and the numbers of each candidate."""
    told: dict[str, dict[str, Any]] = {}
    for compared in _compare(place, runs):
        claim = compared.overall
        numbers = {"speedup": claim.ratio, "low": claim.low, "high": claim.high}
        words = {"verdict": claim.verdict, "each run": compared.stability}
        told[claim.baseline] = _BASELINE
        told[claim.subject] = {name: rounded(n) for name, n in numbers.items()} | words
    for name in _candidates(runs):
        samples = np.concatenate([measured[name].seconds.ravel() for measured in runs.values()])
        median = rounded(_MS * float(np.median(samples)))
        yield {**place, "candidate": name, _MEDIAN: median, **told.get(name, {})}


@dataclass(frozen=True, repr=False)
class SweepResult:
    """Outcomes of all the tasks of a sweep, see :func:`~ortmeter.sweep.run_sweep`.

    Parameters
    ----------
    outcomes : tuple of Outcome
        One for each task, in the order of the grid.
    output : Path
        Folder of the files.
    """

    outcomes: tuple[Outcome, ...]
    output: Path

    @property
    def done(self) -> tuple[Outcome, ...]:
        """Outcomes with a record."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "done")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Outcomes of tasks that ran and have no record."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    @functools.cached_property
    def _cells(self) -> list[_Cell]:
        """The runs of each place of the grid, page by page and group by group."""
        varying = varying_options(outcome.task for outcome in self.outcomes)
        cells: dict[tuple[Any, ...], tuple[dict[str, Any], dict[int, Comparison]]] = {}
        for outcome in self.outcomes:
            for group, where, measured in outcome.record.comparisons() if outcome.record else ():
                place = {"page": outcome.task.page, "group": group}
                place |= _coordinates(outcome, varying, where)
                _, runs = cells.setdefault(tuple(place.items()), (place, {}))
                runs[outcome.task.run] = measured
        order = list(dict.fromkeys((place["page"], place["group"]) for place, _ in cells.values()))
        return sorted(cells.values(), key=lambda c: order.index((c[0]["page"], c[0]["group"])))

    @property
    def comparisons(self) -> list[RunComparison]:
        """Every candidate compared with the first of its group, at every place of the grid.

        :func:`~ortmeter.plotting.speedup_plot` plots those of one pair.
        """
        return [comparison for cell in self._cells for comparison in _compare(*cell)]

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """One row per place of the grid and candidate.

        Index: options that vary, machine, axis of the measurements, candidate. Columns: ``median
        (ms)`` of all the samples, ``speedup`` over the first candidate and its interval,
        ``verdict``, ``each run``. What all the rows share is the name of the columns.
        """
        rows = [row for cell in self._cells for row in _rows(*cell)]
        columns = [_MEDIAN, *_BASELINE]
        # Objects: a row without a value must not turn sizes into floats.
        places = pd.DataFrame(rows, dtype=object).drop(columns=columns, errors="ignore").fillna("")
        constant = [name for name in _CONSTANTS if name in places and len({*places[name]}) == 1]
        legend = ", ".join(filter(None, (str(places[name].iloc[0]) for name in constant)))
        index = [*places.columns.difference([*constant, "candidate"], sort=False), "candidate"]
        table = places.reindex(columns=index).join(pd.DataFrame(rows, columns=columns))
        return table.set_index(index).rename_axis(columns=legend or None)

    @property
    def conclusion(self) -> list[str]:
        """Sentences: whether verdicts hold, then how many tasks have no result."""
        states = Counter(outcome.state for outcome in self.outcomes)
        failed, missing = states["failed"], states["missing"]
        lost = (
            f"{failed + missing} of {states.total()} tasks have no result: {failed} failed, "
            f"{missing} did not run"
        )
        return [_what_holds(self.comparisons), *[lost] * bool(failed + missing)]

    def parts(self) -> list[tuple[str, list[Any]]]:
        """Return titles, each with its tables and texts, as a report takes them."""
        lost = [outcome for outcome in self.outcomes if outcome.record is None]
        reasons = pd.DataFrame(
            [(str(o.task), o.machine, o.state, o.error) for o in lost],
            columns=["task", "machine", "state", "reason"],
        )
        outputs = [f"{o.task}: {o.error}\n{o.output}".strip() for o in lost if o.error]
        parts: list[tuple[str, list[Any]]] = [
            ("Over the grid", [self.table]),
            ("Tasks without a result", [reasons.set_index("task"), *outputs]),
        ]
        return [(title, items) for title, items in parts if len(items[0])]

    def __repr__(self) -> str:
        return "\n".join(self.conclusion)


def varying_options(tasks: Iterable[Task]) -> dict[str, bool]:
    """Find the options that have several values, and whether all of these are numbers.

    >>> varying_options([Task("plot_x", {"size": n, "threads": "1"}) for n in ("8", "16")])
    {'size': True}
    """
    texts: dict[str, set[str]] = {}
    for task in tasks:
        for name, text in task.options.items():
            texts.setdefault(name, set()).add(text)
    return {
        name: all(_as_number(text) is not None for text in values)
        for name, values in texts.items()
        if len(values) > 1
    }


def _coordinates(
    outcome: Outcome, varying: Mapping[str, bool], where: Mapping[str, Any]
) -> dict[str, Any]:
    """Place what a task measured on the grid.

    An axis that has the name of an option and another value, one of those that the option lists,
    is "measured".
    """
    place: dict[str, Any] = {}
    for name, is_numeric in varying.items():
        if (text := outcome.task.options.get(name)) is not None:
            place[name] = _as_number(text) if is_numeric else text
    place["machine"] = outcome.machine
    inside = {
        f"{name} measured" if place.get(name, value) != value else name: value
        for name, value in where.items()
    }
    return {**place, **inside}


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _what_holds(comparisons: Sequence[RunComparison]) -> str:
    repeated = [c for c in comparisons if len(c.runs) > 1]
    decided = [c for c in repeated or comparisons if c.is_decided]
    if not comparisons:
        return "No task has measurements to compare."
    if not decided:
        return "No comparison is decided."
    total = len(decided)
    text = f"One run of each configuration decides {total} comparisons"
    if repeated:
        text = f"{sum(c.holds for c in decided)} of {total} verdicts hold in all runs"
    undecided = len(repeated or comparisons) - total
    return f"{text}; undecided: {undecided}." if undecided else f"{text}."
