"""Comparisons over the grid of a sweep: candidates in several runs, and conclusions."""

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pandas as pd

from ortmeter.dtypes import numpy_dtype
from ortmeter.evidence import Claim, Note, Speedup, fact
from ortmeter.study.writer import Writer, enumerate_items
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.statistics import geometric_mean

_T = TypeVar("_T")
_K = TypeVar("_K")
# A place of the grid with a run, in the order in which they are found.
_Places: TypeAlias = dict[tuple[tuple[tuple[str, Any], ...], int], None]
# Page, topic, subject, baseline: what claims with several verdicts are about.
_Question: TypeAlias = tuple[str, ...]

MACHINE = "machine"
# The option of the pages for the type of elements, by its number in ONNX, and what is shown.
_ITYPE, _TYPE = "itype", "type"
_EVERYWHERE = "everywhere"
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
        value: Any = _number(text) if is_numeric else text
        if name == _ITYPE and is_numeric:
            place[_TYPE] = str(numpy_dtype(value))
        else:
            place[name] = value
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


def conclude(outcomes: Sequence[Outcome], comparisons: Sequence[RunComparison]) -> Writer:
    """Say whether verdicts hold, what was found over the grid, and what has no result."""
    say = Writer()
    say.decide("", (c.overall for c in comparisons))
    _say_what_holds(say, outcomes, comparisons)
    say.claim(_judge_tasks(outcomes))
    say.claim(_judge_candidates(comparisons))
    say.claim(_judge_runs([c for c in comparisons if len(c.runs) > 1]))
    say.claim(_judge_pages(outcomes))
    return say


def _say_what_holds(
    say: Writer, outcomes: Sequence[Outcome], comparisons: Sequence[RunComparison]
) -> None:
    repeated = [c for c in comparisons if len(c.runs) > 1]
    decided = [c for c in repeated or comparisons if c.is_decided]
    if not any(outcome.record for outcome in outcomes):
        say.add("No task has a result.")
    elif not comparisons:
        say.add("The pages recorded no comparable measurements.")
    elif not any(claim.has_interval for c in comparisons for claim in c.runs.values()):
        say.add("Too few samples: no run gives an interval.")
    elif not decided:
        say.add("No comparison is decided.")
    else:
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
        say.add(f"{text}; undecided: {undecided}." if undecided else f"{text}.")


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
    for (*_, baseline, candidate), own in group_by(comparisons, lambda c: c.pair).items():
        places = _places(comparisons, own)
        if len(own) <= _MANY:
            placed = zip(own, places, strict=True)
            claims = [msgspec.structs.replace(c.overall, where=place) for c, place in placed]
        else:
            shared = _places(comparisons, own[:1])[0]
            where = {**shared, "candidate": candidate, "baseline": baseline}
            claims = [_count_verdicts(own).at(**where)]
        yield from (claim.about("pair") for claim in claims)


def _places(
    comparisons: Sequence[RunComparison], own: Sequence[RunComparison]
) -> list[dict[str, Any]]:
    """Place comparisons by what varies: page and group among all, coordinates among their own."""
    names = varying_names([c.coordinates for c in own])
    group = [n for n in ("page", "group") if len({getattr(c, n) for c in comparisons}) > 1]
    return [
        {name: getattr(c, name) for name in group}
        | {name: c.coordinates[name] for name in names if name in c.coordinates}
        for c in own
    ]


def varying_names(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the coordinates that do not have one value everywhere."""
    names = dict.fromkeys(name for place in places for name in place)
    return [name for name in names if len({place.get(name) for place in places}) > 1]


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
    """Say which verdicts change from run to run, reversals first, and how far ratios move."""
    placed = zip(several, _places(several, several), strict=True)
    changed = [(c, place) for c, place in placed if c.is_decided and not c.holds]
    changed.sort(key=lambda change: not {"faster", "slower"} <= set(change[0].verdicts))
    for c, place in changed[:_MANY]:
        counts = dict(Counter(c.verdicts))
        text = ", ".join(f"{verdict} in {{{verdict}}}" for verdict in counts)
        where = {"candidate": c.overall.subject, **place}
        yield fact(f"verdict changes from run to run: {text}", where, **counts).about("change")
    if len(changed) > _MANY:
        yield fact("{more} other verdicts change", more=len(changed) - _MANY).about("change")
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


def _judge_pages(outcomes: Sequence[Outcome]) -> Iterator[Claim]:
    tasks = sum(outcome.record is not None for outcome in outcomes)
    table = gather_claims(outcomes)
    if tasks > 1 and len(table):
        yield fact(
            "the {tasks} tasks make {total} different claims, {common} common to all",
            tasks=tasks,
            total=len(table),
            common=int((table["where"] == _EVERYWHERE).sum()) or "none",
        ).about("pages")


def gather_claims(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Gather the claims of the pages, without their numbers: one row per claim.

    ``count`` is how often the claim is made, out of all the times that its question is answered or
    left out. Claims that are not made everywhere come first.
    """
    varying = varying_options(outcome.task for outcome in outcomes)
    done = [(outcome, _by_question(outcome)) for outcome in outcomes if outcome.record]
    said: dict[tuple[Any, ...], tuple[Claim, _Places]] = {}
    asked: dict[_Question, _Places] = {}
    for outcome, by_question in done:
        for question, claims in by_question.items():
            for claim in claims:
                place = tuple(make_coordinates(outcome, varying, claim.where).items())
                _, own = said.setdefault((*question, claim.verdict), (claim, {}))
                own[place, outcome.task.run] = None
                asked.setdefault(question, {})[place, outcome.task.run] = None
    for question, everyone in asked.items():
        # A task of the page that says nothing on the question is a place too.
        for outcome, by_question in done:
            if outcome.task.page == question[0] and question not in by_question:
                place = tuple(make_coordinates(outcome, varying).items())
                everyone[place, outcome.task.run] = None
    rows = []
    for key, (claim, own) in said.items():
        page, everyone = key[0], asked[key[:-1]]
        about = f"{claim.topic}: {claim.words}" if claim.topic else claim.words
        rows.append((page, about, f"{len(own)} of {len(everyone)}", _describe(own, everyone)))
    rows.sort(key=lambda row: row[-1] == _EVERYWHERE)
    table = pd.DataFrame(rows, columns=["page", "claim", "count", "where"])
    return table.set_index(["page", "claim"])


def _by_question(outcome: Outcome) -> dict[_Question, list[Claim]]:
    """Gather the claims of a task, those of its answer among them, by what they are about."""
    record, page = outcome.record, outcome.task.page
    if record is None:
        return {}
    claims = (*(record.answer.claims if record.answer else ()), *record.claims)
    return group_by(claims, lambda claim: (page, *claim.question))


def _describe(own: _Places, everyone: _Places) -> str:
    """Say where that is: by one coordinate when it tells these places apart, or one by one."""
    if len(own) == len(everyone):
        return _EVERYWHERE
    runs, all_runs = (Counter(place for place, _ in places) for places in (own, everyone))
    names = varying_names([dict(place) for place in all_runs])
    others = [dict(place) for place in all_runs if place not in runs]
    if all(runs[place] == all_runs[place] for place in runs):
        for name in names:
            values = dict.fromkeys(dict(place).get(name) for place in runs)
            if not any(place.get(name) in values for place in others):
                return enumerate_items([_name({name: value}, [name]) for value in values])
        if len(others) < len(runs):
            return f"all but {_list([_name(place, names) for place in others])}"
    listed = []
    for place, count in runs.items():
        part = f"{count} of {all_runs[place]} runs" if count < all_runs[place] else ""
        listed.append(", ".join(filter(None, [_name(dict(place), names), part])))
    return _list(listed)


def _list(items: Sequence[str]) -> str:
    more = [f"{len(items) - _MANY} others"] if len(items) > _MANY else []
    return "; ".join([*items[:_MANY], *more])


def _name(place: Mapping[str, Any], names: Iterable[str]) -> str:
    """Name a place of the grid: numbers need their name, texts do not."""
    values = ((name, place[name]) for name in names if place.get(name) is not None)
    return ", ".join(v if isinstance(v, str) else f"{name} {v}" for name, v in values)
