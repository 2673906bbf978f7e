"""Sentences computed from a sweep."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ortmeter.sweep._cells import make_coordinates, varying_options
from ortmeter.sweep.comparison import Comparison
from ortmeter.sweep.outcome import Outcome
from ortmeter.timing.verdict import enumerate_items

__all__ = ["conclude", "group_sentences", "without_numbers"]

Place: TypeAlias = Mapping[str, Any]

_EVERYWHERE = "everywhere"
_MANY = 4  # places that a sentence names, before it counts them

# An interval in brackets, "1.23 times", a percentage, a duration, a number with a point, an
# exponent or thousands; sizes and counts stay.
_MEASURED = re.compile(
    r" \(\d[^)]*\)|\b\d[\d,.]*(?:e[+-]?\d+)? (?:times|s|ms|µs|ns|ulp|GFLOP/s|GB/s)\b"
    r"|\b\d[\d.]*%|\b\d+\.\d+(?:e[+-]?\d+)?|\b\d+e[+-]?\d+|\b\d{1,3}(?:,\d{3})+\b"
)


def conclude(outcomes: Sequence[Outcome], comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Say what became of the tasks, what was found over the grid, and whether it holds.

    Parameters
    ----------
    outcomes : sequence of Outcome
        All of them.
    comparisons : sequence of Comparison
        What was measured.

    Returns
    -------
    tuple of str
        Sentences.
    """
    return (
        _count_tasks(outcomes),
        *_judge_candidates(comparisons),
        *_judge_runs(comparisons),
        *_judge_sentences(outcomes),
    )


def group_sentences(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Gather what the pages concluded, without the numbers, by where it was said.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Those without a record are left out.

    Returns
    -------
    DataFrame
        One row per sentence, those that are not said everywhere first. Index: the page and the
        sentence. Columns: ``said`` (in how many of the tasks of the page), ``where``.
    """
    varying = varying_options(outcome.task for outcome in outcomes)
    everyone: dict[str, list[Place]] = {}
    said: dict[tuple[str, str], list[Place]] = {}
    for outcome in outcomes:
        if outcome.record:
            page, run = outcome.task.page, outcome.task.run
            place = {**make_coordinates(outcome.task, outcome.machine, varying), "run": run}
            everyone.setdefault(page, []).append(place)
            for text in dict.fromkeys(map(without_numbers, outcome.record.sentences)):
                said.setdefault((page, text), []).append(place)
    rows = [
        (page, text, f"{len(own)} of {len(everyone[page])}", _describe(own, everyone[page]))
        for (page, text), own in said.items()
    ]
    rows.sort(key=lambda row: row[-1] == _EVERYWHERE)
    table = pd.DataFrame(rows, columns=["page", "sentence", "said", "where"])
    return table.set_index(["page", "sentence"])


def without_numbers(sentence: str) -> str:
    """Leave out what is measured: two machines that conclude the same then say the same.

    Parameters
    ----------
    sentence : str
        Sentence that a page computed.

    Examples
    --------
    >>> without_numbers("one is 1.50 times faster than two at size 8 (1.50, 1.40 to 1.60).")
    'one is … faster than two at size 8.'
    """
    return _MEASURED.sub(lambda found: "" if found[0].startswith(" (") else "…", sentence)


def _count_tasks(outcomes: Iterable[Outcome]) -> str:
    states = Counter(outcome.state for outcome in outcomes)
    lost = [f"{states[state]} {state}" for state in ("failed", "missing") if states[state]]
    return f"{states['done']} of {states.total()} tasks are done{', '.join(['', *lost])}."


def _judge_candidates(comparisons: Sequence[Comparison]) -> list[str]:
    """Say, for each candidate, where it is faster and where it is slower."""
    by_pair: dict[tuple[str, str, str, str], list[Comparison]] = {}
    for c in comparisons:
        by_pair.setdefault((c.page, c.group, c.baseline, c.candidate), []).append(c)
    shared = {
        name for name in ("page", "group") if len({getattr(c, name) for c in comparisons}) == 1
    }
    sentences = []
    for (page, group, _, _), own in by_pair.items():
        where = [] if "page" in shared else [page]
        where += [] if "group" in shared else [group]
        prefix = f"{', '.join(where)}: " if where else ""
        sentences.append(f"{prefix}{_summarize(own)}.")
    return sentences


def _summarize(own: Sequence[Comparison]) -> str:
    claims: dict[str, list[Comparison]] = {}
    for comparison in own:
        claims.setdefault(comparison.overall.claim, []).append(comparison)
    varying = _varying([c.coordinates for c in own])
    parts = []
    for claim, found in claims.items():
        ratios = [c.overall.ratio for c in found]
        if len(found) <= _MANY:
            places = [_name(c.coordinates, varying) for c in found]
            each = [f"{place} ({r:.2f})".lstrip() for place, r in zip(places, ratios, strict=True)]
            parts.append(f"{claim}{':' if any(places) else ''} {enumerate_items(each)}")
        else:
            low, high = min(ratios), max(ratios)
            parts.append(f"{claim} in {len(found)} of {len(own)} cases ({low:.2f} to {high:.2f})")
    return "; ".join(parts)


def _judge_runs(comparisons: Sequence[Comparison]) -> list[str]:
    """Say whether verdicts hold from run to run, and how far the ratios move."""
    several = [c for c in comparisons if c.between is not None]
    if not several:
        return []
    held = f"{sum(c.holds for c in several)} of {len(several)}"
    first = f"the verdict is the same in all the runs for {held} comparisons."
    return [first, *_name_changes(several), _judge_spread(several)]


def _name_changes(several: Sequence[Comparison]) -> list[str]:
    """Say which verdicts change, reversals first."""
    varying = _varying([c.coordinates for c in several])
    changed = sorted((c for c in several if not c.holds), key=lambda c: not c.is_reversed)
    named = [
        f"{c.candidate} over {c.baseline}{_at(_name(c.coordinates, varying))} {c.stability}."
        for c in changed[:_MANY]
    ]
    more = len(changed) - len(named)
    return [*named, f"{more} others change."] if more else named


def _judge_spread(several: Sequence[Comparison]) -> str:
    between = [float(np.expm1(c.between or 0.0)) for c in several]
    excess = statistics.median(c.excess or 0.0 for c in several)
    beyond = sum(c.process_matters for c in several)
    return (
        f"from run to run a speedup moves by {statistics.median(between):.1%} in the median, "
        f"{max(between):.1%} at most, {excess:.1f} times what the samples of one run promise; "
        f"{beyond} of {len(several)} move beyond chance."
    )


def _judge_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    if sum(outcome.record is not None for outcome in outcomes) < 2:  # noqa: PLR2004 - to compare
        return []
    table = group_sentences(outcomes)
    if table.empty:
        return []
    everywhere = int((table["where"] == _EVERYWHERE).sum())
    counts = f"{len(table)}, of which {everywhere} in every task"
    return [f"different sentences that the pages concluded, numbers apart: {counts}."]


def _describe(own: Sequence[Place], everyone: Sequence[Place]) -> str:
    """Say which tasks these are: by one coordinate when it tells them apart, or one by one."""
    if len(own) == len(everyone):
        return _EVERYWHERE
    names = _varying(everyone)
    for name in names:
        values = dict.fromkeys(place.get(name) for place in own)
        if sum(place.get(name) in values for place in everyone) == len(own):
            return enumerate_items([_name({name: value}, [name]) for value in values])
    others = [place for place in everyone if place not in own]
    start, listed = ("all but ", others) if len(others) < len(own) else ("", own)
    more = [f"{len(listed) - _MANY} others"] if len(listed) > _MANY else []
    return start + "; ".join([*(_name(place, names) for place in listed[:_MANY]), *more])


def _varying(places: Sequence[Place]) -> list[str]:
    names = dict.fromkeys(name for place in places for name in place)
    return [name for name in names if len({place.get(name) for place in places}) > 1]


def _name(place: Place, names: Iterable[str]) -> str:
    """Name a place of the grid: numbers need their name, texts do not."""
    values = ((name, place[name]) for name in names if name in place)
    return ", ".join(v if isinstance(v, str) else f"{name} {v}" for name, v in values)


def _at(place: str) -> str:
    return f" at {place}" if place else ""
