"""Plot speedups with their intervals."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from ortmeter.timing import Speedup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["speedup_plot"]

_SPREAD = 0.6  # share of the place of an x value that its candidates occupy


def speedup_plot(
    speedups: Mapping[Any, Sequence[Speedup]],
    *,
    x: str,
    title: str,
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot how many times faster candidates are than one baseline, with the intervals.

    The band around 1 is the minimum effect: no claim is made for what lies in it.

    Parameters
    ----------
    speedups : mapping of sequences of Speedup
        For each value of *x*, one speedup per candidate, all over the same baseline.
    x : str
        Name of the keys, for the axis.
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
        There is no speedup, or they have different baselines.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> one = Speedup("two Gemms", "one Gemm", ratio=1.2, low=1.1, high=1.3)
    >>> ax = speedup_plot({256: [one]}, x="size", title="One big Gemm or two smaller?")
    >>> ax.get_ylabel()
    'speedup over two Gemms, higher is better'
    >>> plt.close(ax.figure)
    """
    points = [(i, s) for i, group in enumerate(speedups.values()) for s in group]
    baseline = _common_baseline([s for _, s in points])
    own_figure = ax is None
    ax = new_axes(4.2) if ax is None else ax
    effect = points[0][1].min_effect
    ax.axhspan(1 / (1 + effect), 1 + effect, color=GREY, alpha=0.2, linewidth=0)
    ax.axhline(1, color=GREY, linewidth=1)

    names = list(dict.fromkeys(s.candidate for _, s in points))
    for rank, name in enumerate(names):
        mine = [(i, s) for i, s in points if s.candidate == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        ratios = [s.ratio for _, s in mine]
        whiskers = [[s.ratio - s.low for _, s in mine], [s.high - s.ratio for _, s in mine]]
        # The baseline keeps the first style: a candidate looks the same as in a plot of latencies.
        style = {**series_style(rank + 1), "linestyle": "none"}
        ax.errorbar([i + offset for i, _ in mine], ratios, yerr=whiskers, capsize=4, **style)
    ax.set_xticks(range(len(speedups)), [str(key) for key in speedups])
    ax.set_xlim(-0.5, len(speedups) - 0.5)
    ax.set(xlabel=plain(x), ylabel=f"speedup over {plain(baseline)}, higher is better")
    add_legend(ax, names, own_figure=own_figure)
    add_titles(ax, title, caption)
    paint(ax)
    return ax


def _common_baseline(speedups: Sequence[Speedup]) -> str:
    baselines = sorted({s.baseline for s in speedups})
    if len(baselines) != 1:
        raise InvalidArgumentError(
            f"speedups have the baselines {baselines}. Accepted: speedups over one baseline"
        )
    return baselines[0]
