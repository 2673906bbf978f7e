"""Plot profiles, and colour the graph that ran."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import pd
from ortmeter.plotting import axes
from ortmeter.plotting.graph import NodeNote
from ortmeter.runtime.graphs import walk_nodes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ortmeter.profiling import Profile


def profile_notes(profile: "Profile") -> dict[str, NodeNote]:
    """Make the notes of the nodes of a graph for :func:`~ortmeter.plotting.draw_model`.

    Parameters
    ----------
    profile : Profile
        Profile with its graph.

    Returns
    -------
    dict of NodeNote
        For each node of ``profile.model`` that has a name and ran: its share of the time, its
        median time, its provider, and the types and shapes of its tensors.

    Raises
    ------
    InvalidArgumentError
        The profile has no graph.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.plotting import draw_model
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { [one] Y = Abs(X) }'''
    >>> ran = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=3)
    >>> draw_model(ran.model, notes=profile_notes(ran))
    Drawing(title='g')
    """
    if profile.model is None:
        raise InvalidArgumentError(
            "The graph of this profile is unknown. Accepted: a result of profile, or of "
            "read_profile(path, model=...)"
        )
    nodes = profile.by_node()
    known = {node.name for node in walk_nodes(profile.model.graph.node)}
    ran = {str(row.name): row for row in nodes.itertuples(index=False)}
    return {name: _note(row) for name, row in ran.items() if name in known}


def operator_plot(profile: "Profile", *, title: str, caption: str = "") -> "Axes":
    """Plot the time of each operator, with whiskers at the quartiles.

    Parameters
    ----------
    profile : Profile
        What to plot.
    title, caption : str
        Title of the plot, and the line below it: the machine, the provider, the number of threads.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page. Operators below 1% of the total are one
        bar, *other*.

    Raises
    ------
    InvalidArgumentError
        No node ran.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { Y = Abs(X) }'''
    >>> found = profile(text, {"X": np.ones(2, np.float32)}, provider="cpu")
    >>> ax = operator_plot(found, title="Time by operator")
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['Abs (1)']
    >>> plt.close(ax.figure)
    """
    frame = profile.by_operator()
    if frame.empty:
        raise InvalidArgumentError("No node ran in this profile: there is nothing to plot")
    labels = [f"{op} ({calls:g})" for op, calls in zip(frame["op"], frame["calls"], strict=True)]
    shown = axes.group_small(
        frame[["median", "q1", "q3"]].set_axis(labels).astype(float), ["median"]
    )
    scale, unit = axes.choose_unit(shown["median"].to_numpy())
    medians, q1, q3 = (shown[name].to_numpy() * scale for name in ("median", "q1", "q3"))
    ax = axes.new_axes(1.4 + 0.3 * len(shown))
    places, whiskers = range(len(shown)), [medians - q1, q3 - medians]
    ax.barh(places, medians, color=axes.COLORS[0])
    ax.errorbar(medians, places, xerr=whiskers, fmt="none", ecolor=axes.GREY, capsize=3)
    ax.set(xlabel=_per_run(frame["provider"], unit), ylabel="operator (kernels per run)")
    return axes.finish_rows(ax, list(shown.index), title, caption)


def comparison_plot(
    merged: "pd.DataFrame",
    *,
    title: str,
    names: Sequence[str] = ("baseline", "candidate"),
    caption: str = "",
) -> "Axes":
    """Plot two profiles side by side.

    Parameters
    ----------
    merged : pandas.DataFrame
        What :func:`~ortmeter.profiling.merge_profiles` returned.
    names : sequence of str
        Names of the two profiles.
    title, caption
        As in :func:`operator_plot`.

    Returns
    -------
    matplotlib.axes.Axes
        Two bars per node, one for a node that a side lacks. Nodes whose two times together are
        below 1% of all of them are one row, *other*.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib import pyplot as plt
    >>> from ortmeter.profiling import merge_profiles, profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { A = Identity(X)  Y = Exp(A) }'''
    >>> one, other = (
    ...     profile(text, {"X": np.float32([1, 2])}, provider="cpu", optimization=level, repeat=2)
    ...     for level in ("none", "all")
    ... )
    >>> merged = merge_profiles(one, other)
    >>> ax = comparison_plot(merged, title="What is left", names=["none", "all"])
    >>> ax.get_title(loc="left")
    'What is left'
    >>> plt.close(ax.figure)
    """
    columns = ["median_baseline", "median_candidate"]
    first = merged["name_baseline"].astype(object).fillna(merged["name_candidate"])
    labels = [axes.node_label(op, name) for op, name in zip(merged["op"], first, strict=True)]
    shown = axes.group_small(merged[columns].astype(float).set_axis(labels), columns)
    scale, unit = axes.choose_unit(shown[columns].to_numpy())
    times = (shown * scale).set_axis(list(names), axis="columns").rename_axis("node of either side")
    return bar_plot(times, title=title, what=_per_run(merged["provider"], unit), caption=caption)


def bar_plot(frame: "pd.DataFrame", *, title: str, what: str, caption: str = "") -> "Axes":
    """Plot the columns of a frame side by side, a bar for each in every row.

    Parameters
    ----------
    frame : pandas.DataFrame
        Numbers; a missing one has no bar. The index names the rows.
    what : str
        Label of the axis of the numbers, with their unit.
    title, caption
        As in :func:`operator_plot`.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, readable on a light and on a dark page.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> nodes = pd.DataFrame({"before": [2, 1], "after": [1, 1]}, index=["Conv", "Add"])
    >>> ax = bar_plot(nodes, title="Number of nodes", what="nodes")
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['Conv', 'Add']
    >>> plt.close(ax.figure)
    """
    ax = axes.new_axes(1.8 + 0.36 * len(frame))
    for rank, (name, style) in enumerate(zip(frame, axes.series_styles(frame), strict=True)):
        places = np.arange(len(frame)) + 0.4 * (rank - 0.5)
        ax.barh(places, frame[name], 0.38, color=style["color"], label=name)
    ax.set(xlabel=what, ylabel=frame.index.name)
    axes.add_legend(ax, [str(name) for name in frame])
    return axes.finish_rows(ax, list(frame.index), title, caption)


def _note(row: Any) -> NodeNote:
    lines = [f"time: {row.median:.4g} µs per run", f"provider: {row.provider}", str(row.signature)]
    throughputs = {"GFLOP/s": row.gflop_per_s, "GB/s": row.gb_per_s}
    lines += [f"{value:.3g} {unit}" for unit, value in throughputs.items() if pd.notna(value)]
    return NodeNote("\n".join(lines), share=float(row.share))


def _per_run(providers: "pd.Series[str]", unit: str) -> str:
    """Label of an axis of times; that of a kernel of a device is the one of its launch."""
    on_device = set(providers.dropna()) - {"CPUExecutionProvider"}
    return f"median time per run{' on the host' if on_device else ''} ({unit}), lower is better"
