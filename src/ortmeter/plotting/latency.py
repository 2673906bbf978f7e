"""Plot the latency of several candidates."""

import dataclasses
import math
from collections.abc import Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import (
    add_legend,
    add_titles,
    new_axes,
    number,
    paint,
    plain,
    series_style,
    wrap,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["latency_plot"]

STATISTICS = ("q1", "median", "q3")
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
AXES_WIDTH = 390  # points, about, in our own figure


def latency_plot(
    frame: "pd.DataFrame",
    *,
    x: str = "",
    title: str,
    unit: str = "auto",
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the median latency of candidates, with whiskers at the quartiles.

    One line per candidate and logarithmic axes, with the sizes themselves as ticks; when *x* has a
    single value, one row per candidate and a linear axis that starts at zero.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per candidate and size: columns *candidate*, *x*, *median*, *q1* and *q3*
        (quartiles), the last three in seconds. Other columns are ignored.
    x : str
        Column of the sizes, positive numbers; without it there is one row per candidate.
    title : str
        Title of the plot.
    unit : {"auto", "s", "ms", "µs"}
        Unit of the plot; ``"auto"`` takes the largest one in which half of the medians are at
        least 1.
    caption : str
        Line below the title: the machine, the provider, the number of threads.
    ax : matplotlib.axes.Axes, optional
        Where to plot, a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. The background is transparent and the texts are grey: an image is readable on a
        light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, the frame is empty, a candidate has the same size twice, a size or a
        latency is not a positive number, the quartiles are not on both sides of the median, or the
        unit is unknown.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame(
    ...     {"candidate": ["one Gemm", "two Gemms"] * 2, "size": [64, 64, 256, 256],
    ...      "median": [0.001, 0.002, 0.04, 0.05], "q1": [0.001, 0.002, 0.03, 0.05],
    ...      "q3": [0.002, 0.003, 0.05, 0.06]})
    >>> ax = latency_plot(frame, x="size", title="One big Gemm or two smaller?")
    >>> ax.get_ylabel()
    'median latency (ms), lower is better'
    >>> plt.close(ax.figure)
    """
    if not x:
        frame = frame.assign(**{x: 1})
    _check(frame, x)
    unit = _choose_unit(frame, unit)
    series = list(_series(frame, x, UNITS[unit]))
    single = len(set(frame[x])) == 1
    own_figure = ax is None
    if ax is None:
        ax = new_axes(1.8 + 0.4 * len(series) if single else 4.8)
    latency = f"median latency ({unit}), lower is better"
    if single:
        _draw_rows(ax, series)
        where = f", {plain(x)} = {number(frame[x].iloc[0])}" if x else ""
        ax.set(xlabel=latency, ylabel=f"candidate{where}")
    else:
        _draw_lines(ax, series, sorted(frame[x].unique()))
        ax.set(xlabel=plain(x), ylabel=latency)
        add_legend(ax, [one.name for one in series], own_figure=own_figure)
    add_titles(ax, title, caption)
    paint(ax)
    return ax


@dataclasses.dataclass(frozen=True)
class _Series:
    """The latencies of a candidate in the unit of the plot, and how they are drawn."""

    name: str
    sizes: "NDArray[np.float64]"
    medians: "NDArray[np.float64]"
    whiskers: "NDArray[np.float64]"
    style: dict[str, Any]


def _check(frame: "pd.DataFrame", x: str) -> None:
    missing = [name for name in ("candidate", x, *STATISTICS) if name not in frame.columns]
    if missing:
        raise InvalidArgumentError(
            f"Columns {missing} are missing, the frame has {list(map(str, frame.columns))}"
        )
    if frame.empty:
        raise InvalidArgumentError("There is nothing to plot: the frame has no row")
    if frame["candidate"].isna().any():
        raise InvalidArgumentError("Column 'candidate' has no missing name, this one has")
    for name in (x, *STATISTICS):
        values = frame[name]
        valid = [isinstance(v, Real) and 0 < float(v) < math.inf for v in values]
        if not all(valid):
            wrong = values.iloc[valid.index(False)]
            raise InvalidArgumentError(
                f"Column {name!r} holds finite positive numbers, it cannot hold {wrong!r}"
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


def _choose_unit(frame: "pd.DataFrame", unit: str) -> str:
    if unit == "auto":
        typical = frame["median"].median()
        return next((name for name, factor in UNITS.items() if typical * factor >= 1), "µs")
    if unit not in UNITS:
        raise InvalidArgumentError(f"unit is one of {['auto', *UNITS]}, it cannot be {unit!r}")
    return unit


def _series(frame: "pd.DataFrame", x: str, factor: float) -> Iterator[_Series]:
    for i, name in enumerate(frame["candidate"].unique()):
        rows = frame[frame["candidate"] == name].sort_values(x)
        q1, medians, q3 = (rows[column].to_numpy(dtype=float) * factor for column in STATISTICS)
        sizes = rows[x].to_numpy(dtype=float)
        yield _Series(
            str(name), sizes, medians, np.array([medians - q1, q3 - medians]), series_style(i)
        )


def _draw_lines(ax: "Axes", series: list[_Series], sizes: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for one in series:
        ax.errorbar(one.sizes, one.medians, yerr=one.whiskers, capsize=3, **one.style)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(sizes, _spaced_labels(sizes))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())


def _draw_rows(ax: "Axes", series: list[_Series]) -> None:
    for row, one in enumerate(series):
        ax.errorbar(one.medians, [row], xerr=one.whiskers, capsize=4, **one.style)
    ax.set_yticks(range(len(series)), [wrap(one.name, 24) for one in series])
    ax.set_ylim(len(series) - 0.5, -0.5)
    ax.set_xlim(left=0)


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
