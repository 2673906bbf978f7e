"""Find which of many steps move a result, within a budget of time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from ortmeter.discrepancy import Discrepancy
from ortmeter.progress import progress_bar

__all__ = ["Span", "find_effects"]

# Past this share of its budget, a search that has found this share of the effects ends.
_ENOUGH_TIME, _ENOUGH = 0.1, 0.999

#: Result once the first steps, as many as asked, are replaced; None when it is late before the end.
Run: TypeAlias = Callable[[int, Callable[[], bool]], Any]


@dataclass(frozen=True)
class Span:
    """Steps of a search, and what they change together.

    Attributes
    ----------
    start, stop : int
        The first step, and the one after the last.
    effect : Discrepancy
        Results with the steps before *stop* replaced, compared with those before *start*.
    """

    start: int
    stop: int
    effect: Discrepancy

    @property
    def is_single(self) -> bool:
        """Whether it is one step."""
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
) -> list[Span]:
    """Find which of many steps, replaced one after the other, move a result.

    Parameters
    ----------
    run : callable
        Takes a number of steps, and a function that tells whether the time is up; returns the
        result once the first steps, as many as asked, are replaced, or None when it is late.
    ends : tuple of two results
        With no step replaced, and with all of them.
    weights : sequence of float
        One for each step, positive: where the responsible step is likely to be.
    compare : callable
        Takes two results, returns their :class:`~ortmeter.discrepancy.Discrepancy`.
    severity : callable
        Takes a discrepancy, returns the number of its mismatches and its size: the largest is split
        first.
    budget_s : float
        Seconds at most. After a tenth of them, the search ends when it has found 99.9% of the
        effects.
    most_kept : float
        Results that are in memory at once, at most.

    Returns
    -------
    list of Span
        All the steps: one by one, or in groups that were not told apart.

    Notes
    -----
    Results with the first k steps replaced telescope: the effects of the spans add up to the
    difference of the *ends*, whatever was split. A span is cut where its weights balance.

    Examples
    --------
    The third of four steps adds 5, the others 1.

    >>> import numpy as np
    >>> from ortmeter import max_diff
    >>> sums = np.float64([0, 1, 2, 7, 8])
    >>> found = find_effects(
    ...     lambda count, is_late: sums[count],
    ...     (sums[0], sums[4]),
    ...     [1, 1, 1, 1],
    ...     max_diff,
    ...     lambda effect: (0, effect.abs),
    ...     budget_s=10,
    ... )
    >>> [span.start for span in found if span.effect.abs > 1]
    [2]
    """
    below = [0.0, *accumulate(weights)]
    spans = [Span(0, len(weights), compare(*ends))] if weights else []
    kept = {0: ends[0], len(weights): ends[1]}
    started = time.perf_counter()

    def spent() -> float:
        return time.perf_counter() - started

    with progress_bar("seconds of search", total=math.ceil(budget_s)) as bar:
        while spent() < budget_s and len(kept) < most_kept:
            groups = [span for span in spans if not span.is_single]
            if not groups:
                break
            if spent() >= _ENOUGH_TIME * budget_s:
                left = [severity(group.effect) for group in groups]
                known = sum(severity(span.effect)[1] for span in spans if span.is_single)
                every = known + sum(figure for _, figure in left)
                if not any(count for count, _ in left) and known >= _ENOUGH * every > 0:
                    break
            span = max(groups, key=lambda group: (severity(group.effect), -group.start))
            # Where the weights of both sides are the closest.
            half = (below[span.start] + below[span.stop]) / 2
            cut = min(range(span.start + 1, span.stop), key=lambda cut: abs(below[cut] - half))
            result = run(cut, lambda: spent() >= budget_s)
            bar.update(min(int(spent()), bar.total or 0) - bar.n)
            if result is None:
                break
            kept[cut] = result
            parts = ((span.start, cut), (cut, span.stop))
            spans.remove(span)
            spans += [Span(*part, compare(*(kept[edge] for edge in part))) for part in parts]
            edges = {e for one in spans if not one.is_single for e in (one.start, one.stop)}
            kept = {edge: value for edge, value in kept.items() if edge in edges}
    return spans
