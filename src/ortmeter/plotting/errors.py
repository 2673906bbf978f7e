"""Plot errors of candidates, row by row, beside what theory allows."""

from typing import TYPE_CHECKING

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import GREY, add_legend, new_axes, plain, series_style
from ortmeter.plotting._labels import clean, shorten
from ortmeter.plotting._rows import finish, label_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["error_plot"]

_SPREAD = 0.5  # share of the height of a row that its candidates occupy


def error_plot(
    frame: "pd.DataFrame",
    *,
    title: str,
    what: str = "error",
    unit: str = "ulp",
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot one row per case, one marker per candidate, and a bar at the bound of the case.

    The axis is logarithmic, but for the part from 0 to the smallest positive error, which is
    linear: a candidate without error is on the axis.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per case and candidate: columns *case*, *candidate*, *error*, and *bound* if the
        errors have one, all errors in one unit. A NaN or infinite value is not drawn. Other columns
        are ignored.
    title : str
        Title of the plot.
    what, unit : str
        What the errors are and their unit, for the axis.
    caption : str
        Line below the title: the provider, the number of threads.
    ax : matplotlib.axes.Axes, optional
        Where to plot, a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        A column is missing, the frame is empty, an error or a bound is negative.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame(
    ...     {"case": ["float32", "float32"], "candidate": ["torch", "onnxruntime"],
    ...      "error": [4.8, 6.5], "bound": [2000.0, 2000.0]})
    >>> ax = error_plot(frame, title="Errors against float64")
    >>> ax.get_xlabel()
    'error (ulp), lower is better'
    >>> plt.close(ax.figure)
    """
    _check(frame)
    own_figure = ax is None
    cases = list(dict.fromkeys(frame["case"]))
    names = list(dict.fromkeys(frame["candidate"]))
    ax = new_axes(1.9 + 0.42 * len(cases)) if ax is None else ax
    place = {case: i for i, case in enumerate(cases)}
    for rank, name in enumerate(names):
        mine = frame[frame["candidate"] == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        style = {**series_style(rank), "linestyle": "none"}
        ax.errorbar(mine["error"], mine["case"].map(place) + offset, **style)
    if "bound" in frame.columns:
        bounds = frame.groupby("case")["bound"].max()
        ax.plot(bounds, bounds.index.map(place), "|", color=GREY, markersize=16, markeredgewidth=2)
        caption = f"{caption}{', ' if caption else ''}grey bars: bound"
    label_rows(ax, [shorten(clean(str(case))) for case in cases])
    _scale(ax, frame)
    ax.set(xlabel=f"{plain(what)} ({plain(unit)}), lower is better", ylabel="case")
    add_legend(ax, [str(name) for name in names], own_figure=own_figure)
    return finish(ax, title, caption)


def _scale(ax: "Axes", frame: "pd.DataFrame") -> None:
    """Choose a logarithmic axis on which zero has a place."""
    columns = frame.columns.intersection(["error", "bound"])
    values = frame[columns].to_numpy(float)
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = 10 ** np.floor(np.log10(positive.min())) if positive.size else 1.0
    ax.set_xscale("symlog", linthresh=smallest, linscale=0.4)
    ax.set_xlim(-0.1 * smallest, 2 * max(positive.max(initial=0), smallest))


def _check(frame: "pd.DataFrame") -> None:
    missing = [c for c in ("case", "candidate", "error") if c not in frame.columns]
    if missing or frame.empty:
        raise InvalidArgumentError(
            "Columns case, candidate and error are expected, with a row at least. Got "
            f"{list(map(str, frame.columns))} and {len(frame)} rows"
        )
    smallest = frame[frame.columns.intersection(["error", "bound"])].min()
    if (smallest < 0).any():
        raise InvalidArgumentError(
            "Errors and bounds are positive numbers or zero. The smallest ones are "
            f"{smallest.to_dict()}"
        )
