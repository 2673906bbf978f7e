"""Plot when the kernels of a run were executed."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ortmeter.plotting._axes import add_legend, new_axes
from ortmeter.plotting._labels import clean, shorten
from ortmeter.plotting._plotly import draw_picture, escape, layout
from ortmeter.plotting._rows import finish, label_rows
from ortmeter.plotting._run import Run, read_run
from ortmeter.plotting.interactive import InteractiveFigure
from ortmeter.profiling import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["timeline_figure", "timeline_plot"]

_YLABEL = "order of execution"


def timeline_plot(
    profile: Profile,
    *,
    title: str,
    iteration: int | None = None,
    caption: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot when each node ran, in one run.

    Parameters
    ----------
    profile : Profile
        What to plot.
    title : str
        Title of the plot.
    iteration : int, optional
        Run to plot, by default the steady run of median duration.
    caption, ax
        As in :func:`operator_plot`.

    Returns
    -------
    matplotlib.axes.Axes
        One row per node in the order of execution, or one per operator above 40 nodes. What is
        between the bars is not inside a kernel.

    Raises
    ------
    InvalidArgumentError
        The profile has no such run.
    """
    return _plot(read_run(profile, iteration), title, caption, ax)


def timeline_figure(
    profile: Profile, *, title: str, iteration: int | None = None, caption: str = ""
) -> InteractiveFigure:
    """Make the plot of :func:`timeline_plot` one that can be explored.

    Parameters
    ----------
    profile, title, iteration, caption
        As in :func:`timeline_plot`.

    Returns
    -------
    InteractiveFigure
        It zooms, hides operators, and tells of each bar the node, its times, its provider, its
        types and its shapes.

    Raises
    ------
    InvalidArgumentError
        The profile has no such run.
    """
    run = read_run(profile, iteration)
    alt = f"{title}: {len(run.events)} kernels in {len(run.labels)} rows, {run.duration:.3g} ms"
    figure = {"data": list(_traces(run)), "layout": _layout(run, title, caption)}
    return InteractiveFigure(title, alt, figure, draw_picture(_plot(run, title, caption, None)))


def _plot(run: Run, title: str, caption: str, ax: "Axes | None") -> "Axes":
    own_figure = ax is None
    ax = new_axes(1.6 + 0.22 * len(run.labels)) if ax is None else ax
    for name, color, mine in run.by_operator():
        ax.barh(run.row[mine], run.length[mine], left=run.start[mine], color=color, label=name)
    label_rows(ax, run.labels)
    ax.set_xlim(0, run.duration)
    ax.set(xlabel=run.xlabel, ylabel=_YLABEL)
    add_legend(ax, list(dict.fromkeys(run.operator)), own_figure=own_figure)
    return finish(ax, title, caption)


def _traces(run: Run) -> Iterator[dict[str, Any]]:
    hints = np.array([_hint(event) for event in run.events.to_dict("records")], dtype=np.object_)
    for name, color, mine in run.by_operator():
        yield {
            "type": "bar",
            "orientation": "h",
            "name": escape(name),
            "marker": {"color": color},
            "base": run.start[mine].tolist(),
            "x": run.length[mine].tolist(),
            "y": run.row[mine].tolist(),
            "width": 0.8,
            "hovertext": hints[mine].tolist(),
            "hovertemplate": "%{hovertext}<br>starts at %{base:.3f} ms<extra></extra>",
        }


def _layout(run: Run, title: str, caption: str) -> dict[str, Any]:
    found = layout(title, caption, rows=run.labels, xlabel=run.xlabel, ylabel=_YLABEL)
    found["xaxis"]["range"] = [0, run.duration]
    found["legend"] = {
        "orientation": "h",
        "xref": "container",
        "yref": "container",
        "x": 0,
        "y": 0,
        "yanchor": "bottom",
    }
    return found


def _hint(event: Mapping[Any, Any]) -> str:
    """Tell what a kernel was, one fact per line."""
    told = [f"{event['op']} {event['name']}", f"{event['duration']} µs"]
    told += [str(event[key]) for key in ("provider", "signature") if pd.notna(event[key])]
    lines = (part for line in told for part in textwrap.wrap(shorten(clean(line), 160), 45))
    return "<br>".join(map(escape, lines))
