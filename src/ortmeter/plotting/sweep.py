"""Plot speedups over a grid: one line per configuration, one panel per candidate."""

from typing import TYPE_CHECKING, cast

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import (
    GREY,
    add_legend,
    add_titles,
    new_axes,
    paint,
    plain,
    series_style,
    wrap,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["sweep_plot"]

_COLUMNS = ("panel", "line", "ratio", "low", "high", "runs")
_SPREAD = 0.4  # share of the place of a size that its lines occupy
_PANEL_HEIGHT = 2.4
_ROW_HEIGHT = 0.35


def sweep_plot(
    frame: "pd.DataFrame",
    *,
    x: str | None,
    title: str,
    baseline: str,
    min_effect: float = 0.05,
    caption: str = "",
) -> "Figure":
    """Plot speedups against a size, with their intervals.

    The line at 1 is the baseline, the band around it the minimum effect. Small dots are the runs
    that an interval was computed from, where there are several.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per point: *panel* (a candidate), *line* (a type, a machine), the column *x*,
        *ratio*, *low*, *high*, and *runs*, the ratios of the runs.
    x : str, optional
        Column of the sizes, evenly spaced in the plot. None draws one row per line instead.
    title : str
        Title of the plot.
    baseline : str
        What the candidates are compared with.
    min_effect : float
        Smallest relative difference that is worth a claim.
    caption : str
        Line below the title.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, or there is no row.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> point = {"panel": "one Gemm", "line": "float32", "low": 1.1, "high": 1.3, "runs": ()}
    >>> frame = pd.DataFrame([{**point, "size": n, "ratio": 1.2} for n in (256, 512)])
    >>> figure = sweep_plot(frame, x="size", title="One Gemm or two?", baseline="two Gemms")
    >>> [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    ['256', '512']
    >>> plt.close(figure)
    """
    needed = [*_COLUMNS, *([x] if x else [])]
    if missing := [name for name in needed if name not in frame.columns]:
        raise InvalidArgumentError(
            f"columns {missing} are missing. Accepted: a frame with {', '.join(needed)}"
        )
    if frame.empty:
        raise InvalidArgumentError("There is nothing to plot: the frame has no row")
    names = list(dict.fromkeys(frame["panel"]))
    lines = list(dict.fromkeys(frame["line"]))
    height = _PANEL_HEIGHT if x else 0.8 + _ROW_HEIGHT * len(lines)
    figure = _new_figure(1.4 + height * len(names))
    panels = list(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0])
    speedup = f"speedup over {plain(baseline)}, higher is better"
    for ax, name in zip(panels, names, strict=True):
        rows = frame[frame["panel"] == name]
        _mark_one(ax, min_effect, vertical=x is None)
        if x:
            _draw_lines(ax, rows, x, lines, sorted(frame[x].unique()))
        else:
            _draw_rows(ax, rows, lines)
        paint(ax)
        ax.set_ylabel(wrap(name, 26), color=GREY)
    if x:
        panels[-1].set_xlabel(plain(x))
        figure.supylabel(speedup, color=GREY, fontsize="medium")
        add_legend(panels[0], lines, own_figure=True)
    else:
        panels[-1].set_xlabel(speedup)
    add_titles(panels[0], title, caption)
    return figure


def _new_figure(height: float) -> "Figure":
    """Create a figure of *height* inches in the style of the other plots."""
    figure = cast("Figure", new_axes(height).figure)
    figure.clear()
    return figure


def _mark_one(ax: "Axes", effect: float, *, vertical: bool) -> None:
    band, line = (ax.axvspan, ax.axvline) if vertical else (ax.axhspan, ax.axhline)
    band(1 / (1 + effect), 1 + effect, color=GREY, alpha=0.2, linewidth=0)
    line(1, color=GREY, linewidth=1)


def _draw_lines(
    ax: "Axes", rows: "pd.DataFrame", x: str, lines: list[str], sizes: list[float]
) -> None:
    for rank, line in enumerate(lines):
        mine = rows[rows["line"] == line].sort_values(x)
        offset = _SPREAD * ((rank + 0.5) / len(lines) - 0.5)
        places = np.array([sizes.index(size) + offset for size in mine[x]])
        style = series_style(rank)
        ax.errorbar(places, mine["ratio"].to_numpy(float), yerr=_whiskers(mine), capsize=3, **style)
        for place, ratios in zip(places, mine["runs"], strict=True):
            ax.plot([place] * len(ratios), ratios, ".", color=style["color"], alpha=0.5)
    ax.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    ax.set_xlim(-0.5, len(sizes) - 0.5)


def _draw_rows(ax: "Axes", rows: "pd.DataFrame", lines: list[str]) -> None:
    for rank, line in enumerate(lines):
        mine = rows[rows["line"] == line]
        style = {**series_style(rank), "linestyle": "none"}
        ax.errorbar(
            mine["ratio"].to_numpy(float),
            [rank] * len(mine),
            xerr=_whiskers(mine),
            capsize=3,
            **style,
        )
        for ratios in mine["runs"]:
            ax.plot(ratios, [rank] * len(ratios), ".", color=style["color"], alpha=0.5)
    ax.set_yticks(range(len(lines)), [wrap(line, 24) for line in lines])
    ax.set_ylim(len(lines) - 0.5, -0.5)


def _whiskers(rows: "pd.DataFrame") -> "NDArray[np.float64]":
    ratio, low, high = (rows[name].to_numpy(dtype=float) for name in ("ratio", "low", "high"))
    # The interval of a bootstrap may leave its own ratio out.
    return np.maximum([ratio - low, high - ratio], 0)
