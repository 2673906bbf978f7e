"""What the interactive figures have in common: colours, texts, their picture."""

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortmeter.plotting._axes import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_picture", "escape", "layout"]

_CLEAR = "rgba(0,0,0,0)"


def escape(text: str) -> str:
    """Escape a text for plotly, which reads some tags."""
    return html.escape(text, quote=False)


def layout(
    title: str, caption: str, *, rows: Sequence[str], xlabel: str, ylabel: str
) -> dict[str, Any]:
    """Lay out rows of bars, the first one at the top, readable on a light and on a dark page."""
    return {
        "title": {"text": escape(title), "subtitle": {"text": escape(caption)}, "x": 0},
        "height": 190 + 22 * len(rows),
        "margin": {"l": 10, "r": 10, "t": 70, "b": 10},
        "barmode": "overlay",
        "font": {"color": GREY},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "modebar": {"bgcolor": _CLEAR, "color": GREY, "activecolor": GREY},
        "hoverlabel": {"align": "left"},
        "xaxis": {"title": {"text": xlabel}, "gridcolor": f"{GREY}4d", "automargin": True},
        "yaxis": {
            "title": {"text": ylabel},
            "tickvals": list(range(len(rows))),
            "ticktext": [escape(label) for label in rows],
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
            "automargin": True,
        },
    }


def draw_picture(ax: "Axes") -> bytes:
    """Return a plot as a PNG image, at two pixels per unit of length of a page, and close it."""
    from matplotlib import pyplot as plt

    figure = ax.get_figure(root=True)
    assert figure is not None  # it was just made
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()
