"""Plot the latency of candidates, and their speedup over one of them."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import UNITS, Speedup, common_unit
from ortmeter.plotting import axes
from ortmeter.timing.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 0.6  # share of the place of an x value that its candidates occupy
_LETTERS = 60  # that fit side by side below the axis
_SPAN = 4  # of ratios that a linear scale presses on 1


def latency_plot(results: Mapping[str, Measurement], *, title: str, caption: str = "") -> "Axes":
    """Plot the median latency of each candidate, with its quartiles.

    Parameters
    ----------
    results : mapping of str to Measurement
        What :func:`~ortmeter.timing.measure` returns.
    title, caption : str
        Title of the plot, and the line below it.

    Returns
    -------
    matplotlib.axes.Axes
        One row per candidate, in the largest unit in which half of the medians are at least 1.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.timing import Comparison, Measurement
    >>> ax = latency_plot(Comparison([Measurement("a", [[2e-3, 2e-3]])]), title="Latency")
    >>> ax.get_xlabel()
    'median latency (ms), lower is better'
    >>> plt.close(ax.figure)
    """
    unit = common_unit(measured.median for measured in results.values())
    ax = axes.new_axes(1.8 + 0.4 * len(results))
    styles = axes.series_styles(results)
    for rank, (measured, style) in enumerate(zip(results.values(), styles, strict=True)):
        q1, q3 = measured.quartiles
        ends = UNITS[unit] * np.array([[measured.median - q1], [q3 - measured.median]])
        center = measured.median * UNITS[unit]
        ax.errorbar([center], [rank], xerr=ends, capsize=4, **style)
    ax.set_xlim(left=0)
    ax.set(xlabel=f"median latency ({unit}), lower is better", ylabel="candidate")
    return axes.finish_rows(ax, list(results), title, caption)


def speedup_plot(
    claims: Sequence[Speedup], *, title: str, caption: str = "", along: str = ""
) -> "Axes":
    """Plot speedups over one baseline; those of one place are side by side.

    Parameters
    ----------
    claims : sequence of Speedup
        Comparisons with one baseline, as :meth:`Comparisons.speedups
        <ortmeter.timing.Comparisons.speedups>` returns them.
    title, caption : str
        Title of the plot, and the line below it.
    along : str
        What the places are, by default the name of their axis.

    Returns
    -------
    matplotlib.axes.Axes
        Points with their intervals, on a logarithmic scale if they span a factor of 4. The band
        around 1 is the minimum effect.

    Raises
    ------
    InvalidArgumentError
        The claims have several baselines or axes.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.evidence import Estimate, Speedup
    >>> ax = speedup_plot([Speedup("new", "old", Estimate(1.5, 1.4, 1.6))], title="Speedup")
    >>> ax.get_ylabel()
    'speedup over old, higher is better'
    >>> plt.close(ax.figure)
    """
    from matplotlib.ticker import LogLocator

    baseline = _only({claim.baseline for claim in claims}, "baselines")
    axis = _only({", ".join(claim.where) for claim in claims}, "axes")
    places = list(dict.fromkeys(_place_text(claim) for claim in claims))
    points = [(places.index(_place_text(claim)), claim) for claim in claims]
    are_long = sum(map(len, places)) > _LETTERS
    ax = axes.new_axes(5.2 if are_long else 4.2)
    axes.mark_one(ax, claims[0].min_effect)
    names = list(dict.fromkeys(s.subject for _, s in points))
    _, *styles = axes.series_styles([baseline, *names])  # the style of the baseline is kept for it
    for rank, name in enumerate(names):
        mine = [(i, s) for i, s in points if s.subject == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        ratios = [s.ratio or math.nan for _, s in mine]
        ends = list(zip(*(axes.whiskers(s) for _, s in mine), strict=True))
        style = {**styles[rank], "linestyle": "none"}
        ax.errorbar([i + offset for i, _ in mine], ratios, yerr=ends, capsize=4, **style)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if are_long else {}
    ax.set_xticks(range(len(places)) if axis else [], places if axis else [], **turned)
    ax.set_xlim(-0.5, len(places) - 0.5)
    if max(c.high or c.ratio for c in claims) > _SPAN * min(c.low or c.ratio for c in claims):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    over = axes.plain(baseline)
    ax.set(xlabel=axes.plain(along or axis), ylabel=f"speedup over {over}, higher is better")
    axes.add_legend(ax, names)
    return axes.finish(ax, title, caption)


def _place_text(claim: Speedup) -> str:
    return ", ".join(map(str, claim.where.values()))


def _only(values: set[str], what: str) -> str:
    if len(values) != 1:
        raise InvalidArgumentError(
            f"claims have the {what} {sorted(values)}. Accepted: speedups over one baseline, along "
            "one axis"
        )
    return values.pop()
