"""Plot what a user waits for until the first result of a model."""

from typing import TYPE_CHECKING

import numpy as np

from ortmeter.plotting.axes import GREY, add_legend, finish_rows, new_axes, series_styles
from ortmeter.workloads.startup import FIRST, IMPORT, RESULT, SESSION, ColdStart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MS = 1e3


def cold_plot(start: ColdStart, *, title: str) -> "Axes":
    """Plot the phases until the first result, one row per candidate.

    Parameters
    ----------
    start : ColdStart
        What :func:`~ortmeter.workloads.startup.cold_start` returns.
    title : str
        Title of the plot.

    Returns
    -------
    matplotlib.axes.Axes
        Bars end to end; whiskers are the interval of the first result.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.timing import Comparison, Comparisons, Measurement
    >>> one = Comparison([Measurement("model", [[0.1, 0.1]])])
    >>> times = Comparisons(dict.fromkeys([IMPORT, SESSION, FIRST, RESULT], one), "phase")
    >>> ax = cold_plot(ColdStart(times, {"model": {}}), title="Start")
    >>> plt.close(ax.figure)
    """
    names = start.names
    ax = new_axes(2.2 + 0.4 * len(names))
    places = range(len(names))
    labels = [IMPORT, SESSION, FIRST]
    left = np.zeros(len(names))
    for phase, style in zip(labels, series_styles(labels), strict=True):
        widths = np.array([_MS * start.typical(name, phase).value for name in names])
        ax.barh(places, widths, left=left, height=0.6, color=style["color"])
        left += widths
    sums = [start.typical(name, RESULT) for name in names]
    known = [(place, e.value, *e.interval) for place, e in enumerate(sums) if e.interval]
    if known:
        rows, middle, low, high = np.transpose(known)
        whiskers = [_MS * (middle - low), _MS * (high - middle)]
        ax.errorbar(_MS * middle, rows, xerr=whiskers, fmt="none", capsize=4, color=GREY)
        labels.append("99% interval of the sum")
    ax.set_xlim(left=0)
    ax.set(xlabel="time to the first result (ms), lower is better", ylabel="candidate")
    add_legend(ax, labels)
    return finish_rows(ax, names, title, start.times.how)
