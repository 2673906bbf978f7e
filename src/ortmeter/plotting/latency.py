"""Plot the latency of candidates, and their speedup over one of them."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import UNITS, Speedup, common_unit
from ortmeter.plotting.axes import (
    add_legend,
    finish,
    mark_one,
    need_columns,
    new_axes,
    number,
    plain,
    series_style,
    whiskers,
    wrap,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

STATISTICS = ("q1", "median", "q3")
AXES_WIDTH = 390  # points, about, in our own figure
_SPREAD = 0.6  # share of the place of an x value that its candidates occupy


def latency_plot(frame: "pd.DataFrame", *, x: str = "", title: str, caption: str = "") -> "Axes":
    """Plot medians and quartiles (s) against the sizes *x*, or one row per candidate.

    The unit is the largest one in which half of the medians are at least 1.
    """
    frame = _checked(frame, x)
    return _plot(frame, x, common_unit(frame["median"]), title, caption)


def _plot(frame: "pd.DataFrame", x: str, unit: str, title: str, caption: str) -> "Axes":
    names = list(frame["candidate"].unique())
    single = len(set(frame[x])) == 1
    ax = new_axes(1.8 + 0.4 * len(names) if single else 4.8)
    for rank, name in enumerate(names):
        rows = frame[frame["candidate"] == name].sort_values(x)
        q1, medians, q3 = (rows[column].to_numpy(float) * UNITS[unit] for column in STATISTICS)
        whiskers, style = [medians - q1, q3 - medians], series_style(rank)
        if single:
            ax.errorbar(medians, [rank], xerr=whiskers, capsize=4, **style)
        else:
            ax.errorbar(rows[x].to_numpy(float), medians, yerr=whiskers, capsize=3, **style)
    latency = f"median latency ({unit}), lower is better"
    if single:
        ax.set_yticks(range(len(names)), [wrap(str(name), 24) for name in names])
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(left=0)
        where = f", {plain(x)} = {number(frame[x].iloc[0])}" if x else ""
        ax.set(xlabel=latency, ylabel=f"candidate{where}")
    else:
        _scale(ax, sorted(frame[x].unique()))
        ax.set(xlabel=plain(x), ylabel=latency)
        add_legend(ax, [str(name) for name in names])
    return finish(ax, title, caption)


def _checked(frame: "pd.DataFrame", x: str) -> "pd.DataFrame":
    """Check a frame; without a column of sizes, they are all 1."""
    need_columns(frame, "candidate", *([x] if x else []), *STATISTICS)
    frame = frame if x else frame.assign(**{x: 1})
    if frame["candidate"].isna().any():
        raise InvalidArgumentError("Column 'candidate' has no missing name, this one has")
    for name in (x, *STATISTICS):
        wrong = [v for v in frame[name] if not (isinstance(v, Real) and 0 < float(v) < math.inf)]
        if wrong:
            raise InvalidArgumentError(
                f"Column {name!r} holds finite positive numbers, it cannot hold {wrong[0]!r}"
            )
    unordered = frame[(frame["q1"] > frame["median"]) | (frame["median"] > frame["q3"])]
    if len(unordered):
        raise InvalidArgumentError(
            f"q1 <= median <= q3 is expected, this row differs: {unordered.iloc[0].to_dict()}"
        )
    twice = frame[frame.duplicated(["candidate", x])]
    if len(twice):
        raise InvalidArgumentError(
            f"A candidate has one row per {x}, {twice['candidate'].iloc[0]!r} has several for "
            f"{twice[x].iloc[0]}"
        )
    return frame


def _scale(ax: "Axes", sizes: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set(xscale="log", yscale="log")
    ax.set_xticks(sizes, _spaced_labels(sizes))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())


def _spaced_labels(sizes: list[float]) -> list[str]:
    """Write the sizes, except those whose label would touch the previous one."""
    labels, free_from = [], -math.inf
    points_per_log = AXES_WIDTH / math.log(sizes[-1] / sizes[0])
    for size in sizes:
        label, position = number(size), points_per_log * math.log(size)
        half_width = 3.5 * len(label) + 2
        fits = position - half_width >= free_from
        labels.append(label if fits else "")
        free_from = position + half_width if fits else free_from
    return labels


def speedup_plot(claims: Sequence[Speedup], *, title: str, caption: str = "") -> "Axes":
    """Plot speedups over one baseline; those of one place are side by side.

    Parameters
    ----------
    claims : sequence of Speedup
        Comparisons with one baseline, as :meth:`Comparisons.speedups
        <ortmeter.timing.Comparisons.speedups>` returns them.
    title, caption : str
        Title of the plot, and the line below it.

    Returns
    -------
    matplotlib.axes.Axes
        Points with their intervals. The band around 1 is the minimum effect.

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
    baseline = _only({claim.baseline for claim in claims}, "baselines")
    axes = _only({", ".join(claim.where) for claim in claims}, "axes")
    places = list(dict.fromkeys(_place(claim) for claim in claims))
    points = [(places.index(_place(claim)), claim) for claim in claims]
    ax = new_axes(4.2)
    mark_one(ax, claims[0].min_effect)
    names = list(dict.fromkeys(s.subject for _, s in points))
    for rank, name in enumerate(names):
        mine = [(i, s) for i, s in points if s.subject == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        ratios = [s.ratio or math.nan for _, s in mine]
        ends = list(zip(*(whiskers(s) for _, s in mine), strict=True))
        # The baseline keeps the first style: a candidate looks the same as in a plot of latencies.
        style = {**series_style(rank + 1), "linestyle": "none"}
        ax.errorbar([i + offset for i, _ in mine], ratios, yerr=ends, capsize=4, **style)
    ax.set_xticks(range(len(places)) if axes else [], places if axes else [])
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set(xlabel=plain(axes), ylabel=f"speedup over {plain(baseline)}, higher is better")
    add_legend(ax, names)
    return finish(ax, title, caption)


def _place(claim: Speedup) -> str:
    return ", ".join(map(str, claim.where.values()))


def _only(found: set[str], what: str) -> str:
    if len(found) != 1:
        raise InvalidArgumentError(
            f"claims have the {what} {sorted(found)}. Accepted: speedups over one baseline, along "
            "one axis"
        )
    return found.pop()
