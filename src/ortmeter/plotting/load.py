"""Plot what a load does to latencies and throughput."""

from typing import TYPE_CHECKING

from ortmeter.evidence import UNITS, common_unit
from ortmeter.plotting.axes import add_legend, finish, new_axes, series_styles

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["load_plot"]

_X_LABELS = {
    "batch": "batch (requests in a call)",
    "callers": "callers (threads)",
    "rate": "requests that arrive in a second",
    "gap": "pause before the run (s)",
}


def load_plot(
    frame: "pd.DataFrame", *, x: str, y: str = "seconds", title: str, caption: str = ""
) -> "Axes":
    """Plot percentiles of latencies, or a throughput, against a load, with their intervals.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per series and load: columns *series*, *x*, *y*, and the ends of its interval,
        *low* and *high*; a row without interval has no whiskers.
    x : {"batch", "callers", "rate", "gap"}
        Column of the load.
    y : {"seconds", "requests/s"}
        Column of what is plotted.
    title, caption : str
        Title of the plot, and what the line below it says before the intervals.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

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
    factor, label = 1.0, f"{y}, higher is better"
    if y == "seconds":
        unit = common_unit(frame[y])
        factor, label = UNITS[unit], f"latency ({unit}), lower is better"
    ax = new_axes(4.8)
    names = [str(name) for name in frame["series"].unique()]
    for name, style in zip(names, series_styles(names), strict=True):
        rows = frame.loc[frame["series"] == name, [x, y, "low", "high"]].astype(float)
        rows = rows.sort_values(x)
        middle, low, high = (factor * rows[column] for column in (y, "low", "high"))
        ends = [(middle - low).fillna(0.0), (high - middle).fillna(0.0)]
        ax.errorbar(rows[x], middle, yerr=ends, capsize=3, **style)
    places = sorted(set(frame[x].astype(float)))
    positive = [place for place in places if place > 0]
    if x == "gap" and positive:  # from 0, by powers of ten
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
    if x == "batch":
        ax.set_xscale("log", base=2)
    ax.set_xticks(places, [f"{place:.12g}" for place in places])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set(xlabel=_X_LABELS[x], ylabel=label)
    add_legend(ax, names)
    return finish(ax, title, ", ".join(filter(None, [caption, "whiskers: 99% intervals"])))
