"""A plot of many candidates that can be explored."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import series_style
from ortmeter.plotting._labels import shorten
from ortmeter.plotting._plotly import draw_picture, escape, layout
from ortmeter.plotting.interactive import InteractiveFigure
from ortmeter.plotting.latency import latency_plot

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["candidates_figure"]

_MS = 1e3
_COLUMNS = ("candidate", "median", "q1", "q3")


def candidates_figure(
    frame: "pd.DataFrame", *, title: str, details: Sequence[str] = (), caption: str = ""
) -> InteractiveFigure:
    """Plot the latency of candidates, one row each, with what distinguishes them at hand.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per candidate: *candidate*, *median*, *q1* and *q3* (seconds).
    title : str
        Title of the plot.
    details : sequence of str
        Other columns, told when a row is pointed at.
    caption : str
        Line below the title: the machine, the provider, the number of threads.

    Returns
    -------
    InteractiveFigure
        Bars at the medians, fastest first, with whiskers at the quartiles. Its picture is that of
        :func:`latency_plot`.

    Raises
    ------
    InvalidArgumentError
        A column is missing, or there is no row.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"candidate": ["a"], "median": [2e-3], "q1": [1e-3], "q3": [3e-3]})
    >>> candidates_figure(frame, title="Candidates").figure["data"][0]["x"]
    [2.0]
    """
    if missing := [name for name in (*_COLUMNS, *details) if name not in frame.columns]:
        raise InvalidArgumentError(
            f"columns {missing!r} are missing. Accepted: a frame with {', '.join(_COLUMNS)}"
        )
    ordered = frame.sort_values("median", kind="stable")
    axes = latency_plot(ordered, title=title, unit="ms", caption=caption)
    labels = [shorten(str(name), 40) for name in ordered["candidate"]]
    alt = f"{title}: median latency of {len(ordered)} candidates, lower is better"
    data = [_bars(ordered, details)]
    where = {"xlabel": "median latency (ms), lower is better", "ylabel": "candidate"}
    figure = {"data": data, "layout": layout(title, caption, rows=labels, **where)}
    return InteractiveFigure(title, alt, figure, draw_picture(axes))


def _bars(frame: "pd.DataFrame", details: Sequence[str]) -> dict[str, Any]:
    median, q1, q3 = (frame[name].to_numpy(float) * _MS for name in ("median", "q1", "q3"))
    return {
        "type": "bar",
        "orientation": "h",
        "marker": {"color": series_style(0)["color"]},
        "x": median.tolist(),
        "y": list(range(len(frame))),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": (q3 - median).tolist(),
            "arrayminus": (median - q1).tolist(),
        },
        "hovertext": [_hint(row, details) for row in frame.to_dict("records")],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _hint(row: dict[Any, Any], details: Sequence[str]) -> str:
    quartiles = f"{row['q1'] * _MS:.4g} to {row['q3'] * _MS:.4g}"
    lines = [str(row["candidate"]), f"{row['median'] * _MS:.4g} ms ({quartiles})"]
    lines += [f"{name}: {row[name]}" for name in details]
    return "<br>".join(map(escape, lines))
