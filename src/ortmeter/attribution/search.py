"""Find which of many steps move a result, within a budget of time."""

import heapq
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from ortmeter.discrepancy import Discrepancy
from ortmeter.progress import progress_bar

# Past this share of its budget, a search that has found this share of the effects ends.
_ENOUGH_TIME, _ENOUGH = 0.1, 0.999

#: Result once the first steps, as many as asked, are replaced; None when it is late before the end.
Run: TypeAlias = Callable[[int, Callable[[], bool]], Any]


@dataclass(frozen=True)
class Span:
    """Steps from `start` to `stop`, which is excluded, and what they change together."""

    start: int
    stop: int
    effect: Discrepancy

    @property
    def is_single(self) -> bool:
        return self.stop - self.start == 1


def find_effects(
    run: Run,
    ends: tuple[Any, Any],
    weights: Sequence[float],
    compare: Callable[[Any, Any], Discrepancy],
    severity: Callable[[Discrepancy], tuple[float, ...]],
    *,
    budget_s: float,
    most_kept: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Span]:
    """Split the steps, the part of the largest effect first, until none is left or time is up.

    Results with the first k steps replaced telescope: the effects of the spans add up to the
    difference of the `ends`, whatever was split. `weights` say where the responsible step is likely
    to be: a span is cut where they balance. A search that lasts ends when what is left is
    negligible.
    """
    steps = len(weights)
    if not steps:
        return []
    below = [0.0, *accumulate(weights)]
    kept = {0: ends[0], steps: ends[1]}
    started = clock()

    def spent() -> float:
        return clock() - started

    def rank(span: Span) -> tuple[Any, ...]:
        return tuple(-value for value in severity(span.effect)), span.start, span

    whole = Span(0, steps, compare(*ends))
    singles, groups = ([whole], []) if steps == 1 else ([], [rank(whole)])
    with progress_bar("seconds of search", total=math.ceil(budget_s)) as bar:
        while groups and spent() < budget_s and len(kept) < most_kept:
            if spent() >= _ENOUGH_TIME * budget_s and _is_enough(singles, groups, severity):
                break
            span = groups[0][-1]
            cut = _balance(below, span)
            result = run(cut, lambda: spent() >= budget_s)
            bar.update(min(int(spent()), bar.total or 0) - bar.n)
            if result is None:
                break
            heapq.heappop(groups)
            kept[cut] = result
            for start, stop in ((span.start, cut), (cut, span.stop)):
                part = Span(start, stop, compare(kept[start], kept[stop]))
                if part.is_single:
                    singles.append(part)
                else:
                    heapq.heappush(groups, rank(part))
            edges = {edge for *_, group in groups for edge in (group.start, group.stop)}
            kept = {edge: value for edge, value in kept.items() if edge in edges}
    return singles + [group for *_, group in groups]


def _is_enough(
    singles: Sequence[Span],
    groups: Sequence[tuple[Any, ...]],
    severity: Callable[[Discrepancy], tuple[float, ...]],
) -> bool:
    """Check that the groups have no mismatch, and next to no part in the effects."""
    left = [severity(group.effect) for *_, group in groups]
    known = sum(severity(span.effect)[1] for span in singles)
    rest = sum(figure for _, figure in left)
    return not any(count for count, _ in left) and known >= _ENOUGH * (known + rest) > 0


def _balance(below: Sequence[float], span: Span) -> int:
    """Cut a span where the weights of both sides are the closest."""
    first, last = span.start + 1, span.stop - 1
    half = (below[span.start] + below[span.stop]) / 2
    after = bisect_left(below, half, first, last)
    return min((max(after - 1, first), after), key=lambda cut: abs(below[cut] - half))
