"""What the plots have in common: colours, legend, titles."""

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "GREY",
    "add_legend",
    "add_titles",
    "new_axes",
    "number",
    "paint",
    "plain",
    "series_style",
    "wrap",
]

# Okabe and Ito's colours, told apart by colour-blind readers, without the two palest.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
# As far from white as from the near black of dark pages: 4.5 to 1 and 4.1 to 1.
GREY = "#767676"
_SHORT_NAME = 18  # letters: three of them fit side by side


def new_axes(height: float) -> "Axes":
    """Create a figure with a transparent background, *height* in inches."""
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6.4, height), layout="constrained")
    figure.patch.set_alpha(0)
    return ax


def series_style(rank: int) -> dict[str, Any]:
    """Return colour, marker and line of the candidate of that rank."""
    return {
        "color": _COLORS[rank % len(_COLORS)],
        "marker": _MARKERS[rank % len(_MARKERS)],
        "linestyle": _LINES[rank % len(_LINES)],
    }


def add_legend(ax: "Axes", names: list[str], *, own_figure: bool) -> None:
    """Put the legend outside the axes: below in our own figure, beside in someone else's."""
    labels = [wrap(name, 34) for name in names]
    options: dict[str, Any] = {"frameon": False, "labelcolor": GREY}
    handles: list[Any] = list(ax.containers)
    if own_figure:
        columns = 2 if max(map(len, names)) > _SHORT_NAME else 3
        options |= {"loc": "outside lower center", "ncols": columns}
        ax.figure.legend(handles, labels, **options)
    else:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), **options)


def add_titles(ax: "Axes", title: str, caption: str) -> None:
    """Write a title and, below it, a smaller caption."""
    caption = wrap(caption, 70)
    lines = len(caption.splitlines())
    ax.set_title(wrap(title, 52), loc="left", pad=8 + 12 * lines, color=GREY)
    ax.annotate(
        caption,
        (0, 1),
        (0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        fontsize=9,
        color=GREY,
    )


def paint(ax: "Axes") -> None:
    """Make the background transparent and everything that is not data grey."""
    ax.patch.set_alpha(0)
    ax.tick_params(colors=GREY)
    ax.spines[:].set_color(GREY)
    ax.spines[["top", "right"]].set_visible(False)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(GREY)
    ax.grid(color=GREY, alpha=0.3, linewidth=0.6)


def number(value: float) -> str:
    """Write a size."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def wrap(text: str, width: int) -> str:
    """Break a text into lines."""
    return plain("\n".join(textwrap.wrap(text, width)))


def plain(text: str) -> str:
    """Escape the signs that matplotlib would read as a formula."""
    return str(text).replace("$", r"\$")
