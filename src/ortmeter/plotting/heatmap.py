"""Plot what changed from one column to the next: rows of colours, with what is not known apart."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.axes import GREY, clean, new_figure, paint, plain, shorten, wrap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure

# Orange for slower, purple for faster, which colour-blind readers tell apart; none is lost on a
# light page, or on a dark one.
_COLORS = ("#b35806", "#d87410", "#f19a3c", "#fdbf6f", "#bdb5dc", "#9a8ec4", "#7860ab", "#542788")
_BOUNDS = (1, 1.25, 2, 4, 16)  # a larger ratio has the last colour
_ROW, _MARGINS = 0.21, 2.5  # inches
_GREYS = {"undecided": 0.25, "absent": 0.85}  # verdict -> opacity
_CLAIMED = ("faster", "slower")


def change_map(cells: "pd.DataFrame", *, title: str, caption: str = "", rows: int = 40) -> "Figure":
    """Plot by how much each row is faster or slower in each column.

    Colours are classes of ratios. What is undecided is light grey, what is absent is dark grey.
    Rows without a claim are counted in the caption, and those beyond the largest ones as well.

    Parameters
    ----------
    cells : pandas.DataFrame
        One row per cell: columns *panel*, *row*, *column*, *speedup* (above 1 is faster) and
        *verdict*: faster, slower, undecided, absent, or empty for nothing. Panels are side by side
        and share their rows; panels and columns stand in the order of the frame. Other columns are
        ignored.
    title, caption : str
        Title of the plot, and the line below it: the machine, what a column is compared with.
    rows : int
        Rows that are drawn at most, those of the largest claims. The first row is the one whose
        latest claim is the slowest.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, readable on a light and on a dark page.

    Raises
    ------
    InvalidArgumentError
        No cell has a claim.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib import pyplot as plt
    >>> frame = pd.DataFrame(
    ...     {"panel": "1 thread", "row": ["Exp", "Abs"], "column": "1.31", "speedup": [0.5, 1.0],
    ...      "verdict": ["slower", "undecided"]})
    >>> figure = change_map(frame, title="Changes")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['Exp']
    >>> plt.close(figure)
    """
    claimed = cells[cells["verdict"].isin(_CLAIMED)]
    if claimed.empty:
        raise InvalidArgumentError("no cell is faster or slower. Accepted: one at least")
    columns = list(dict.fromkeys(cells["column"]))
    logs = claimed.assign(
        log=np.log2(claimed["speedup"].astype(float)), rank=claimed["column"].map(columns.index)
    ).sort_values("log", key=abs, ascending=False, kind="stable")
    ranked = list(dict.fromkeys(logs["row"]))
    latest = logs.sort_values("rank", ascending=False, kind="stable").drop_duplicates("row")
    shown = latest.set_index("row").loc[ranked[:rows], "log"].sort_values(kind="stable").index
    panels = list(dict.fromkeys(cells["panel"]))
    figure = new_figure(_MARGINS + _ROW * len(shown))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _draw(ax, cells[cells["panel"] == panel], list(shown))
        ax.set_title(plain(str(panel)), fontsize=9, color=GREY)
    labels = [plain(shorten(clean(str(row)), 46)) for row in shown]
    axes[0].set_yticks(range(len(shown)), labels, fontsize=7)
    axes[0].set_ylim(len(shown) - 0.5, -0.5)
    _add_scale(axes)
    figure.suptitle(wrap(title, 60), x=0.01, ha="left", color=GREY)
    told = [caption, _count_hidden(len(ranked) - len(shown), cells["row"].nunique() - len(ranked))]
    figure.supxlabel(
        wrap("; ".join(filter(None, told)), 100), x=0.01, ha="left", fontsize=9, color=GREY
    )
    return figure


def _draw(ax: "Axes", cells: "pd.DataFrame", rows: list[Any]) -> None:
    columns = list(dict.fromkeys(cells["column"]))
    colors = np.zeros((len(rows), len(columns), 4))
    for cell in cells[cells["row"].isin(rows)].to_dict("records"):
        colors[rows.index(cell["row"]), columns.index(cell["column"])] = _color(cell)
    ax.pcolormesh(np.arange(len(columns) + 1) - 0.5, np.arange(len(rows) + 1) - 0.5, colors)
    ax.set_xticks(range(len(columns)), [plain(str(name)) for name in columns], rotation=90)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.tick_params(length=0, labelsize=8)
    paint(ax)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def _color(cell: dict[Any, Any]) -> tuple[float, float, float, float]:
    from matplotlib.colors import to_rgba

    if cell["verdict"] in _CLAIMED:
        palette, norm = _scale()
        return palette(norm(math.log2(cell["speedup"])))
    return to_rgba(GREY, _GREYS.get(cell["verdict"], 0))


def _scale() -> "tuple[ListedColormap, BoundaryNorm]":
    """Return the colours, and the classes of logarithms that they stand for."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    logs = np.log2(_BOUNDS)
    bounds = [*-logs[:0:-1], *logs]
    return ListedColormap(_COLORS), BoundaryNorm(bounds, len(_COLORS), clip=True)


def _add_scale(axes: "np.ndarray") -> None:
    """Add the scale of the colours, then what is not on it."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Patch

    palette, norm = _scale()
    figure = axes[0].figure
    bar = figure.colorbar(
        ScalarMappable(norm, palette),
        ax=list(axes),
        location="bottom",
        aspect=40,
        pad=0.02,
        label="times slower  |  times faster",
        ticks=norm.boundaries,
        format=lambda log, _: f"{2 ** abs(log):.3g}",
    )
    bar.ax.tick_params(colors=GREY, labelsize=8)
    bar.ax.xaxis.label.set(color=GREY, fontsize=9)
    bar.outline.set_visible(False)
    keys = [Patch(color=GREY, lw=0, alpha=a, label=name) for name, a in _GREYS.items()]
    figure.legend(
        handles=keys, loc="outside upper right", ncols=2, frameon=False, labelcolor=GREY, fontsize=8
    )


def _count_hidden(hidden: int, others: int) -> str:
    """Count the rows that are not drawn."""
    told = [f"{hidden} more with a smaller claim"] if hidden else []
    told += [f"{others} without a claim"] if others else []
    return f"not drawn: {' and '.join(told)}" if told else ""
