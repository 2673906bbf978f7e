"""What a sweep says, as claims, and what the claims of its pages have in common."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ortmeter.sweep.comparison import (
    RunComparison,
    group_by,
    make_coordinates,
    varying_names,
    varying_options,
)
from ortmeter.sweep.tasks import Outcome
from ortmeter.timing.claims import Answer, Claim, enumerate_items, fact

# A place of the grid, and the runs that said something there.
_Place: TypeAlias = tuple[tuple[str, Any], ...]
_Said: TypeAlias = dict[_Place, set[int]]
# Page, topic, subject, baseline: what claims with several verdicts are about.
_Question: TypeAlias = tuple[str, str, str, str]

_EVERYWHERE = "everywhere"
_MANY = 4  # places that a sentence names, before it counts them


def conclude(
    outcomes: Sequence[Outcome], comparisons: Sequence[RunComparison]
) -> tuple[Answer, tuple[Claim, ...]]:
    """Say whether verdicts hold, what was found over the grid, and what has no result.

    The answer stands on the claims of all the runs together.
    """
    answer = _answer(outcomes, comparisons)
    claims = (
        *_judge_tasks(outcomes),
        *_judge_candidates(comparisons),
        *_judge_runs(comparisons),
        *_judge_pages(outcomes),
    )
    return dataclasses.replace(answer, claims=tuple(c.overall for c in comparisons)), claims


def gather_claims(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Gather what the pages claim by where they claim it: one row per claim, numbers apart.

    Those that are not made everywhere come first; ``said`` is how often, of all the times that the
    question is put.
    """
    varying = varying_options(outcome.task for outcome in outcomes)
    said: dict[tuple[Any, ...], tuple[Claim, _Said]] = {}
    asked: dict[_Question, _Said] = {}
    done = [(outcome, _by_question(outcome)) for outcome in outcomes if outcome.record]
    for outcome, by_question in done:
        for question, claims in by_question.items():
            for claim in claims:
                place = tuple(make_coordinates(outcome, varying, claim.where).items())
                _, own = said.setdefault((*question, claim.verdict), (claim, {}))
                for places in (own, asked.setdefault(question, {})):
                    places.setdefault(place, set()).add(outcome.task.run)
    for question, places in asked.items():
        # A task of the page that says nothing on the question is a place too.
        for outcome, by_question in done:
            if outcome.task.page == question[0] and question not in by_question:
                place = tuple(make_coordinates(outcome, varying).items())
                places.setdefault(place, set()).add(outcome.task.run)
    rows = []
    for (page, topic, subject, baseline, _), (claim, own) in said.items():
        everyone = asked[page, topic, subject, baseline]
        count, total = (sum(map(len, places.values())) for places in (own, everyone))
        where = _describe(own, everyone)
        rows.append((page, _about(claim), f"{count} of {total}", where))
    rows.sort(key=lambda row: row[-1] == _EVERYWHERE)
    table = pd.DataFrame(rows, columns=["page", "claim", "said", "where"])
    return table.set_index(["page", "claim"])


def _by_question(outcome: Outcome) -> dict[_Question, list[Claim]]:
    """Gather the claims of a task, those of its answer among them, by what they are about."""
    record, page = outcome.record, outcome.task.page
    if record is None:
        return {}
    claims = (*(record.answer.claims if record.answer else ()), *record.claims)
    return group_by(claims, lambda claim: (page, claim.topic, claim.subject, claim.baseline))


def _about(claim: Claim) -> str:
    return f"{claim.topic}: {claim.words}" if claim.topic else claim.words


def _describe(own: _Said, everyone: _Said) -> str:
    """Say where that is: by one coordinate when it tells these places apart, or one by one."""
    if own == everyone:
        return _EVERYWHERE
    names = varying_names([dict(place) for place in everyone])
    whole = [place for place in own if own[place] == everyone[place]]
    others = [place for place in everyone if place not in own]
    if len(whole) == len(own):
        for name in names:
            values = dict.fromkeys(dict(place).get(name) for place in own)
            if not any(dict(place).get(name) in values for place in others):
                return enumerate_items([_name({name: value}, [name]) for value in values])
        if len(others) < len(own):
            return f"all but {_list([_name(dict(place), names) for place in others])}"
    listed = []
    for place, runs in own.items():
        count = "" if place in whole else f"{len(runs)} of {len(everyone[place])} runs"
        listed.append(", ".join(filter(None, [_name(dict(place), names), count])))
    return _list(listed)


def _list(items: Sequence[str]) -> str:
    more = [f"{len(items) - _MANY} others"] if len(items) > _MANY else []
    return "; ".join([*items[:_MANY], *more])


def _name(place: Mapping[str, Any], names: Iterable[str]) -> str:
    """Name a place of the grid: numbers need their name, texts do not."""
    values = ((name, place[name]) for name in names if place.get(name) is not None)
    return ", ".join(v if isinstance(v, str) else f"{name} {v}" for name, v in values)


def _answer(outcomes: Sequence[Outcome], comparisons: Sequence[RunComparison]) -> Answer:
    if not any(outcome.record for outcome in outcomes):
        return Answer("No task has a result.")
    if not comparisons:
        return Answer("The pages measured nothing that can be compared.")
    repeated = [c for c in comparisons if len(c.runs) > 1]
    decided = [c for c in repeated or comparisons if c.is_decided]
    if not any(claim.has_interval for c in comparisons for claim in c.runs.values()):
        return Answer("Too few samples: no run gives an interval.")
    if not decided:
        return Answer("No run decides between two candidates.")
    pairs = [own for own in _by_pair(comparisons).values() if any(c.is_decided for c in own)]
    steady = sum(len({v for c in own for v in c.verdicts}) == 1 for own in pairs)
    values = {
        "held": sum(c.holds for c in decided),
        "total": len(decided),
        "undecided": len(repeated or comparisons) - len(decided),
        "steady": steady,
        "pairs": len(pairs),
    }
    found = []
    if repeated:
        found.append("{held} of {total} verdicts hold in all runs")
    if len(comparisons) > len(_by_pair(comparisons)):
        verdicts = "" if found else " verdicts hold"
        found.append(f"{{steady}} of {{pairs}}{verdicts} over the whole grid")
    text = ", ".join(found) or "One run of one configuration decides {total} comparisons"
    text += "; undecided: {undecided}" if values["undecided"] else ""
    return Answer(f"{text}.", values=values)


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


def _by_pair(comparisons: Iterable[RunComparison]) -> dict[Any, list[RunComparison]]:
    return group_by(comparisons, lambda c: (c.page, c.group, c.baseline, c.candidate))


def _judge_candidates(comparisons: Sequence[RunComparison]) -> Iterator[Claim]:
    """Say, for each candidate, what all the runs together say, place by place or counted."""
    for own in _by_pair(comparisons).values():
        places = _places(comparisons, own)
        if len(own) <= _MANY:
            for c, place in zip(own, places, strict=True):
                yield dataclasses.replace(c.overall, where=place, topic="pair")
        else:
            pair = {"candidate": own[0].candidate, "baseline": own[0].baseline}
            where = {**_places(comparisons, own[:1])[0], **pair}
            yield dataclasses.replace(_count_verdicts(own), where=where, topic="pair")


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


def _count_verdicts(own: Sequence[RunComparison]) -> Claim:
    values: dict[str, Any] = {"total": len(own)}
    parts = []
    for verdict, found in group_by(own, lambda c: c.overall.verdict).items():
        low, high = f"{verdict}_low", f"{verdict}_high"
        ratios = [c.overall.ratio or 1.0 for c in found]
        values |= {verdict: len(found), low: min(ratios), high: max(ratios)}
        parts.append(f"{verdict} in {{{verdict}}} ({{{low}:.2f}} to {{{high}:.2f}})")
    return fact(f"of {{total}} cases, {', '.join(parts)}", **values)


def _judge_runs(comparisons: Sequence[RunComparison]) -> Iterator[Claim]:
    """Say which verdicts change from run to run, reversals first, and how far ratios move."""
    several = [c for c in comparisons if len(c.runs) > 1]
    placed = zip(several, _places(comparisons, several), strict=True)
    changed = [(c, place) for c, place in placed if c.is_decided and not c.holds]
    changed.sort(key=lambda found: not found[0].is_reversed)
    for c, place in changed[:_MANY]:
        counts = dict(Counter(c.verdicts))
        text = ", ".join(f"{verdict} in {{{verdict}}}" for verdict in counts)
        where = {"candidate": c.candidate, **place}
        yield fact(f"the runs are {text}", where, **counts).about("change")
    if len(changed) > _MANY:
        yield fact("{more} other verdicts change", more=len(changed) - _MANY).about("change")
    if several:
        yield _judge_spread(several)


def _judge_spread(several: Sequence[RunComparison]) -> Claim:
    between = [float(np.expm1(c.between or 0.0)) for c in several]
    known = [c.runs_differ for c in several if c.runs_differ is not None]
    text = "from run to run a speedup moves by {median:.1%} in the median, {most:.1%} at most"
    if known:
        text += "; in {apart} of {known} cases, the intervals of two runs do not meet"
    return fact(
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
            "the {tasks} tasks end on {total} different claims, {common} common to all",
            tasks=tasks,
            total=len(table),
            common=int((table["where"] == _EVERYWHERE).sum()) or "none",
        ).about("pages")
