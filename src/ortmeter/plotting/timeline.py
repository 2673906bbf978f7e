"""Plot when the kernels of a run were executed."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import GREY, add_legend, new_axes, series_style
from ortmeter.plotting._rows import OTHER, US_PER_MS, finish, label_rows, node_label
from ortmeter.profiling import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["timeline_plot"]

_COLORED = 6  # operators that have a colour of their own
_MAX_ROWS = 40


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
    runs = profile.by_iteration().set_index("iteration")
    wanted = _typical(runs) if iteration is None else iteration
    if wanted is None or wanted not in runs.index:
        raise InvalidArgumentError(
            f"iteration={iteration} is not in this profile, which has {len(runs)} complete runs"
        )
    begin, duration = (float(runs[name][wanted]) for name in ("start", "duration"))
    events = profile.events[profile.events["iteration"] == wanted]
    left = (events["start"].to_numpy() - begin) / US_PER_MS
    width = events["duration"].to_numpy() / US_PER_MS
    rows, labels = _rows(events)
    operators = _longest(events)
    names = list(dict.fromkeys(operators))
    own_figure = ax is None
    ax = new_axes(1.6 + 0.22 * len(labels)) if ax is None else ax
    for rank, name in enumerate(names):
        mine = operators == name
        color = GREY if name == OTHER else series_style(rank)["color"]
        ax.barh(rows[mine], width[mine], left=left[mine], color=color, label=name)
    label_rows(ax, labels)
    ax.set_xlim(0, duration / US_PER_MS)
    ax.set(xlabel=f"time since the start of run {wanted} (ms)", ylabel="order of execution")
    add_legend(ax, names, own_figure=own_figure)
    return finish(ax, title, caption)


def _typical(runs: pd.DataFrame) -> int | None:
    """Return the steady run of median duration."""
    durations = runs.loc[runs["steady"], "duration"].sort_values()
    return int(durations.index[len(durations) // 2]) if len(durations) else None


def _rows(events: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Give its row to each event, and the labels of the rows."""
    column = "name" if events["name"].nunique() <= _MAX_ROWS else "op"
    rows, _ = pd.factorize(events[column])
    first = events.drop_duplicates(column)
    return rows, [node_label(o, n) for o, n in zip(first["op"], first[column], strict=True)]


def _longest(events: pd.DataFrame) -> np.ndarray:
    """Return the operator of each event, *other* but for those that take the most time."""
    operators = events["op"].astype(str)
    totals = events["self_duration"].groupby(operators).sum()
    kept = operators.isin(totals.nlargest(_COLORED).index)
    return operators.where(kept, OTHER).to_numpy()
