"""Plot speedups with their intervals."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import (
    GREY,
    add_legend,
    add_titles,
    new_axes,
    paint,
    plain,
    series_style,
)
from ortmeter.timing.claims import Claim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["speedup_plot"]

_SPREAD = 0.6  # share of the place of an x value that its candidates occupy


def speedup_plot(
    claims: Sequence[Claim],
    *,
    title: str,
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot how many times faster candidates are than one baseline, with the intervals.

    The band around 1 is the minimum effect: a difference that lies in it is not worth a claim. A
    point without whiskers has too few samples for an interval.

    Parameters
    ----------
    claims : sequence of Claim
        Speedups over one baseline; those of one place (a size, a type) are drawn side by side.
    title : str
        Title of the plot.
    caption : str
        Line below the title: the machine, the provider, the number of threads.
    ax : matplotlib.axes.Axes, optional
        Where to plot, a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        There is no speedup, or they have different baselines or axes.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.timing.claims import compare_ratio
    >>> one = compare_ratio("one Gemm", "two Gemms", 1.2, (1.1, 1.3), where={"size": 256})
    >>> ax = speedup_plot([one], title="One big Gemm or two smaller?")
    >>> ax.get_ylabel(), ax.get_xlabel()
    ('speedup over two Gemms, higher is better', 'size')
    >>> plt.close(ax.figure)
    """
    baseline = _only({claim.baseline for claim in claims}, "baselines")
    axes = _only({", ".join(claim.where) for claim in claims}, "axes")
    places = list(dict.fromkeys(_place(claim) for claim in claims))
    points = [(places.index(_place(claim)), claim) for claim in claims]
    own_figure = ax is None
    ax = new_axes(4.2) if ax is None else ax
    effect = points[0][1].min_effect
    ax.axhspan(1 / (1 + effect), 1 + effect, color=GREY, alpha=0.2, linewidth=0)
    ax.axhline(1, color=GREY, linewidth=1)

    names = list(dict.fromkeys(s.candidate for _, s in points))
    for rank, name in enumerate(names):
        mine = [(i, s) for i, s in points if s.candidate == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        ratios = [s.ratio or math.nan for _, s in mine]
        whiskers = list(zip(*(_whiskers(s) for _, s in mine), strict=True))
        # The baseline keeps the first style: a candidate looks the same as in a plot of latencies.
        style = {**series_style(rank + 1), "linestyle": "none"}
        ax.errorbar([i + offset for i, _ in mine], ratios, yerr=whiskers, capsize=4, **style)
    ax.set_xticks(range(len(places)), places)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set(xlabel=plain(axes), ylabel=f"speedup over {plain(baseline)}, higher is better")
    add_legend(ax, names, own_figure=own_figure)
    add_titles(ax, title, caption)
    paint(ax)
    return ax


def _place(claim: Claim) -> str:
    return ", ".join(map(str, claim.where.values()))


def _whiskers(claim: Claim) -> tuple[float, float]:
    if claim.ratio is None or claim.low is None or claim.high is None:
        return 0.0, 0.0
    return claim.ratio - claim.low, claim.high - claim.ratio


def _only(found: set[str], what: str) -> str:
    if len(found) != 1:
        raise InvalidArgumentError(
            f"claims have the {what} {sorted(found)}. Accepted: speedups over one baseline, along "
            "one axis"
        )
    return found.pop()
