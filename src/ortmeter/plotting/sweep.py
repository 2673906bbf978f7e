"""Plot speedups over a grid: one line per configuration, one panel per candidate."""

import dataclasses
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.plotting.axes import (
    GREY,
    add_legend,
    add_titles,
    mark_one,
    new_figure,
    paint,
    plain,
    series_style,
    whiskers,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["sweep_plot"]

_MAX_LINES = 7  # told apart by colour and marker
_MAX_PANELS = 4
_MAX_ROWS = 24  # where lines are rows, with their name
_SPREAD = 0.4  # share of the place of a size that its lines occupy
_PANEL_HEIGHT = 2.4
_ROW_HEIGHT = 0.35


@dataclasses.dataclass(frozen=True)
class _Point:
    panel: str
    line: str
    x: Any
    ratio: float
    whisker: tuple[float, float]
    runs: tuple[float, ...]


def sweep_plot(
    claims: Sequence[Speedup],
    *,
    x: str | None,
    runs: Sequence[Sequence[float]] = (),
    title: str,
    caption: str = "",
) -> "Figure":
    """Plot speedups over one baseline, with a panel per candidate, against the sizes *x*.

    There is a line for each combination of what else varies in their places; without *x* there is a
    row. Small dots are the runs that an interval was computed from, *runs* has those of each claim.
    """
    baselines = {claim.baseline for claim in claims}
    if len(baselines) != 1:
        raise InvalidArgumentError(
            f"claims have the baselines {sorted(baselines)}. Accepted: speedups over one baseline"
        )
    points = _points(claims, x, runs)
    shown = _first(_first(points, "panel", _MAX_PANELS), "line", _MAX_LINES if x else _MAX_ROWS)
    if len(shown) < len(points):
        caption += f"; {len(points) - len(shown)} points are not shown"
    names = list(dict.fromkeys(point.panel for point in shown))
    lines = list(dict.fromkeys(point.line for point in shown))
    height = _PANEL_HEIGHT if x else 0.8 + _ROW_HEIGHT * len(lines)
    figure = new_figure(1.4 + height * len(names))
    panels = list(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0])
    speedup = f"speedup over {plain(claims[0].baseline)}, higher is better"
    for ax, name in zip(panels, names, strict=True):
        own = [point for point in shown if point.panel == name]
        mark_one(ax, claims[0].min_effect, vertical=x is None)
        _draw(ax, own, lines, sorted({point.x for point in shown}) if x else [])
        paint(ax)
        ax.set_ylabel(wrap(name, 26), color=GREY)
    if x:
        panels[-1].set_xlabel(plain(x))
        figure.supylabel(speedup, color=GREY, fontsize="medium")
        add_legend(panels[0], lines)
    else:
        panels[-1].set_xlabel(speedup)
    add_titles(panels[0], title, caption)
    return figure


def _points(
    claims: Sequence[Speedup], x: str | None, runs: Sequence[Sequence[float]]
) -> list[_Point]:
    names = dict.fromkeys(name for claim in claims for name in claim.where)
    varying = [
        name for name in names if name != x and len({claim.where.get(name) for claim in claims}) > 1
    ]
    points = []
    for claim, ratios in zip(claims, runs or [()] * len(claims), strict=True):
        if x and not is_number(claim.where.get(x)):
            raise InvalidArgumentError(f"x is {x!r}, which is not a number everywhere")
        line = ", ".join(
            f"{name}={value}" if is_number(value) else str(value)
            for name in varying
            if (value := claim.where.get(name)) is not None
        )
        size = claim.where[x] if x else None
        ratio = claim.ratio or 1.0
        points.append(_Point(claim.subject, line, size, ratio, whiskers(claim), tuple(ratios)))
    if any(point.line for point in points):
        return points
    # Nothing but the size varies: the candidates are the lines of one panel.
    return [dataclasses.replace(point, panel="", line=point.panel) for point in points]


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _first(points: list[_Point], name: str, count: int) -> list[_Point]:
    kept = list(dict.fromkeys(getattr(point, name) for point in points))[:count]
    return [point for point in points if getattr(point, name) in kept]


def _draw(ax: "Axes", points: list[_Point], lines: list[str], sizes: list[float]) -> None:
    """Draw lines against sizes, or rows without any."""
    for rank, line in enumerate(lines):
        own = [point for point in points if point.line == line]
        style = series_style(rank)
        if sizes:
            own.sort(key=lambda point: point.x)
            offset = _SPREAD * ((rank + 0.5) / len(lines) - 0.5)
            places = [sizes.index(point.x) + offset for point in own]
        else:
            places = [float(rank)] * len(own)
            style["linestyle"] = "none"
        ratios = [point.ratio for point in own]
        ends = [[point.whisker[side] for point in own] for side in (0, 1)]
        if sizes:
            ax.errorbar(places, ratios, yerr=ends, capsize=3, **style)
        else:
            ax.errorbar(ratios, places, xerr=ends, capsize=3, **style)
        for place, point in zip(places, own, strict=True):
            dots = [place] * len(point.runs)
            across, up = (dots, point.runs) if sizes else (point.runs, dots)
            ax.plot(across, up, ".", color=style["color"], alpha=0.5)
    if sizes:
        ax.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
        ax.set_xlim(-0.5, len(sizes) - 0.5)
    else:
        ax.set_yticks(range(len(lines)), [wrap(line, 24) for line in lines])
        ax.set_ylim(len(lines) - 0.5, -0.5)
