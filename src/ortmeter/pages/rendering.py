"""Tables, plots and sentences as text, as HTML and as plain values."""

import base64
import html
import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Picture", "as_html", "as_text", "digits", "flatten", "freeze"]

# Outside of these, a number is written with an exponent.
_SMALL, _LARGE = 1e-4, 1e7


@dataclass(frozen=True)
class Picture:
    """A plot whose figure is closed: nothing collects it a second time.

    Parameters
    ----------
    png : bytes
        Image.
    title : str
        Title of the plot, the alternative text of the image.
    """

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
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    plt.close(figure)
    return Picture(content.getvalue(), next(filter(None, titles), "plot"))


def as_text(item: Any) -> str:
    """Write an item for a terminal: all the rows of a table, texts on the left."""
    if not hasattr(item, "to_string"):
        return str(item)
    texts = {name: _left(item[name]) for name in item.columns if _is_text(item[name])}
    return str(item.to_string(float_format=digits, formatters=texts))


def flatten(table: "pd.DataFrame") -> "pd.DataFrame":
    """Make columns of the levels of an index that have a name; another index says nothing."""
    named = any(name is not None for name in table.index.names)
    return table.reset_index() if named else table


def digits(value: float) -> str:
    """Write a number with four significant digits, in full unless it is very small or large."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if _SMALL <= abs(value) < _LARGE:
        return np.format_float_positional(value, precision=4, fractional=False, trim="-")
    return f"{value:.3e}"


def _is_text(column: Any) -> bool:
    return len(column) > 0 and all(isinstance(value, str) for value in column)


def _left(column: Any) -> Callable[[str], str]:
    width = max(map(len, column))
    return lambda value: value.ljust(width)


def as_html(item: Any) -> str:
    """Write an item as HTML, escaped when it has no HTML of its own."""
    if hasattr(item, "_repr_html_"):
        return str(item._repr_html_())
    return f"<pre>{html.escape(str(item))}</pre>"
