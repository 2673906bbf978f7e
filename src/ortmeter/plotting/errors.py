"""Plot errors of candidates, case by case."""

from typing import TYPE_CHECKING

import numpy as np

from ortmeter.plotting.axes import (
    add_legend,
    clean,
    finish_rows,
    need_columns,
    new_axes,
    plain,
    series_style,
    shorten,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SPREAD = 0.5  # share of the height of a row that its candidates occupy


def error_plot(frame: "pd.DataFrame", *, title: str, unit: str) -> "Axes":
    """Plot one row per case, one marker per candidate.

    The axis is linear from 0 to the smallest positive error and logarithmic above, so that a
    candidate without error is shown.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per case and candidate: columns *case*, *candidate* and *error*, zero or more. NaN
        and infinite values are not drawn. Other columns are ignored.
    title : str
        Title of the plot.
    unit : str
        Unit of the errors, for the label of the axis.

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
    >>> frame = pd.DataFrame(
    ...     {"case": ["float32", "float32"], "candidate": ["torch", "onnxruntime"],
    ...      "error": [4.8, 6.5]})
    >>> ax = error_plot(frame, title="Errors against float64", unit="ulp")
    >>> ax.get_xlabel()
    'error (ulp), lower is better'
    >>> plt.close(ax.figure)
    """
    need_columns(frame, "case", "candidate", "error")
    cases = list(dict.fromkeys(frame["case"]))
    names = list(dict.fromkeys(frame["candidate"]))
    ax = new_axes(1.9 + 0.42 * len(cases))
    place = {case: i for i, case in enumerate(cases)}
    for rank, name in enumerate(names):
        mine = frame[frame["candidate"] == name]
        offset = _SPREAD * ((rank + 0.5) / len(names) - 0.5)
        style = {**series_style(rank), "linestyle": "none"}
        ax.errorbar(mine["error"], mine["case"].map(place) + offset, **style)
    _scale(ax, frame["error"].to_numpy(float))
    ax.set(xlabel=f"error ({plain(unit)}), lower is better", ylabel="case")
    add_legend(ax, [str(name) for name in names])
    return finish_rows(ax, [shorten(clean(str(case))) for case in cases], title, "")


def _scale(ax: "Axes", values: np.ndarray) -> None:
    """Choose a logarithmic axis on which zero has a place."""
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = 10 ** np.floor(np.log10(positive.min())) if positive.size else 1.0
    ax.set_xscale("symlog", linthresh=smallest, linscale=0.4)
    ax.set_xlim(-0.1 * smallest, 2 * max(positive.max(initial=0), smallest))
