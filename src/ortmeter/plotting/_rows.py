"""Rows of bars: what they are named, which ones are grouped, how their axis looks."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ortmeter.plotting._axes import add_titles, paint, plain
from ortmeter.plotting._labels import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["OTHER", "US_PER_MS", "choose_unit", "finish", "group_small", "label_rows", "node_label"]

OTHER = "other"
US_PER_MS = 1e3


def group_small(frame: pd.DataFrame, columns: list[str], minimum: float) -> pd.DataFrame:
    """Sort by the sum of the columns; rows below a share of the total become one, the last.

    The index is the label of the row. A single small row keeps its name.
    """
    totals = frame[columns].sum(axis=1).to_numpy()
    order = np.argsort(-totals, kind="stable")
    small = totals[order] < minimum * totals.sum()
    if np.count_nonzero(small) < 2:  # noqa: PLR2004 - a group
        return frame.iloc[order]
    other = frame.iloc[order[small]][columns].sum(min_count=1)
    label = f"{OTHER} ({np.count_nonzero(small)})"
    shown: pd.DataFrame = pd.concat([frame.iloc[order[~small]], other.to_frame(label).T])
    return shown


def node_label(op: str, name: str) -> str:
    """Name a node, with its operator unless the name tells it."""
    return shorten(clean(name if op in name else f"{op} {name}"), 30)


def choose_unit(microseconds: np.ndarray) -> tuple[float, str]:
    """Choose the unit of durations: the factor and the name."""
    return (1 / US_PER_MS, "ms") if np.nanmax(microseconds) >= US_PER_MS else (1.0, "µs")


def label_rows(ax: "Axes", labels: list[str]) -> None:
    """Write the label of each row, the first one at the top."""
    ax.set_yticks(range(len(labels)), [plain(label) for label in labels], fontsize=9)
    ax.set_ylim(len(labels) - 0.5, -0.5)


def finish(ax: "Axes", title: str, caption: str) -> "Axes":
    """Write the titles; the grid helps to read lengths, not rows."""
    add_titles(ax, title, caption)
    paint(ax)
    ax.grid(axis="y", visible=False)
    ax.set_axisbelow(True)
    return ax
