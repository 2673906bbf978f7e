"""Plot speedups over a grid: one row per candidate and place of the grid."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.plotting import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["sweep_plot"]

_MOST = 48  # rows


def sweep_plot(
    claims: Sequence[Speedup],
    *,
    runs: Sequence[Sequence[float]] = (),
    title: str,
    caption: str = "",
) -> "Axes":
    """Plot speedups over one baseline, candidate by candidate, a row for each of their places.

    Small dots are the runs that an interval was computed from, *runs* has those of each claim.
    """
    baselines = {claim.baseline for claim in claims}
    if len(baselines) != 1:
        raise InvalidArgumentError(
            f"claims have the baselines {sorted(baselines)}. Accepted: speedups over one baseline"
        )
    subjects = list(dict.fromkeys(claim.subject for claim in claims))
    pairs = list(zip(claims, runs or [()] * len(claims), strict=True))
    pairs.sort(key=lambda pair: subjects.index(pair[0].subject))
    if len(pairs) > _MOST:
        caption += f"; {len(pairs) - _MOST} rows are not shown"
    names = dict.fromkeys(name for claim in claims for name in claim.where)
    varying = [name for name in names if len({claim.where.get(name) for claim in claims}) > 1]
    labels = []
    ax = axes.new_axes(1.8 + 0.3 * min(len(pairs), _MOST))
    axes.mark_one(ax, claims[0].min_effect, vertical=True)
    for row, (claim, ratios) in enumerate(pairs[:_MOST]):
        place = ((name, claim.where[name]) for name in varying if name in claim.where)
        words = (value if isinstance(value, str) else f"{name} {value}" for name, value in place)
        labels.append(axes.shorten(axes.clean(", ".join([claim.subject, *words]))))
        style = {**axes.series_style(subjects.index(claim.subject)), "linestyle": "none"}
        ends = [[end] for end in axes.whiskers(claim)]
        ax.errorbar([claim.ratio or 1.0], [row], xerr=ends, capsize=3, **style)
        ax.plot(ratios, [row] * len(ratios), ".", color=style["color"], alpha=0.5)
    ax.set_xlabel(f"speedup over {axes.plain(claims[0].baseline)}, higher is better")
    return axes.finish_rows(ax, labels, title, caption)
