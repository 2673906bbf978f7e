"""Plots as pictures."""

import base64
import html
import io
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Picture:
    """A plot whose figure is closed: nothing collects it a second time."""

    png: bytes
    title: str

    def __str__(self) -> str:
        return f"[{self.title}]"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode("ascii")
        return f'<img alt="{html.escape(self.title)}" src="data:image/png;base64,{data}">'


def freeze(item: Any) -> Any:
    """Turn a matplotlib figure, or its axes, into a picture; return anything else as it is."""
    if "matplotlib" not in sys.modules:
        return item  # what is not imported made no figure
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    figure = item.figure if isinstance(item, Axes) else item
    if not isinstance(figure, Figure):
        return item
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200, bbox_inches="tight")
    titles = [
        figure.get_suptitle(),
        *(t for x in figure.axes for t in (x.get_title(), x.get_title("left"))),
    ]
    plt.close(figure)
    return Picture(content.getvalue(), next(filter(None, titles), "plot"))
