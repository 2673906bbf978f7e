"""Comparisons over the grid of a sweep: candidates in several runs, and conclusions."""

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from ortmeter.evidence import Claim, Note, Speedup, fact
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.statistics import geometric_mean

_T = TypeVar("_T")
_K = TypeVar("_K")

MACHINE = "machine"
_MANY = 4  # places that a sentence names, before it counts them


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
    >>> alike.stability, alike.runs_differ, alike.overall.verdict
    ('faster in 3', True, 'undecided')
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
        together = dataclasses.replace(geometric_mean(self.ratios), how=f"{len(self.runs)} runs")
        return msgspec.structs.replace(first, estimate=together)

    @property
    def coordinates(self) -> Mapping[str, Any]:
        """Where it was measured."""
        return next(iter(self.runs.values())).where

    @property
    def pair(self) -> tuple[str, str, str, str]:
        return (self.page, self.group, self.overall.baseline, self.overall.subject)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speedup of each run."""
        return tuple(claim.ratio for claim in self.runs.values())

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

    @property
    def between(self) -> float | None:
        """Standard deviation of the logarithm of the ratio from run to run, None for one run."""
        return statistics.stdev(map(math.log, self.ratios)) if len(self.runs) > 1 else None

    @property
    def within(self) -> float | None:
        """Half-width of the interval of a run, in logarithm, None when one has no interval."""
        ends = self._intervals
        return statistics.mean(math.log(high / low) / 2 for low, high in ends) if ends else None

    @property
    def runs_differ(self) -> bool | None:
        """Whether the intervals of two runs do not meet (rare for one ratio), None without any."""
        lows, highs = zip(*self._intervals, strict=True) if self._intervals else ((), ())
        return max(lows) > min(highs) if lows else None

    @property
    def _intervals(self) -> list[tuple[float, float]]:
        """Those of all the runs, none when a run has too few samples."""
        runs = self.runs.values()
        known = [(c.low, c.high) for c in runs if c.low is not None and c.high is not None]
        return known if len(known) == len(runs) else []


@dataclass(frozen=True)
class Cell:
    """A group of candidates at one place (options, machine, axis), what each run measured there."""

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

    def compare(self) -> list[RunComparison]:
        """Compare the candidates with the first one."""
        baseline, *others = self.candidates or ("",)
        compared = (
            {run: m.speedup(baseline, name).at(**self.coordinates) for run, m in self.runs.items()}
            for name in others
            if self._meet(baseline, name)
        )
        return [RunComparison(runs, self.page, self.group) for runs in compared]

    def _meet(self, baseline: str, candidate: str) -> bool:
        """Whether they were taken in the same rounds, by a clock that is fine enough."""
        pairs = [(run[baseline].seconds, run[candidate].seconds) for run in self.runs.values()]
        return all(old.shape == new.shape and min(old.min(), new.min()) > 0 for old, new in pairs)


def make_cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """Gather the runs of each place of the grid, page by page and group by group."""
    varying = varying_options(outcome.task for outcome in outcomes)
    cells: dict[tuple[Any, ...], Cell] = {}
    for outcome in outcomes:
        for group, where, measured in outcome.record.comparisons() if outcome.record else ():
            page, place = outcome.task.page, make_coordinates(outcome, varying, where)
            cell = cells.setdefault((page, group, *place.items()), Cell(page, group, place))
            cell.runs[outcome.task.run] = measured
    by_group = group_by(cells.values(), lambda cell: (cell.page, cell.group))
    return [cell for own in by_group.values() for cell in own]


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
        name: all(_number(text) is not None for text in values)
        for name, values in texts.items()
        if len(values) > 1
    }


def make_coordinates(
    outcome: Outcome, varying: Mapping[str, bool], where: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Place a task, or *where* inside its page it measured or said something, on the grid.

    Element types are named; an axis that has the name of an option and another value, one of those
    that the option lists, is "measured".
    """
    place: dict[str, Any] = {}
    for name, is_numeric in varying.items():
        if (text := outcome.task.options.get(name)) is None:
            continue
        place[name] = _number(text) if is_numeric else text
    place[MACHINE] = outcome.machine
    inside = {
        f"{name} measured" if place.get(name, value) != value else name: value
        for name, value in (where or {}).items()
    }
    return {**place, **inside}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def group_by(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Gather what has the same key, in the order of the items."""
    groups: dict[_K, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def conclude(
    outcomes: Sequence[Outcome], comparisons: Sequence[RunComparison]
) -> tuple[str | Claim, ...]:
    """Say whether verdicts hold, what was found over the grid, and what has no result."""
    return (
        _what_holds(comparisons),
        *_judge_tasks(outcomes),
        *_judge_candidates(comparisons),
        *_judge_runs([c for c in comparisons if len(c.runs) > 1]),
    )


def _what_holds(comparisons: Sequence[RunComparison]) -> str:
    repeated = [c for c in comparisons if len(c.runs) > 1]
    decided = [c for c in repeated or comparisons if c.is_decided]
    if not comparisons:
        return "No task has measurements to compare."
    if not decided:
        return "No comparison is decided."
    by_pair = group_by(comparisons, lambda c: c.pair)
    pairs = [own for own in by_pair.values() if any(c.is_decided for c in own)]
    steady = sum(len({v for c in own for v in c.verdicts}) == 1 for own in pairs)
    held, total = sum(c.holds for c in decided), len(decided)
    counts = [f"{held} of {total} verdicts hold in all runs"] if repeated else []
    if len(comparisons) > len(by_pair):
        verdicts = "" if counts else " verdicts hold"
        counts.append(f"{steady} of {len(pairs)}{verdicts} over the whole grid")
    text = ", ".join(counts) or f"One run of one configuration decides {total} comparisons"
    undecided = len(repeated or comparisons) - total
    return f"{text}; undecided: {undecided}." if undecided else f"{text}."


def _judge_tasks(outcomes: Iterable[Outcome]) -> Iterator[Claim]:
    states = Counter(outcome.state for outcome in outcomes)
    if lost := states.total() - states["done"]:
        yield fact(
            "{lost} of {total} tasks have no result: {failed} failed, {missing} did not run",
            lost=lost,
            total=states.total(),
            failed=states["failed"],
            missing=states["missing"],
        ).about("tasks")


def _judge_candidates(comparisons: Sequence[RunComparison]) -> Iterator[Claim]:
    """Say, for each candidate, what all the runs together say, place by place or counted."""
    shared = {MACHINE} if len({c.coordinates[MACHINE] for c in comparisons}) == 1 else set()
    varying = [n for n in ("page", "group") if len({getattr(c, n) for c in comparisons}) > 1]
    for (*_, baseline, candidate), own in group_by(comparisons, lambda c: c.pair).items():
        place = {name: getattr(own[0], name) for name in varying}
        if len(own) <= _MANY:
            places = [{n: v for n, v in c.coordinates.items() if n not in shared} for c in own]
            pairs = zip(own, places, strict=True)
            claims = [msgspec.structs.replace(c.overall, where=place | p) for c, p in pairs]
        else:
            claims = [_count_verdicts(own).at(**place, candidate=candidate, baseline=baseline)]
        yield from (claim.about("pair") for claim in claims)


def _count_verdicts(own: Sequence[RunComparison]) -> Note:
    values: dict[str, Any] = {"total": len(own)}
    parts = []
    for verdict, alike in group_by(own, lambda c: c.overall.verdict).items():
        low, high = f"{verdict}_low", f"{verdict}_high"
        ratios = [c.overall.ratio for c in alike]
        values |= {verdict: len(alike), low: min(ratios), high: max(ratios)}
        parts.append(f"{verdict} in {{{verdict}}} ({{{low}:.2f}} to {{{high}:.2f}})")
    return fact(f"of {{total}} cases, {', '.join(parts)}", **values)


def _judge_runs(several: Sequence[RunComparison]) -> Iterator[Claim]:
    """Say how far ratios move from run to run."""
    if not several:
        return
    between = [float(np.expm1(c.between or 0.0)) for c in several]
    known = [c.runs_differ for c in several if c.runs_differ is not None]
    text = "standard deviation of a speedup between runs: median {median:.1%}, maximum {most:.1%}"
    if known:
        text += "; in {apart} of {known} cases, the intervals of two runs do not overlap"
    yield fact(
        text,
        median=statistics.median(between),
        most=max(between),
        apart=sum(known),
        known=len(known),
    ).about("spread")
