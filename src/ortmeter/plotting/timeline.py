"""Plot the timeline of the kernels of a run."""

from typing import TYPE_CHECKING

from ortmeter.optional import pd
from ortmeter.plotting import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ortmeter.profiling import Profile

_COLORED = 6  # operators that have a colour of their own
_MAX_ROWS = 40


def timeline_plot(profile: "Profile", *, title: str, caption: str = "") -> "Axes":
    """Plot the timeline of the steady run of median duration.

    Parameters
    ----------
    profile : Profile
        What to plot.
    title, caption : str
        As in :func:`operator_plot`.

    Returns
    -------
    matplotlib.axes.Axes
        One row per node in order of execution, or one per operator above 40 nodes. The colour is
        that of the operator. No kernel runs between bars.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { A = Abs(X)  Y = Exp(A) }'''
    >>> ran = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=2)
    >>> ax = timeline_plot(ran, title="One run")
    >>> len(ax.get_yticklabels())
    2
    >>> plt.close(ax.figure)
    """
    runs = profile.steady_runs.set_index("iteration")
    durations = runs["duration"].sort_values()
    shown = int(durations.index[len(durations) // 2])
    events = profile.events[profile.events["iteration"] == shown]
    column = "name" if events["name"].nunique() <= _MAX_ROWS else "op"
    rows = events.drop_duplicates(column)
    operators = events["op"].astype(str)
    longest = events["self_duration"].groupby(operators).sum().nlargest(_COLORED).index
    operators = operators.where(operators.isin(longest), axes.OTHER)
    kernels = events.assign(
        begin=(events["start"] - runs["start"][shown]) / axes.US_PER_MS,
        length=events["duration"] / axes.US_PER_MS,
        row=pd.factorize(events[column])[0],
    )
    ax = axes.new_axes(1.6 + 0.22 * len(rows))
    for rank, (name, own) in enumerate(kernels.groupby(operators, sort=False)):
        color = axes.GREY if name == axes.OTHER else axes.series_style(rank)["color"]
        ax.barh(own["row"], own["length"], left=own["begin"], color=color, label=name)
    ax.set_xlim(0, runs["duration"][shown] / axes.US_PER_MS)
    ax.set(xlabel=f"time since the start of run {shown} (ms)", ylabel="order of execution")
    axes.add_legend(ax, list(operators.unique()))
    labels = [axes.node_label(op, name) for op, name in zip(rows["op"], rows[column], strict=True)]
    return axes.finish_rows(ax, labels, title, caption)
