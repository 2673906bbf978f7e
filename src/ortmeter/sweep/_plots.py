"""Plot of the comparisons of a group: what is the size, what is a line."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.sweep import sweep_plot
from ortmeter.sweep._cells import MACHINE, is_number
from ortmeter.sweep._tables import legend
from ortmeter.sweep.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_comparisons", "numeric_coordinate"]

_MAX_LINES = 7  # told apart by colour and marker
_MAX_PANELS = 4
_MAX_ROWS = 24  # where lines are rows, with their name


def numeric_coordinate(own: Sequence[Comparison]) -> str | None:
    """Choose the size: the last number in the data, or the option with the most numbers."""
    values = {
        name: {c.coordinates.get(name) for c in own}
        for name in dict.fromkeys(itertools.chain(*(c.coordinates for c in own)))
    }
    numeric = [n for n, v in values.items() if len(v) > 1 and all(map(is_number, v))]
    names = list(values)
    keys = [name for name in numeric if names.index(name) > names.index(MACHINE)]
    return max(keys or numeric, key=lambda name: len(values[name]), default=None)


def draw_comparisons(own: Sequence[Comparison], x: str | None) -> "Figure":
    if x and not all(is_number(c.coordinates.get(x)) for c in own):
        raise InvalidArgumentError(f"x is {x!r}, which is not a number everywhere")
    lines = _lines(own, x)
    frame = pd.DataFrame(
        [
            {
                "panel": c.candidate,
                "line": line,
                **({x: c.coordinates[x]} if x else {}),
                "ratio": c.overall.ratio,
                "low": c.overall.low,
                "high": c.overall.high,
                "runs": c.ratios if len(c.runs) > 1 else (),
            }
            for c, line in zip(own, lines, strict=True)
        ]
    )
    if set(lines) == {""}:
        frame = frame.assign(line=frame["panel"], panel="")
    shown = _first(frame, "panel", _MAX_PANELS)
    shown = _first(shown, "line", _MAX_LINES if x else _MAX_ROWS)
    left_out = len(frame) - len(shown)
    caption = legend(own) + (f"; {left_out} points are left out" if left_out else "")
    effect = own[0].overall.min_effect
    title = "Does the speedup hold over the grid?"
    return sweep_plot(
        shown, x=x, title=title, baseline=own[0].baseline, min_effect=effect, caption=caption
    )


def _lines(own: Sequence[Comparison], x: str | None) -> list[str]:
    """Name the line of each comparison by what varies, but for the size."""
    values: dict[str, set[Any]] = {}
    for c in own:
        for name, value in c.coordinates.items():
            values.setdefault(name, set()).add(value)
    names = [name for name, found in values.items() if len(found) > 1 and name != x]
    return [
        ", ".join(
            f"{name}={value}" if is_number(value) else str(value)
            for name in names
            if (value := c.coordinates.get(name)) is not None
        )
        for c in own
    ]


def _first(frame: pd.DataFrame, column: str, count: int) -> pd.DataFrame:
    return frame[frame[column].isin(frame[column].unique()[:count])]
