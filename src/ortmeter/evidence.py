"""What measurements tell: numbers with intervals, comparisons with verdicts, findings.

Nothing here measures; :mod:`ortmeter.study.writer` lists several comparisons in one sentence.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "COMPARED",
    "UNITS",
    "Estimate",
    "Finding",
    "Prediction",
    "Speedup",
    "Speedups",
    "common_unit",
    "rounded",
]

#: Verdicts on the speed of a subject beside its baseline.
COMPARED = ("faster", "slower", "negligible", "undecided")
#: What a place and a sentence are made of.
Scalar: TypeAlias = bool | int | float | str | None

#: Units of a duration, and how many there are in a second.
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
#: Level of an interval, unless another one is written beside it.
LEVEL = 0.99
_MOST_TOLD = 6  # ratios


def common_unit(seconds: Iterable[float]) -> str:
    """Choose the largest unit in which half of the durations are at least 1.

    Parameters
    ----------
    seconds : iterable of float
        Durations.

    Returns
    -------
    str
        A name of :data:`UNITS`.

    Examples
    --------
    >>> common_unit([0.002, 0.003, 1.0])
    'ms'
    """
    typical = statistics.median(seconds)
    return next((name for name, factor in UNITS.items() if typical * factor >= 1), "µs")


def rounded(value: float | None, digits: int = 4) -> float:
    """Return a number with so many significant digits, for a table.

    Parameters
    ----------
    value : float or None
        The number; NaN stands for none.
    digits : int
        Significant digits.

    Returns
    -------
    float
        The number.

    Examples
    --------
    >>> rounded(812.345, 3)
    812.0
    """
    return math.nan if value is None else float(f"{value:.{digits}g}")


def plural(count: int, what: str) -> str:
    """Write how many there are of something: ``2 nodes``."""
    return f"{count} {what}{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Finding:
    """Whether something holds, case by case, and the numbers that decide.

    Parameters
    ----------
    outcomes : tuple of bool or None
        For each case, whether it holds, None when that is not decided.
    evidence : str
        The numbers that decide.
    effect : tuple of float, optional
        The least and the largest effect, where the finding is one that somebody can act on.
    unit : str
        What the effect is in: ``times faster``, ``% of the runs wrong``.

    Examples
    --------
    >>> found = Finding((True,), "lowest 1.2") & Finding((None,), "highest 2.5")
    >>> found.verdict, found.evidence
    ('undecided', 'lowest 1.2; highest 2.5')
    """

    outcomes: tuple[bool | None, ...]
    evidence: str = ""
    effect: tuple[float, float] | None = None
    unit: str = ""

    @property
    def verdict(self) -> Literal["right", "wrong", "undecided"]:
        """``wrong`` when a case contradicts; ``undecided`` when one does not tell, or without any.

        ``right`` otherwise.
        """
        if False in self.outcomes:
            return "wrong"
        return "right" if self.outcomes and None not in self.outcomes else "undecided"

    def __and__(self, other: "Finding") -> "Finding":
        """Put the cases of both together, and what decides them."""
        told = "; ".join(filter(None, (self.evidence, other.evidence)))
        effects = [one.effect for one in (self, other) if one.effect is not None]
        effect = (min(e[0] for e in effects), max(e[1] for e in effects)) if effects else None
        return Finding(self.outcomes + other.outcomes, told, effect, self.unit or other.unit)

    def gains(self, least: float, most: float | None = None, unit: str = "") -> "Finding":
        """Return the finding with the least and the largest effect, one number by default."""
        return replace(self, effect=(least, least if most is None else most), unit=unit)


@dataclass(frozen=True)
class Estimate:
    """A number, its interval, and how it was measured.

    Parameters
    ----------
    value : float
        The number.
    low, high : float, optional
        Confidence interval, None when there are too few samples for one.
    confidence : float
        Level of the interval.
    how : str
        How it was measured: ``10 processes``, ``in one process``.
    unit : str
        What it is in: ``s`` is written in s, ms or µs; empty for a ratio.

    Examples
    --------
    >>> str(Estimate(812.3, 805.0, 820.0)), str(Estimate(812.3))
    ('812 [805, 820]', '812')
    >>> str(Estimate(0.0121, 0.012, 0.0124, unit="s"))
    '12.1 [12, 12.4] ms'
    """

    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = LEVEL
    how: str = ""
    unit: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def inverse(self) -> "Estimate":
        """The inverse of a ratio."""
        low, high = (1 / x if x else None for x in (self.high, self.low))
        return replace(self, value=1 / self.value, low=low, high=high)

    def exceeds(self, bound: float) -> bool | None:
        """Whether it is at or above a bound, None when the interval does not tell."""
        if self.interval is None or self.interval[0] < bound <= self.interval[1]:
            return None
        return self.interval[0] >= bound

    def within(self, low: float, high: float) -> Finding:
        """Find whether it lies between two bounds; the interval must be inside, or outside."""
        least, most = self.interval or (-math.inf, math.inf)
        outside = least > high or most < low
        held = False if outside else (low <= least and most <= high) or None
        return Finding((held,), str(self))

    def below(self, other: "Estimate | float") -> Finding:
        """Find whether it is below a number, or another one: their intervals must not meet."""
        if not isinstance(other, Estimate):
            return replace(self.below(Estimate(other, other, other)), evidence=str(self))
        held = None
        if self.interval and other.interval:
            above = self.interval[0] > other.interval[1]
            held = True if self.interval[1] < other.interval[0] else False if above else None
        return Finding((held,), f"{self} against {other}")

    @property
    def seconds(self) -> str:
        """The same of a duration in seconds, in the unit that suits it."""
        unit = common_unit([abs(self.value)])
        return f"{self.written(UNITS[unit])} {unit}"

    def written(self, factor: float = 1.0) -> str:
        """Write this many times the number and its interval, with three digits."""
        value, *ends = (f"{rounded(factor * x, 3):g}" for x in (self.value, *(self.interval or ())))
        return f"{value} [{', '.join(ends)}]" if ends else value

    @property
    def confidence_suffix(self) -> str:
        """The level of the interval as a sentence adds it, `` (99.9% CI)``, empty if it is 99%."""
        usual = self.interval is None or self.confidence == LEVEL
        return "" if usual else f" ({100 * self.confidence:.4g}% CI)"

    def __str__(self) -> str:
        text = self.seconds if self.unit == "s" else f"{self.written()} {self.unit}".strip()
        return text + self.confidence_suffix


class Speedup(msgspec.Struct, frozen=True):
    """How many times faster a subject is than its baseline.

    Parameters
    ----------
    subject, baseline : str
        The candidate, and what it is compared with.
    estimate : Estimate
        Latency of the baseline divided by the subject's; above 1 the subject is faster.
    where : mapping of str to object
        Where it holds: size, type, number of threads.
    min_effect : float
        Smallest relative difference that is worth a claim.

    Examples
    --------
    >>> print(Speedup("one", "two", Estimate(1.5, 1.4, 1.6, how="10 processes")))
    one is 1.50 times faster than two [1.40, 1.60] (99% CI, 10 processes)
    """

    subject: str
    baseline: str
    estimate: Estimate
    where: Mapping[str, Scalar] = {}
    min_effect: float = 0.05

    @property
    def ratio(self) -> float:
        """The estimated ratio."""
        return self.estimate.value

    @property
    def low(self) -> float | None:
        """Lower end of the interval, None with too few samples."""
        return self.estimate.low

    @property
    def high(self) -> float | None:
        """Upper end of the interval, None with too few samples."""
        return self.estimate.high

    @property
    def confidence(self) -> float:
        """Level of the interval."""
        return self.estimate.confidence

    @property
    def how(self) -> str:
        """How it was measured."""
        return self.estimate.how

    @property
    def verdict(self) -> str:
        """One of :data:`COMPARED`.

        ``negligible`` when the whole interval is within the minimum effect of 1; ``faster`` or
        ``slower`` when it leaves 1 out and is not; ``undecided`` otherwise.
        """
        if self.low is None or self.high is None:
            return "undecided"
        most = 1 + self.min_effect
        if 1 / most < self.low and self.high < most:
            return "negligible"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "undecided"

    @property
    def may_be_small(self) -> bool:
        """Whether it is faster or slower, perhaps by less than the minimum effect."""
        near = self.low if self.verdict == "faster" else self.reversed.low
        return self.is_difference and near is not None and near < 1 + self.min_effect

    @property
    def is_difference(self) -> bool:
        """Whether the subject is said to be faster or slower."""
        return self.verdict in {"faster", "slower"}

    @property
    def has_interval(self) -> bool:
        """Whether there were enough samples for an interval."""
        return self.estimate.interval is not None

    def at(self, **where: Any) -> "Speedup":
        """Return the comparison with these names and values added to its place."""
        return msgspec.structs.replace(self, where={**self.where, **where})

    def named(self, subject: str = "", baseline: str = "") -> "Speedup":
        """Return the same comparison under other names."""
        names = {"subject": subject or self.subject, "baseline": baseline or self.baseline}
        return msgspec.structs.replace(self, **names)

    def exceeds(self, bound: float) -> bool | None:
        """Whether the ratio is at or above a bound, None when the interval does not tell."""
        return self.estimate.exceeds(bound)

    def is_a(self, verdict: str) -> bool | None:
        """Whether it is ``faster``, ``slower`` or ``negligible``, None when undecided.

        A difference that may be small does not tell whether it is negligible.
        """
        if self.verdict == "undecided" or (verdict == "negligible" and self.may_be_small):
            return None
        return self.verdict == verdict

    def widened(self, times: float) -> "Speedup":
        """Return the same comparison with an interval so many times wider."""
        if self.low is None or self.high is None:
            return self
        low, high = (self.ratio * (end / self.ratio) ** times for end in (self.low, self.high))
        return msgspec.structs.replace(self, estimate=replace(self.estimate, low=low, high=high))

    @property
    def magnitude(self) -> Estimate:
        """The ratio of the slower to the faster, at least 1."""
        above = self.estimate if self.ratio >= 1 else self.estimate.inverse
        if above.low is None or above.high is None or above.low >= 1:
            return above
        return replace(above, low=1.0, high=max(above.high, 1 / above.low))

    @property
    def interval(self) -> str:
        """The ratio and its interval, ``1.50 [1.40, 1.60]``."""
        return f"{self.ratio:.2f}" + (f" {self.brackets}" if self.brackets else ", no interval")

    @property
    def brackets(self) -> str:
        """The interval alone, ``[1.40, 1.60]``, empty when there are too few samples."""
        return "" if self.low is None or self.high is None else f"[{self.low:.2f}, {self.high:.2f}]"

    @property
    def reversed(self) -> "Speedup":
        """The same comparison, with the baseline as the subject."""
        named = self.named(self.baseline, self.subject)
        return msgspec.structs.replace(named, estimate=self.estimate.inverse)

    @property
    def effect(self) -> str:
        """The comparison in a few words, ``1.50 times faster [1.40, 1.60]`` or ``within 5%``."""
        if not self.is_difference:
            small = self.verdict == "negligible"
            return f"within {self.min_effect:.0%}" if small else self.verdict
        shown = self if self.verdict == "faster" else self.reversed
        more = self.estimate.confidence_suffix + f" ({self._perhaps})" * self.may_be_small
        return f"{shown.ratio:.2f} times {self.verdict} {shown.brackets}{more}"

    @property
    def _perhaps(self) -> str:
        return f"perhaps by less than {self.min_effect:.0%}"

    @property
    def _place(self) -> str:
        return f"{', '.join(f'{k} {v}' for k, v in self.where.items())}: " if self.where else ""

    def __str__(self) -> str:
        level = f"{100 * self.confidence:.3g}% CI"
        how = f" ({', '.join(filter(None, (level, self.how)))})" * self.has_interval
        if self.is_difference:
            shown = self if self.verdict == "faster" else self.reversed
            effect = f"{shown.ratio:.2f} times {self.verdict} than {self.baseline}"
            perhaps = f", {self._perhaps}" * self.may_be_small
            return f"{self._place}{self.subject} is {effect} {shown.brackets}{how}{perhaps}"
        pair = f"{self.subject} and {self.baseline}"
        within = f"{pair} are within {self.min_effect:.0%}: "
        told = within if self.verdict == "negligible" else f"undecided between {pair}: speedup "
        return f"{self._place}{told}{self.interval}{how}"


class Speedups(tuple[Speedup, ...]):
    """What a candidate brings over another at each place of a grid.

    Examples
    --------
    >>> won = Speedup("one", "two", Estimate(1.5, 1.4, 1.6))
    >>> tie = Speedup("one", "two", Estimate(1.0, 0.8, 1.2))
    >>> found = Speedups([won.at(n=8), tie.at(n=16)])
    >>> found.at_least(1).verdict, found.at_least(1).evidence
    ('undecided', 'lowest 1.00 [0.80, 1.20] at n 16')
    >>> found.only(n=[8, 32]).gain().verdict
    'right'
    """

    __slots__ = ()

    @property
    def largest(self) -> Speedup:
        """The one that differs most."""
        return max(self, key=lambda claim: abs(math.log(claim.ratio)))

    def only(self, **places: Collection[object]) -> "Speedups":
        """Return the comparisons at some places of the grid: the values to keep on each axis."""
        return Speedups(s for s in self if all(s.where[k] in kept for k, kept in places.items()))

    def at_least(self, bound: float) -> Finding:
        r"""Find whether each ratio is at or above a bound; the lowest interval is what it tells.

        An interval that contradicts is told instead, when the lowest one does not decide. One of
        *n* contradicts by luck more often than one alone: it must do so when it is :math:`\sqrt n`
        times wider, which keeps the level of all where intervals come from 3 processes or more.
        """
        if not self:
            return Finding(())
        outcomes = self._judged(lambda claim: claim.exceeds(bound))
        lowest = min(self, key=lambda claim: claim.low or 0.0)
        below = [claim for claim, held in zip(self, outcomes, strict=True) if held is False]
        if below and lowest not in below:
            return Finding(outcomes, self._told(min(below, key=lambda claim: claim.ratio)))
        return Finding(outcomes, f"lowest {self._told(lowest)}")

    def gain(self, bound: float = 1.05) -> Finding:
        """Find whether each ratio is a gain: at or above a bound, by default a gain of 5%."""
        found = self.at_least(bound)
        ratios = [claim.ratio for claim in self]
        return found.gains(min(ratios), max(ratios), "times faster") if ratios else found

    def are(self, verdict: str) -> Finding:
        """Find whether each one is ``faster``, ``slower`` or ``negligible``.

        One contradicts as for :meth:`at_least`.
        """
        return self._found(self._judged(lambda claim: claim.is_a(verdict)))

    def within(self, times: float) -> Finding:
        """Find whether each ratio is below so many times, whichever is faster.

        One contradicts as for :meth:`at_least`.
        """
        near = self._judged(lambda claim: claim.estimate.within(1 / times, times).outcomes[0])
        return self._found(near)

    def _judged(self, judge: Callable[[Speedup], bool | None]) -> tuple[bool | None, ...]:
        wider = math.sqrt(len(self))
        return tuple(
            None if held is False and judge(claim.widened(wider)) is not False else held
            for claim, held in ((claim, judge(claim)) for claim in self)
        )

    def _found(self, outcomes: tuple[bool | None, ...]) -> Finding:
        """Tell the ratios; of more than six, three, those that contradict first."""
        told = [self._told(claim) for claim in self]
        if len(told) > _MOST_TOLD:
            ranks = sorted(range(len(told)), key=lambda i: (False, None, True).index(outcomes[i]))
            told = [*(told[i] for i in ranks[:3]), f"{len(told) - 3} more"]
        return Finding(outcomes, "; ".join(told))

    def _told(self, claim: Speedup) -> str:
        """Write one ratio with its candidate, if there are several, and its place."""
        several = len({other.subject for other in self}) > 1
        place = ", ".join(f"{name} {value}" for name, value in claim.where.items())
        told = f"{claim.subject}: " * several + claim.interval + claim.estimate.confidence_suffix
        return f"{told} at {place}" if place else told


class Prediction(msgspec.Struct, frozen=True, tag_field="kind", tag="prediction"):
    """A sentence of a page, and whether it holds: what a record keeps of it.

    Parameters
    ----------
    text : str
        The sentence.
    verdict : {"right", "wrong", "undecided"}
        Whether it holds.
    evidence : str
        The numbers that decide.
    topic : str
        Name of its finding.

    Examples
    --------
    >>> print(Prediction("one is never slower", "right", "lowest 1.2"))
    Right: one is never slower (lowest 1.2)
    """

    text: str
    verdict: Literal["right", "wrong", "undecided"]
    evidence: str = ""
    topic: str = ""

    def __str__(self) -> str:
        told = f" ({self.evidence})" if self.evidence else ""
        return f"{self.verdict.capitalize()}: {self.text}{told}"
