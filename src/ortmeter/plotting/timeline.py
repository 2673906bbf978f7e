"""Plot the timeline of the kernels of a run."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ortmeter.pictures import freeze
from ortmeter.plotting.axes import (
    GREY,
    OTHER,
    US_PER_MS,
    add_legend,
    clean,
    finish_rows,
    new_axes,
    node_label,
    series_style,
    shorten,
)
from ortmeter.plotting.interactive import InteractiveFigure, escape, layout
from ortmeter.profiling import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_YLABEL = "order of execution"
_COLORED = 6  # operators that have a colour of their own
_MAX_ROWS = 40


def timeline_figure(profile: Profile, *, title: str, caption: str = "") -> InteractiveFigure:
    """Plot the timeline of the steady run of median duration.

    Parameters
    ----------
    profile : Profile
        What to plot.
    title, caption : str
        As in :func:`operator_plot`.

    Returns
    -------
    InteractiveFigure
        One row per node in order of execution, or one per operator above 40 nodes. No kernel runs
        between bars. The figure zooms, hides operators, and shows the node, times, provider, types
        and shapes of each bar.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { A = Abs(X)  Y = Exp(A) }'''
    >>> ran = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=2)
    >>> timeline_figure(ran, title="One run").alt[:30]
    'One run: 2 kernels in 2 rows, '
    """
    run = read_run(profile)
    alt = f"{title}: {len(run.kernels)} kernels in {len(run.labels)} rows, {run.duration:.3g} ms"
    figure = {"data": list(_traces(run)), "layout": _layout(run, title, caption)}
    return InteractiveFigure(title, alt, figure, freeze(plot_run(run, title, caption)).png)


@dataclasses.dataclass(frozen=True)
class _Run:
    """One run; its kernels have their row, colour and operator, or *other*, and times in ms."""

    duration: float
    kernels: pd.DataFrame
    labels: list[str]
    xlabel: str

    def by_operator(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Iterate over the operators that have a colour, this colour and their kernels."""
        for rank, name in enumerate(self.kernels["shown"].unique()):
            color = GREY if name == OTHER else str(series_style(rank)["color"])
            yield name, color, self.kernels[self.kernels["shown"] == name]


def read_run(profile: Profile) -> _Run:
    runs = profile.by_iteration().set_index("iteration")
    durations = runs.loc[runs["steady"], "duration"].sort_values()
    wanted = int(durations.index[len(durations) // 2])
    events = profile.events[profile.events["iteration"] == wanted]
    column = "name" if events["name"].nunique() <= _MAX_ROWS else "op"
    first = events.drop_duplicates(column)
    operators = events["op"].astype(str)
    totals = events["self_duration"].groupby(operators).sum()
    kernels = events.assign(
        begin=(events["start"] - runs["start"][wanted]) / US_PER_MS,
        length=events["duration"] / US_PER_MS,
        row=pd.factorize(events[column])[0],
        shown=operators.where(operators.isin(totals.nlargest(_COLORED).index), OTHER),
    )
    return _Run(
        float(runs["duration"][wanted]) / US_PER_MS,
        kernels,
        [node_label(op, name) for op, name in zip(first["op"], first[column], strict=True)],
        f"time since the start of run {wanted} (ms)",
    )


def plot_run(run: _Run, title: str, caption: str = "") -> "Axes":
    ax = new_axes(1.6 + 0.22 * len(run.labels))
    for name, color, mine in run.by_operator():
        ax.barh(mine["row"], mine["length"], left=mine["begin"], color=color, label=name)
    ax.set_xlim(0, run.duration)
    ax.set(xlabel=run.xlabel, ylabel=_YLABEL)
    add_legend(ax, list(run.kernels["shown"].unique()))
    return finish_rows(ax, run.labels, title, caption)


def _traces(run: _Run) -> Iterator[dict[str, Any]]:
    for name, color, mine in run.by_operator():
        yield {
            "type": "bar",
            "orientation": "h",
            "name": escape(name),
            "marker": {"color": color},
            "base": mine["begin"].tolist(),
            "x": mine["length"].tolist(),
            "y": mine["row"].tolist(),
            "width": 0.8,
            "hovertext": [_hint(event) for event in mine.to_dict("records")],
            "hovertemplate": "%{hovertext}<br>starts at %{base:.3f} ms<extra></extra>",
        }


def _layout(run: _Run, title: str, caption: str) -> dict[str, Any]:
    found = layout(title, caption, rows=run.labels, xlabel=run.xlabel, ylabel=_YLABEL)
    found["xaxis"]["range"] = [0, run.duration]
    place = {"xref": "container", "yref": "container", "x": 0, "y": 0, "yanchor": "bottom"}
    found["legend"] = {"orientation": "h", **place}
    return found


def _hint(event: Mapping[Any, Any]) -> str:
    """Describe a kernel, one fact per line."""
    told = [f"{event['op']} {event['name']}", f"{event['duration']} µs"]
    told += [str(event[key]) for key in ("provider", "signature") if pd.notna(event[key])]
    lines = (part for line in told for part in textwrap.wrap(shorten(clean(line), 160), 45))
    return "<br>".join(map(escape, lines))
