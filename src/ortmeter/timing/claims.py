"""What measurements say, as data: claims are compared by their fields, sentences are rendered."""

import dataclasses
import itertools
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ortmeter.errors import InvalidArgumentError

__all__ = [
    "COMPARED",
    "JUDGED",
    "Answer",
    "Bar",
    "Claim",
    "enumerate_items",
    "fact",
    "group_claims",
    "group_effects",
    "judge",
]

#: Verdicts on the speed of a subject beside its baseline.
COMPARED = ("faster", "slower", "different", "equivalent", "undecided")
#: Verdicts on a prediction.
JUDGED = ("right", "wrong", "undecided")
#: What a place and a sentence are made of.
Scalar: TypeAlias = bool | int | float | str | None

_FACT = "fact"
#: Characters of the label of a bar.
LABEL = 20
_VERDICT = 16  # characters
_FEWEST, _MOST = 2, 5  # bars
_SPEC = re.compile(r",?(\.\d)?[a-z%]?")


@dataclass(frozen=True)
class Claim:
    """One thing that a page, a command or a report says; its text is a sentence.

    :func:`~ortmeter.timing.speedup` makes claims on speed, :func:`fact` claims on anything else,
    :func:`judge` those on a prediction.

    Parameters
    ----------
    subject : str
        What the claim is about: the candidate, or a sentence with the names of *values* in braces.
    verdict : str
        One of :data:`COMPARED`, of :data:`JUDGED`, or ``fact``.
    baseline : str
        What the subject is compared with, empty without comparison.
    where : mapping of str to object
        Where it holds: size, type, number of threads.
    ratio : float, optional
        Latency of the baseline divided by the subject's; above 1 the subject is faster.
    low, high : float, optional
        Confidence interval of the ratio, None when there are too few samples for one.
    confidence : float
        Level of the interval.
    min_effect : float
        Smallest relative difference that is worth a claim.
    how : str
        How it was measured: ``10 processes``, ``in one process``.
    values : mapping of str to number or str
        Numbers of the sentence, which change from one machine to the next.
    topic : str
        Name by which a page, or a table of the site, finds the claim again.

    Examples
    --------
    >>> print(compare_ratio("one", "two", 1.5, (1.4, 1.6), how="10 processes"))
    one is 1.50 times faster than two [1.40, 1.60] (99%, 10 processes)
    >>> print(fact("float16: at most {ulp} ulp apart", ulp=2))
    float16: at most 2 ulp apart
    """

    subject: str
    verdict: str
    baseline: str = ""
    where: Mapping[str, Scalar] = field(default_factory=dict)
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.99
    min_effect: float = 0.05
    how: str = ""
    values: Mapping[str, Scalar] = field(default_factory=dict)
    topic: str = ""

    def __post_init__(self) -> None:
        known = {*COMPARED, *JUDGED, _FACT}
        if self.verdict not in known:
            raise InvalidArgumentError(
                f"verdict={self.verdict!r}. Accepted: {', '.join(sorted(known))}"
            )
        bounds = [n for n in (self.ratio, self.low, self.high) if n is not None]
        if not all(n > 0 for n in bounds) or not 0 <= self.confidence <= 1 or self.min_effect < 0:
            raise InvalidArgumentError(
                f"ratio={self.ratio!r}, low={self.low!r}, high={self.high!r}, confidence="
                f"{self.confidence!r}, min_effect={self.min_effect!r}. Accepted: positive ratios, "
                "a level from 0 to 1, an effect from 0"
            )
        if (self.ratio is None) != (not self.baseline):
            raise InvalidArgumentError("A comparison has a baseline and a ratio, others have none")
        if not self.baseline:
            render(self.subject, self.values)  # what cannot be written is refused at once
        elif self.verdict not in COMPARED:
            raise InvalidArgumentError(
                f"verdict={self.verdict!r} of a comparison. Accepted: {', '.join(COMPARED)}"
            )

    @property
    def is_difference(self) -> bool:
        """Whether the subject is said to be faster or slower."""
        return self.verdict in {"faster", "slower"}

    @property
    def has_interval(self) -> bool:
        """Whether there were enough samples for an interval."""
        return self.low is not None and self.high is not None

    @property
    def words(self) -> str:
        """The sentence without its numbers: one claim has the same words on two machines."""
        if self.baseline:
            return f"{self.subject} over {self.baseline}: {self.verdict}"
        parts = string.Formatter().parse(self.subject)
        return self._judged(
            "".join(text + ("" if name is None else "…") for text, name, *_ in parts)
        )

    def at(self, **where: Any) -> "Claim":
        """Return the claim with these names and values added to its place."""
        return dataclasses.replace(self, where={**self.where, **where})

    def about(self, topic: str) -> "Claim":
        """Return the claim with the topic by which it is found again."""
        return dataclasses.replace(self, topic=topic)

    def exceeds(self, bound: float) -> bool | None:
        """Whether the ratio is above a bound, 1 for "not slower".

        True when the whole interval is at or above the bound, False when all of it is below, None
        when the interval does not tell.
        """
        if self.low is None or self.high is None:
            return None
        return True if self.low >= bound else False if self.high < bound else None

    @property
    def interval(self) -> str:
        """The ratio and its interval, ``1.50 [1.40, 1.60]``."""
        if self.ratio is None:
            return ""
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}, no interval"
        return f"{self.ratio:.2f} {self.brackets}"

    @property
    def reversed(self) -> "Claim":
        """The same comparison, with the baseline as the subject."""
        if self.ratio is None:
            raise InvalidArgumentError(f"{self} has no baseline. Accepted: a comparison")
        opposite = {"faster": "slower", "slower": "faster"}
        return dataclasses.replace(
            self,
            subject=self.baseline,
            baseline=self.subject,
            verdict=opposite.get(self.verdict, self.verdict),
            ratio=1 / self.ratio,
            low=1 / self.high if self.high else None,
            high=1 / self.low if self.low else None,
        )

    @property
    def brackets(self) -> str:
        """The interval alone, ``[1.40, 1.60]``, empty when there are too few samples."""
        return "" if self.low is None or self.high is None else f"[{self.low:.2f}, {self.high:.2f}]"

    @property
    def effect(self) -> str:
        """The comparison in a few words, ``1.50 times faster [1.40, 1.60]`` or ``within 5%``."""
        if self.ratio is None or not self.is_difference:
            small = self.verdict in {"different", "equivalent"}
            return f"within {self.min_effect:.0%}" if small else self.verdict
        found = self if self.verdict == "faster" else self.reversed
        return f"{found.ratio:.2f} times {self.verdict} {found.brackets}"

    def __str__(self) -> str:
        place = f"{', '.join(f'{k} {v}' for k, v in self.where.items())}: " if self.where else ""
        if self.ratio is None:
            return place + self._judged(render(self.subject, self.values))
        return place + self._compared(self.ratio)

    def _judged(self, text: str) -> str:
        return text if self.verdict == _FACT else f"{self.verdict.capitalize()}: {text}"

    def _compared(self, ratio: float) -> str:
        pair = f"{self.subject} and {self.baseline}"
        if self.low is None or self.high is None:
            return f"undecided between {pair}: speedup {ratio:.2f}, no interval"
        how = f"({100 * self.confidence:.3g}%{f', {self.how}' if self.how else ''})"
        interval = f"{self.brackets} {how}"
        if self.verdict == "faster":
            return f"{self.subject} is {ratio:.2f} times faster than {self.baseline} {interval}"
        if self.verdict == "slower":
            bounds = f"{self.reversed.brackets} {how}"
            return f"{self.subject} is {1 / ratio:.2f} times slower than {self.baseline} {bounds}"
        if self.verdict == "different":
            word = "faster" if ratio > 1 else "slower"
            least = f"by less than {self.min_effect:.0%}"
            return f"{self.subject} is {word} than {self.baseline} {least}: {ratio:.2f} {interval}"
        if self.verdict == "equivalent":
            return f"{pair} are within {self.min_effect:.0%}: {ratio:.2f} {interval}"
        return f"undecided between {pair}: speedup {ratio:.2f} {interval}"


@dataclass(frozen=True)
class Bar:
    """One bar of the small plot that goes with an answer.

    Parameters
    ----------
    label : str
        What it stands for, 20 characters at most.
    value : float
        Its length, from 0.
    low, high : float, optional
        Confidence interval of the value.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        lengths = [n for n in (self.value, self.low, self.high) if n is not None]
        if len(self.label) > LABEL or not all(0 <= n < math.inf for n in lengths):
            raise InvalidArgumentError(
                f"{self!r}. Accepted: a label of {LABEL} characters at most, finite numbers from 0"
            )


@dataclass(frozen=True)
class Answer:
    """The one sentence that answers the title of a page, and the claims that it stands on.

    Parameters
    ----------
    text : str
        Computed sentence; the names of *values* stand in braces.
    claims : tuple of Claim
        What was measured.
    values : mapping of str to number or str
        Numbers of the sentence.
    verdict : str
        One or two words, 16 characters at most: ``faster``, ``below 5%``, ``2 of 6 wrong``. By
        default the verdict of the first claim.
    bars : tuple of Bar
        Two to five bars that show the answer.
    axis : str
        What the bars measure, with the unit: ``speedup over two Gemms, size 1024``.

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
        first = self.claims[0]
        return f"below {first.min_effect:.0%}" if first.verdict == "different" else first.verdict

    def __str__(self) -> str:
        return render(self.text, self.values)


def compare_ratio(
    subject: str,
    baseline: str,
    ratio: float,
    interval: tuple[float, float] | None,
    *,
    confidence: float = 0.99,
    min_effect: float = 0.05,
    how: str = "",
    where: Mapping[str, Any] | None = None,
) -> Claim:
    """Judge how many times faster a subject is than its baseline.

    It is ``faster`` or ``slower`` when the interval leaves 1 out and the ratio differs from 1 by
    the minimum effect; ``different`` when it leaves 1 out and the ratio differs by less;
    ``equivalent`` when it holds 1 and lies within the minimum effect; ``undecided`` otherwise.
    """
    if not 0 <= min_effect < math.inf:
        raise InvalidArgumentError(f"min_effect={min_effect!r}. Accepted: a finite number from 0")
    low, high = interval or (None, None)
    most = 1 + min_effect
    if low is None or high is None:
        verdict = "undecided"
    elif low > 1:
        verdict = "faster" if ratio >= most else "different"
    elif high < 1:
        verdict = "slower" if ratio <= 1 / most else "different"
    else:
        verdict = "equivalent" if 1 / most < low and high < most else "undecided"
    return Claim(
        subject,
        verdict,
        baseline,
        dict(where or {}),
        ratio,
        low,
        high,
        confidence,
        min_effect,
        how,
    )


def fact(text: str, /, where: Mapping[str, Any] | None = None, **values: Any) -> Claim:
    """Make a claim of a sentence and its numbers.

    Parameters
    ----------
    text : str
        Sentence; names of *values* stand in braces, with a format if need be: ``{share:.1%}``.
    where : mapping of str to object, optional
        Where it holds.
    **values : number or str
        Numbers of the sentence: two claims that differ by them only are the same claim.

    Returns
    -------
    Claim
        Of verdict ``fact``.

    Raises
    ------
    InvalidArgumentError
        A name in braces has no value.

    Examples
    --------
    >>> fact("{n} of 4 differ", n=3) == fact("{n} of 4 differ", n=2)
    False
    >>> fact("{n} of 4 differ", n=3).words == fact("{n} of 4 differ", n=2).words
    True
    """
    return Claim(text, _FACT, where=dict(where or {}), values=values)


def judge(text: str, /, outcomes: Iterable[bool | None], **values: Any) -> Claim:
    """Judge a prediction from the cases where it was tried.

    Parameters
    ----------
    text : str
        The prediction, with what was found; names of *values* stand in braces.
    outcomes : iterable of bool or None
        For each case, whether it holds, None when that is not decided, as
        :meth:`Claim.exceeds` says.
    **values : number or str
        Numbers of the sentence.

    Returns
    -------
    Claim
        ``wrong`` when a case contradicts the prediction; ``undecided`` when one does not decide,
        or when there is none; ``right`` otherwise.

    Examples
    --------
    >>> print(judge("joined weights are never slower", [True, None]))
    Undecided: joined weights are never slower
    """
    found = list(outcomes) if isinstance(outcomes, Iterable) else [outcomes]
    if not all(outcome is None or outcome in {True, False} for outcome in found):
        raise InvalidArgumentError(f"outcomes={outcomes!r}. Accepted: booleans and None")
    undecided = not found or any(outcome is None for outcome in found)
    verdict = "wrong" if False in found else "undecided" if undecided else "right"
    return Claim(text, verdict, values=values)


def sentences(claims: Iterable[Claim]) -> list[str]:
    """Write claims as sentences; those on one pair at several places become one."""
    found: list[str] = []
    for pair, run in itertools.groupby(claims, _pair):
        group = list(run)
        if pair is None or len(group) == 1:
            found += map(str, group)
        else:
            found.append(group_claims(group))
    return found


def _pair(claim: Claim) -> tuple[str, ...] | None:
    return (claim.subject, claim.baseline, *claim.where) if claim.baseline and claim.where else None


def group_claims(claims: Iterable[Claim]) -> str:
    """Write in one sentence where one subject is faster, slower, or neither, than one baseline.

    Parameters
    ----------
    claims : iterable of Claim
        Comparisons of one subject with one baseline, each with its place.

    Returns
    -------
    str
        Places by verdict, each with its ratio and interval.

    Examples
    --------
    >>> won = compare_ratio("one", "two", 1.5, (1.4, 1.6))
    >>> tie = compare_ratio("one", "two", 1.0, (0.8, 1.2))
    >>> print(group_claims([won.at(n=8), tie.at(n=16)]))
    one is faster than two at n 8 (1.50 [1.40, 1.60]); undecided at n 16 (1.00 [0.80, 1.20])
    """
    groups: dict[str, list[Claim]] = {}
    for claim in claims if isinstance(claims, Iterable) else (claims,):
        if not isinstance(claim, Claim) or not claim.baseline:
            raise InvalidArgumentError(f"got {claim!r}. Accepted: comparisons with a baseline")
        groups.setdefault(claim.verdict, []).append(claim)
    parts: list[str] = []
    for verdict, found in groups.items():
        first = found[0]
        words = {
            "faster": f"{first.subject} is faster than {first.baseline}",
            "slower": f"{first.subject} is slower than {first.baseline}",
            "different": f"{first.subject} differs from {first.baseline} by less than "
            f"{first.min_effect:.0%}",
            "equivalent": f"{first.subject} and {first.baseline} are within {first.min_effect:.0%}",
            "undecided": "undecided"
            if parts
            else f"undecided between {first.subject} and {first.baseline}",
        }[verdict]
        axes = ", ".join(first.where)
        places = [f"{', '.join(map(str, c.where.values()))} ({c.interval})".lstrip() for c in found]
        parts.append(f"{words} {f'at {axes} ' if axes else ''}{enumerate_items(places)}")
    return "; ".join(parts)


def group_effects(claims: Iterable[Claim]) -> str:
    """Write in a few words what claims found at each place.

    Parameters
    ----------
    claims : iterable of Claim
        Comparisons of one subject with one baseline, each with its place.

    Returns
    -------
    str
        Effects in the order in which they are found, each with its places.

    Examples
    --------
    >>> won = compare_ratio("one", "two", 1.5, (1.4, 1.6))
    >>> tie = compare_ratio("one", "two", 1.0, (0.8, 1.2))
    >>> print(f"One is {group_effects([won.at(n=8), tie.at(n=16), tie.at(n=32)])}.")
    One is 1.50 times faster [1.40, 1.60] at n 8, undecided at n 16 and 32.
    """
    places: dict[str, list[Claim]] = {}
    for claim in claims:
        places.setdefault(claim.effect, []).append(claim)
    parts = []
    for effect, found in places.items():
        where = [", ".join(map(str, claim.where.values())) for claim in found]
        axes = ", ".join(found[0].where)
        parts.append(f"{effect} at {axes} {enumerate_items(where)}" if axes else effect)
    return ", ".join(parts)


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


def render(text: str, values: Mapping[str, Any]) -> str:
    """Put values in the braces of a sentence: plain names only, whatever a file says."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"got {text!r}. Accepted: a sentence")
    try:
        return "".join(
            literal + ("" if name is None else _format(values[name], spec or "", conversion))
            for literal, name, spec, conversion in string.Formatter().parse(text)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{text!r} cannot be written with the values {', '.join(values) or '(none)'}: {error}"
        ) from error


def _format(value: Any, spec: str, conversion: str | None) -> str:
    if conversion or not _SPEC.fullmatch(spec):
        raise ValueError(f"format {spec!r} is not accepted")
    return format(value, spec)
