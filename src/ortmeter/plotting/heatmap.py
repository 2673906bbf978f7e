"""Plot what changed from one column to the next: rows of colours, with what is not known apart."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.axes import GREY, clean, new_figure, paint, plain, shorten, wrap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

# Orange for slower, purple for faster, which colour-blind readers tell apart; neither the palest
# ones, lost on a light page, nor the darkest ones, lost on a dark page.
_PALETTE, _SLOWER, _FASTER = "PuOr", (0.06, 0.36), (0.64, 0.94)
_LARGEST = 16  # a larger ratio has the same colour
_ROW, _MARGINS = 0.21, 2.5  # inches
_STYLES: dict[str, dict[str, Any]] = {
    "undecided": {"facecolor": "none", "edgecolor": GREY, "hatch": "////", "alpha": 0.45},
    "absent": {"facecolor": GREY, "alpha": 0.45},
}
_CLAIMED = ("faster", "slower")


def change_map(cells: "pd.DataFrame", *, title: str, caption: str = "", rows: int = 40) -> "Figure":
    """Plot by how much each row is faster or slower in each column.

    Colours are logarithms of ratios. What is not decided is hatched, what is absent is grey. Rows
    without a claim are counted in the caption, and those beyond the largest ones as well.

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
    from matplotlib.patches import Rectangle

    columns = list(dict.fromkeys(cells["column"]))
    palette = _palette()
    places = {row: place for place, row in enumerate(rows)}
    for cell in cells[cells["row"].isin(rows)].to_dict("records"):
        style = _STYLES.get(cell["verdict"])
        if cell["verdict"] in _CLAIMED:
            share = 0.5 + math.log2(cell["speedup"]) / math.log2(_LARGEST) / 2
            style = {"facecolor": palette(min(max(share, 0.0), 1.0))}
        if style is not None:
            corner = columns.index(cell["column"]) - 0.46, places[cell["row"]] - 0.44
            ax.add_patch(Rectangle(corner, 0.92, 0.88, linewidth=0, **style))
    ax.set_xticks(range(len(columns)), [plain(str(name)) for name in columns], rotation=90)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.tick_params(length=0, labelsize=8)
    paint(ax)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def _palette() -> "ListedColormap":
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    shares = [np.linspace(*part, 128) for part in (_SLOWER, _FASTER)]
    return ListedColormap(mpl.colormaps[_PALETTE](np.concatenate(shares)))


def _add_scale(axes: "np.ndarray") -> None:
    """Add the scale of the colours, then what is not on it."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch

    most = int(math.log2(_LARGEST))
    figure = axes[0].figure
    bar = figure.colorbar(
        ScalarMappable(Normalize(-most, most), _palette()),
        ax=list(axes),
        location="bottom",
        aspect=40,
        pad=0.02,
        label="times slower  |  times faster",
        ticks=range(-most, most + 1),
        format=lambda log, _: f"{2 ** abs(log):g}",
    )
    bar.ax.tick_params(colors=GREY, labelsize=8)
    bar.ax.xaxis.label.set(color=GREY, fontsize=9)
    bar.outline.set_visible(False)
    keys = [Patch(linewidth=0, label=name, **style) for name, style in _STYLES.items()]
    figure.legend(
        handles=keys, loc="outside upper right", ncols=2, frameon=False, labelcolor=GREY, fontsize=8
    )


def _count_hidden(hidden: int, others: int) -> str:
    """Count the rows that are not drawn."""
    told = [f"{hidden} more with a smaller claim"] if hidden else []
    told += [f"{others} without a claim"] if others else []
    return f"not drawn: {' and '.join(told)}" if told else ""
