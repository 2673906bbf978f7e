"""Plot how far apart the results of one computation are, beside what theory allows."""

import math
from typing import TYPE_CHECKING, Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import (
    GREY,
    add_legend,
    add_titles,
    new_axes,
    number,
    paint,
    plain,
    series_style,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["spread_plot"]


def spread_plot(
    frame: "pd.DataFrame",
    *,
    x: str,
    title: str,
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the spread of the results of candidates, and its bound as a dashed line.

    Both axes are logarithmic, but for the part of the spreads from 0 to 1 ulp, which is linear: a
    candidate whose results are all the same is on the axis.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per candidate and size: columns *candidate*, *x*, *spread* and *bound*, the last two
        in ulp. A spread that is NaN says that there is none, because a result overflowed: a cross
        at the top replaces it. An infinite bound is not drawn, one that all the candidates share
        is grey. Other columns are ignored.
    x : str
        Column of the sizes, positive numbers.
    title : str
        Title of the plot.
    caption : str
        Line below the title: the type, the provider, the number of results.
    ax : matplotlib.axes.Axes, optional
        Where to plot, a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, the frame is empty, a size is not positive, a spread or a bound is
        negative.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame(
    ...     {"candidate": ["naive", "naive", "exact", "exact"], "size": [16, 1024] * 2,
    ...      "spread": [3.0, 40.0, 0.0, 0.0], "bound": [30.0, 2000.0, 1.0, 1.0]})
    >>> ax = spread_plot(frame, x="size", title="Spread of a sum")
    >>> ax.get_ylabel()
    'max - min (ulp), lower is better'
    >>> plt.close(ax.figure)
    """
    _check(frame, x)
    own_figure = ax is None
    ax = new_axes(4.8) if ax is None else ax
    names = list(dict.fromkeys(frame["candidate"]))
    bounds = frame.groupby(x)["bound"]
    common = len(names) > 1 and bool((bounds.min() == bounds.max()).all())
    for rank, name in enumerate(names):
        _draw(ax, frame[frame["candidate"] == name].sort_values(x), x, rank, common=common)
    ax.set_xscale("log", base=2)
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(bottom=-0.2)
    ax.set_xticks(*_ticks(sorted(set(frame[x]))))
    ax.minorticks_off()
    ax.set(xlabel=plain(x), ylabel="max - min (ulp), lower is better")
    add_legend(ax, [str(name) for name in names], own_figure=own_figure)
    overflow = "; crosses: a result overflows" if frame["spread"].isna().any() else ""
    add_titles(
        ax, title, f"{caption}{', ' if caption else ''}dashed: bound of the spread{overflow}"
    )
    paint(ax)
    return ax


def _draw(ax: "Axes", rows: "pd.DataFrame", x: str, rank: int, *, common: bool) -> None:
    # Dashed lines are bounds; markers that coincide are still told apart by their sizes.
    style = {**series_style(rank), "linestyle": "-", "markersize": max(9 - 1.5 * rank, 3)}
    color = style["color"]
    ax.errorbar(rows[x], rows["spread"], **style)
    ax.plot(rows[x], rows["bound"], color=GREY if common else color, linestyle="--", linewidth=1)
    lost = rows[rows["spread"].isna()]
    if len(lost):
        heights = [0.98 - 0.04 * rank] * len(lost)
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot(lost[x], heights, "x", color=color, **place)


def _check(frame: "pd.DataFrame", x: str) -> None:
    missing = [c for c in ("candidate", x, "spread", "bound") if c not in frame.columns]
    if missing or frame.empty:
        raise InvalidArgumentError(
            f"Columns candidate, {x}, spread and bound are expected, with a row at least. Got "
            f"{list(map(str, frame.columns))} and {len(frame)} rows"
        )
    if not (frame[x] > 0).all() or (frame["spread"] < 0).any() or not (frame["bound"] >= 0).all():
        raise InvalidArgumentError(
            f"Column {x} holds positive numbers, spread and bound hold positive numbers or zero. "
            f"Their smallest values are {frame[[x, 'spread', 'bound']].min().to_dict()}"
        )


def _ticks(sizes: list[float]) -> tuple[list[float], list[str]]:
    """Choose eight sizes at most, the largest one included."""
    step = math.ceil(len(sizes) / 8)
    kept = sizes[::-1][::step][::-1]
    return kept, [number(size) for size in kept]
