"""The only writer of sentences: answers, what follows them, and how comparisons are listed."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import (
    Claim,
    Estimate,
    Finding,
    Note,
    Prediction,
    Scalar,
    Speedup,
    Speedups,
    render,
)
from ortmeter.timing.comparison import Ranking

__all__ = [
    "LEADS",
    "Answer",
    "Bar",
    "Writer",
    "enumerate_items",
]

#: Lead of an answer for each trend of its effects, where a page gives none, see
#: :attr:`~ortmeter.evidence.Speedups.trend`.
LEADS = {
    "faster": "Faster:",
    "slower": "Slower:",
    "mixed": "It depends:",
    "negligible": "No difference that matters:",
    "undecided": "Not decided here:",
}
#: Characters of the label of a bar.
LABEL = 20
_VERDICT = 16  # characters
_FEWEST, _MOST = 2, 5  # bars
_At: TypeAlias = Mapping[str, Scalar] | None


@dataclass(frozen=True)
class Bar(Estimate):
    """One bar of the small plot that goes with an answer: its length, from 0, and its interval.

    Parameters
    ----------
    value, low, high, confidence, how, unit
        See :class:`~ortmeter.evidence.Estimate`.
    label : str
        What it stands for, 20 characters at most.
    """

    label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [n for n in (self.value, self.low, self.high) if n is not None]
        if len(self.label) > LABEL or not all(0 <= n < math.inf for n in lengths):
            raise InvalidArgumentError(
                f"{self!r}. Accepted: a label of {LABEL} characters at most, finite numbers from 0"
            )


@dataclass(frozen=True)
class Answer:
    """What answers the title of a page, and the claims that it stands on.

    Parameters
    ----------
    text : str
        Computed sentence; the names of *values* stand in braces.
    claims : tuple of Claim
        What was measured.
    values : mapping of str to number or str
        Numbers of the sentence.
    verdict : str
        One or two words, 16 characters at most: ``faster``, ``negligible``, ``2 of 6 wrong``. By
        default the verdict of the first claim.
    bars : tuple of Bar
        Two to five bars that show the answer.
    axis : str
        What the bars measure, with the unit: ``speedup over two Gemms, size 1024``.
    warning : str
        What to know before one follows the answer.
    setting : str
        Code to copy, which runs.
    command : str
        What to try in a terminal.
    small_print : str
        What few readers need: how sure, where it stops.

    Examples
    --------
    >>> print(Answer("Yes: {times:.2f} times faster.", values={"times": 1.5}))
    Yes: 1.50 times faster.
    """

    text: str
    claims: tuple[Claim, ...] = ()
    values: Mapping[str, Scalar] = field(default_factory=dict)
    verdict: str = ""
    bars: tuple[Bar, ...] = ()
    axis: str = ""
    warning: str = ""
    setting: str = ""
    command: str = ""
    small_print: str = ""

    def __post_init__(self) -> None:
        render(self.text, self.values)
        for name in ("claims", "bars"):  # as they come back from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.verdict) > _VERDICT:
            raise InvalidArgumentError(
                f"verdict={self.verdict!r}. Accepted: {_VERDICT} characters at most"
            )
        if self.bars and not (_FEWEST <= len(self.bars) <= _MOST and self.axis):
            raise InvalidArgumentError(
                f"{len(self.bars)} bars, axis={self.axis!r}. Accepted: {_FEWEST} to {_MOST} bars "
                "with what they measure"
            )

    @property
    def label(self) -> str:
        """The verdict in one or two words."""
        if self.verdict or not self.claims:
            return self.verdict
        return self.claims[0].verdict

    def __str__(self) -> str:
        return render(self.text, self.values)


class Writer:
    """What a page, a command or a report says: an answer, then what follows it.

    A lead is chosen by what the effects show together, so that no text says more than they do.

    Examples
    --------
    >>> won = Speedup("one", "two", Estimate(1.5, 1.4, 1.6)).at(n=8)
    >>> say = Writer()
    >>> say.answer(Speedups([won]), faster="One Gemm:", slower="Two: one is")
    >>> say.predict("one is never slower", Speedups([won]).at_least(1))
    >>> print(say.written)
    One Gemm: 1.50 times faster [1.40, 1.60] at n 8.
    >>> print(*say.claims)
    Right: one is never slower (lowest 1.50 [1.40, 1.60] at n 8)
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._verdict = ""
        self._evidence: list[Speedup] = []
        self._effects = Speedups()
        self._bars: tuple[Bar, ...] = ()
        self._axis = ""
        self._slots: dict[str, str] = {}
        self._predictions: list[Claim] = []
        self._others: list[Claim] = []
        #: Beliefs that were judged, by discussion.
        self.beliefs: dict[str, Prediction] = {}

    def answer(self, effects: Speedups, **leads: str | tuple[str, str]) -> None:
        """Begin with a lead, chosen by what the effects show, then the effects.

        Parameters
        ----------
        effects : Speedups
            Comparisons of a candidate with a baseline, place by place.
        **leads : str or tuple of str
            Lead for each trend of :data:`LEADS`, or a pair: the verdict in a word or two, the lead.

        Raises
        ------
        InvalidArgumentError
            A lead is for no trend.
        """
        if unknown := [name for name in leads if name not in LEADS]:
            raise InvalidArgumentError(f"{unknown[0]!r}. Accepted: {', '.join(LEADS)}")
        lead = {**LEADS, **leads}[effects.trend]
        self._verdict, lead = (effects.trend, lead) if isinstance(lead, str) else lead
        self._text.append(_told(lead, effects))
        self._evidence += effects
        self._effects = self._effects or effects

    def add(self, text: str, **values: Scalar) -> None:
        """Add a sentence to the answer; names of *values* stand in braces."""
        self._text.append(render(text, values))

    def decide(self, verdict: str, evidence: Iterable[Speedup] = ()) -> None:
        """Give the verdict in a word or two, and what it stands on, when one trend does not."""
        self._verdict = verdict
        self._evidence += evidence

    def bars(self, axis: str, lengths: Mapping[str, float | Estimate | Speedup]) -> None:
        """Choose the bars of the answer; by default those of its effects where they are largest."""
        self._axis = axis
        self._bars = tuple(_bar(label, length) for label, length in lengths.items())

    def warn(self, text: str) -> None:
        """Say what to know before one follows the answer; it comes after the answer."""
        self._slots["warning"] = text

    def setting(self, code: str) -> None:
        """Give code to copy, which runs."""
        self._slots["setting"] = code

    def command(self, text: str) -> None:
        """Give a command to try."""
        self._slots["command"] = text

    def small_print(self, text: str, **values: Scalar) -> None:
        """Say what few readers need."""
        self._slots["small_print"] = render(text, values)

    def predict(
        self, text: str, finding: Finding, *, topic: str = "", where: _At = None, **values: Scalar
    ) -> None:
        """Judge a prediction, at its place; what decides follows in parentheses."""
        judged = finding.verdict, finding.evidence
        self._predictions.append(Prediction(text, *judged, values, where or {}, topic))

    def believe(self, discussion: str, text: str, finding: Finding, **values: Scalar) -> None:
        """Judge what a public discussion believed."""
        self.beliefs[discussion] = Prediction(text, finding.verdict, finding.evidence, values)

    def note(self, text: str, *, topic: str = "", **values: Scalar) -> None:
        """Say something that is no verdict."""
        self._others.append(Note(text, values, topic=topic))

    def claim(self, claims: Iterable[Claim]) -> None:
        """Say comparisons that are no part of the answer."""
        self._others += claims

    @property
    def written(self) -> Answer:
        """The answer."""
        text = " ".join(self._text).replace("{", "{{").replace("}", "}}")
        bars, axis = self._bars, self._axis
        if not bars and self._effects:
            bars, axis = _largest_bars(self._effects)
        evidence = tuple(self._evidence)
        return Answer(text, evidence, {}, self._verdict, bars, axis, **self._slots)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What follows the answer: predictions, then the rest."""
        return (*self._predictions, *self._others)


def _told(lead: str, effects: Speedups) -> str:
    """Write a lead, then effects and their places."""
    if not effects:
        return f"{lead.rstrip(': ')}."
    places: dict[str, list[Speedup]] = {}
    for claim in effects:
        effect = "as fast " * bool(claim.is_a("negligible")) + claim.effect
        places.setdefault(effect, []).append(claim)
    parts = []
    for effect, group in places.items():
        where = [", ".join(map(str, claim.where.values())) for claim in group]
        axes = ", ".join(group[0].where)
        parts.append(f"{effect} at {axes} {enumerate_items(where)}" if axes else effect)
    return f"{lead} {', '.join(parts)}."


def _bar(label: str, length: float | Estimate | Speedup) -> Bar:
    if isinstance(length, Speedup):
        length = length.estimate
    if not isinstance(length, Estimate):  # a number, of NumPy or not
        length = Estimate(length if isinstance(length, int) else float(length))
    return Bar(length.value, length.low, length.high, length.confidence, label=label[:LABEL])


def _largest_bars(effects: Speedups) -> tuple[tuple[Bar, ...], str]:
    """Draw the effects of an answer at the place where they are largest."""
    top = effects.largest
    place = ", ".join(f"{name} {value}" for name, value in top.where.items())
    beside = (claim for claim in effects if claim.baseline == top.baseline)
    shown = [claim for claim in beside if claim.where == top.where]
    bars = [_bar(top.baseline, 1.0), *(_bar(claim.subject, claim) for claim in shown)]
    return tuple(bars[:_MOST]), f"speedup over {top.baseline}{f', {place}' if place else ''}"


def sentences(claims: Iterable[Claim | str]) -> list[str]:
    """Write claims as sentences; those on one pair at several places become one, texts stay."""
    written: list[str] = []
    for _, run in itertools.groupby(claims, _pair):
        group = list(run)
        pairs = [claim for claim in group if isinstance(claim, Speedup) and claim.where]
        written += [_group(pairs)] if len(pairs) > 1 else map(str, group)
    return written


def rank(ranking: Ranking) -> str:
    """Write which candidate has the lowest median, and the others beside it."""
    if len(ranking.claims) == 1:
        return str(ranking.claims[0].reversed)
    text = f"{ranking.fastest} has the lowest median"
    for verdict, words in (
        ("slower", "slower"),
        ("negligible", "within {:.0%}"),
        ("undecided", "undecided"),
    ):
        ranked = [claim for claim in ranking.claims if claim.verdict == verdict]
        if ranked:
            named = enumerate_items([f"{c.subject} ({_times(c)})" for c in ranked])
            text += f"; {words.format(ranked[0].min_effect)}: {named}"
    return text


def _times(claim: Speedup) -> str:
    turned = claim.reversed
    told = f"{turned.ratio:.2f} times {turned.brackets}{turned.estimate.told_level}"
    return told if claim.has_interval else "no interval"


def _pair(claim: Claim | str) -> tuple[str, ...] | None:
    if isinstance(claim, Speedup) and claim.where:
        return (claim.subject, claim.baseline, *claim.where)
    return None


def _group(claims: Iterable[Speedup]) -> str:
    """Write in one sentence where one subject is faster, slower, or neither, than one baseline."""
    groups: dict[str, list[Speedup]] = {}
    for claim in claims:
        groups.setdefault(claim.verdict, []).append(claim)
    parts: list[str] = []
    for verdict, group in groups.items():
        first = group[0]
        words = {
            "faster": f"{first.subject} is faster than {first.baseline}",
            "slower": f"{first.subject} is slower than {first.baseline}",
            "negligible": f"{first.subject} and {first.baseline} are within {first.min_effect:.0%}",
            "undecided": "undecided"
            if parts
            else f"undecided between {first.subject} and {first.baseline}",
        }[verdict]
        axes = ", ".join(first.where)
        places = [f"{', '.join(map(str, c.where.values()))} ({c.interval})".lstrip() for c in group]
        parts.append(f"{words} {f'at {axes} ' if axes else ''}{enumerate_items(places)}")
    return "; ".join(parts)


def enumerate_items(items: Sequence[str]) -> str:
    """Write a list as a text.

    Parameters
    ----------
    items : sequence of str
        What to list, one item at least.

    Returns
    -------
    str
        The items with commas, and "and" before the last one.

    Examples
    --------
    >>> enumerate_items(["a", "b", "c"])
    'a, b and c'
    """
    *start, last = items
    return f"{', '.join(start)} and {last}" if start else last
