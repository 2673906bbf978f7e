"""How comparisons are listed: one sentence for several places, a ranking, a list of names."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from ortmeter.evidence import Speedup, Speedups

__all__ = ["enumerate_items"]


def sentences(claims: Iterable[Speedup | str]) -> list[str]:
    """Write claims as sentences; those on one pair at several places become one, texts stay."""
    written: list[str] = []
    for _, run in itertools.groupby(claims, _pair):
        group = list(run)
        pairs = [claim for claim in group if isinstance(claim, Speedup) and claim.where]
        written += [_group(pairs)] if len(pairs) > 1 else map(str, group)
    return written


def rank(claims: Speedups) -> str:
    """Write which candidate has the lowest median, and the others beside it."""
    first = claims[0]
    if len(claims) == 1:
        return str(first.reversed)
    near = f"within {first.min_effect:.0%}"
    words = {"slower": "slower", "negligible": near, "undecided": "undecided"}
    return f"{first.baseline} has the lowest median; {by_verdict(claims, words, _times)}"


def by_verdict(
    claims: Sequence[Speedup], words: Mapping[str, str], told: Callable[[Speedup], str]
) -> str:
    """Write the subjects of each verdict, with what *told* says of them."""
    parts = []
    for verdict, word in words.items():
        if own := [claim for claim in claims if claim.verdict == verdict]:
            parts.append(f"{word}: {enumerate_items([f'{c.subject} ({told(c)})' for c in own])}")
    return "; ".join(parts)


def _times(claim: Speedup) -> str:
    turned = claim.reversed
    told = f"{turned.ratio:.2f} times {turned.brackets}{turned.estimate.confidence_suffix}"
    return told if claim.has_interval else "no interval"


def _pair(claim: Speedup | str) -> tuple[str, ...] | None:
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
