"""Plot what a load does to latencies and throughput."""

from typing import TYPE_CHECKING

from ortmeter.plotting.axes import (
    add_legend,
    finish,
    need_columns,
    new_axes,
    number,
    plain,
    series_style,
)
from ortmeter.timing.comparison import UNITS, common_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["load_plot", "throughput_plot"]

_X_LABELS = {
    "callers": "callers (threads)",
    "rate": "requests that arrive in a second",
    "gap": "pause before the run (s)",
}


def load_plot(frame: "pd.DataFrame", *, x: str, title: str, caption: str = "") -> "Axes":
    """Plot percentiles of latencies against a load, with their intervals.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per series and load: columns *series*, *x*, *seconds*, *low* and *high*, the last
        three in seconds.
    x : {"callers", "rate", "gap"}
        Column of the load.
    title, caption : str
        Title of the plot, and the line below it.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, or the frame is empty.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame({"series": ["p50", "p50"], "rate": [10, 20],
    ...     "seconds": [2e-3, 4e-3], "low": [1e-3, 3e-3], "high": [3e-3, 5e-3]})
    >>> ax = load_plot(frame, x="rate", title="Latency")
    >>> ax.get_ylabel()
    'latency (ms), lower is better'
    >>> plt.close(ax.figure)
    """
    need_columns(frame, "series", x, "seconds", "low", "high")
    unit = common_unit(frame["seconds"])
    scaled = frame.assign(
        **{name: frame[name] * UNITS[unit] for name in ("seconds", "low", "high")}
    )
    ax = _lines(scaled, "series", x, "seconds")
    ax.set_ylabel(f"latency ({unit}), lower is better")
    whiskers = "whiskers: 99% intervals"
    return finish(ax, title, f"{caption}, {whiskers}" if caption else whiskers)


def throughput_plot(frame: "pd.DataFrame", *, title: str, caption: str = "") -> "Axes":
    """Plot runs per second against the number of callers.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per candidate and number of callers: columns *candidate*, *callers*, *runs/s*, *low*
        and *high*; a row without interval has no whiskers.
    title, caption : str
        Title of the plot, and the line below it.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, or the frame is empty.
    """
    need_columns(frame, "candidate", "callers", "runs/s", "low", "high")
    ax = _lines(frame, "candidate", "callers", "runs/s")
    ax.set_ylabel("runs/s, higher is better")
    whiskers = "whiskers: 99% intervals"
    return finish(ax, title, f"{caption}, {whiskers}" if caption else whiskers)


def _lines(frame: "pd.DataFrame", series: str, x: str, y: str) -> "Axes":
    ax = new_axes(4.8)
    names = [str(name) for name in frame[series].unique()]
    for rank, name in enumerate(names):
        rows = frame[frame[series] == name].sort_values(x)
        middle = rows[y].astype(float)
        ends = [
            (middle - rows["low"].astype(float)).fillna(0.0),
            (rows["high"].astype(float) - middle).fillna(0.0),
        ]
        ax.errorbar(rows[x].astype(float), middle, yerr=ends, capsize=3, **series_style(rank))
    places = sorted(set(frame[x].astype(float)))
    positive = [place for place in places if place > 0]
    if x == "gap" and positive:  # from 0, by powers of ten
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
    ax.set_xticks(places, [number(place) for place in places])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel(plain(_X_LABELS.get(x, x)))
    add_legend(ax, names)
    return ax
