"""What the plots have in common: colours, legend, titles, rows of bars, short texts."""

import itertools
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.optional import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ortmeter.evidence import Speedup

__all__ = ["GREY", "add_legend", "finish", "finish_rows", "mark_one", "new_axes", "series_styles"]

# Okabe and Ito's colours, without the two palest, and a violet that colour-blind readers see.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#875AFF")
# A candidate has one colour in every figure, with its rank here; a line rarely meets in a figure.
_SHARED = (
    "onnxruntime; onnx runtime; default; baseline; cpu; float32; all; blocked; threads=1",
    "torch; eager; openvino; qdq u8s8; static; threads=2",
    "numpy; inductor; cuda; float16; basic; threads=4",
    "onnx-diagnostic; dynamic; dynamic u8s8; 8 bits dynamic; 8 bits, dynamic; extended; fused",
    "scikit-learn; qdq channels; static, channels",
    "onednn; none; as written; no optimization; 8 bits",
    "default+onnxruntime; 4 bits; weights 4 bits",
)
_KNOWN = {name: rank for rank, names in enumerate(_SHARED) for name in names.split("; ")}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
#: Colour of what is no data, as far from white as from the near black of dark pages (4 to 1).
GREY = "#767676"
_US_PER_MS = 1e3
_SMALL = 0.01  # share of a total
_SHORT_NAME = 18  # letters: three of them fit side by side


def new_figure(height: float) -> "Figure":
    """Create a figure with a transparent background, *height* in inches."""
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(6.4, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def new_axes(height: float) -> "Axes":
    """Create axes, transparent and as wide as a page.

    Parameters
    ----------
    height : float
        Height of the figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Axes to draw on, then to :func:`finish`.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> ax = new_axes(3)
    >>> bars = ax.errorbar([1, 2], [3, 4], yerr=[0.1, 0.2], **series_styles(["one"])[0])
    >>> add_legend(ax, ["one"])
    >>> finish(ax, "Latency", "float32 on CPU").get_title(loc="left")
    'Latency'
    >>> plt.close(ax.figure)
    """
    return new_figure(height).subplots()


def series_styles(names: Iterable[object]) -> list[dict[str, Any]]:
    """Choose the colour, the marker and the line of each candidate of a figure.

    A candidate that several pages have, such as ``onnxruntime`` or ``precision=float16``, looks the
    same in every figure. The others take the styles that are left, in the order of the names.

    Parameters
    ----------
    names : iterable of str
        The candidates, the baseline first.

    Returns
    -------
    list of dict
        For each one, arguments of ``ax.plot`` and ``ax.errorbar``.

    Examples
    --------
    >>> [style["color"] for style in series_styles(["numpy", "torch"])]
    ['#009E73', '#D55E00']
    """
    wanted = [_known_rank(str(name).casefold()) for name in names]
    first = {rank: place for place, rank in reversed([*enumerate(wanted)])}
    others = (rank for rank in itertools.count() if rank not in first)
    return [
        _style(rank if rank is not None and first[rank] == place else next(others))
        for place, rank in enumerate(wanted)
    ]


def _known_rank(name: str) -> int | None:
    return _KNOWN.get(name, _KNOWN.get(name.partition("=")[2]))


def _style(rank: int) -> dict[str, Any]:
    return {
        "color": COLORS[rank % len(COLORS)],
        "marker": _MARKERS[rank % len(_MARKERS)],
        "linestyle": _LINES[rank % len(_LINES)],
    }


def add_legend(ax: "Axes", names: list[str]) -> None:
    """Put the legend below the axes, which it does not cover.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes with a container (bars, error bars) for each name, or one line.
    names : list of str
        What each one is.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> ax = new_axes(3)
    >>> bars = ax.bar([0], [2])
    >>> add_legend(ax, ["one"])
    >>> plt.close(ax.figure)
    """
    handles: list[Any] = list(ax.containers)
    ax.figure.legend(
        handles,
        [wrap(name, 34) for name in names],
        loc="outside lower center",
        ncols=2 if max(map(len, names)) > _SHORT_NAME else 3,
        frameon=False,
        labelcolor=GREY,
    )


def mark_one(ax: "Axes", effect: float) -> None:
    """Mark a ratio of 1, and around it the band of what is not worth a claim.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes of ratios, which are along the vertical axis.
    effect : float
        Smallest relative difference that is worth a claim.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> ax = new_axes(3)
    >>> mark_one(ax, 0.05)
    >>> len(ax.lines)
    1
    >>> plt.close(ax.figure)
    """
    ax.axhspan(1 / (1 + effect), 1 + effect, color=GREY, alpha=0.2, linewidth=0)
    ax.axhline(1, color=GREY, linewidth=1)


def whiskers(claim: "Speedup") -> tuple[float, float]:
    """Distances from a ratio to the ends of its interval, zero when there is none."""
    ratio = claim.ratio or 1.0
    return ratio - (claim.low or ratio), (claim.high or ratio) - ratio


def paint(ax: "Axes") -> None:
    """Make the background transparent and everything that is not data grey."""
    ax.patch.set_alpha(0)
    ax.tick_params(colors=GREY)
    ax.spines[:].set_color(GREY)
    ax.spines[["top", "right"]].set_visible(False)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(GREY)
    ax.grid(color=GREY, alpha=0.3, linewidth=0.6)


def finish(ax: "Axes", title: str, caption: str) -> "Axes":
    """Write the titles, and make what is no data grey on a transparent background.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes of :func:`new_axes`, with their data.
    title, caption : str
        Title of the plot, and what is measured.

    Returns
    -------
    matplotlib.axes.Axes
        The same axes.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> ax = finish(new_axes(3), "Latency", "float32 on CPU")
    >>> plt.close(ax.figure)
    """
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
    paint(ax)
    return ax


def finish_rows(ax: "Axes", labels: list[str], title: str, caption: str) -> "Axes":
    """Finish a plot of one row per label, the first one at the top.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes of :func:`new_axes`; a row is at height 0, 1, and so on.
    labels : list of str
        What each row is.
    title, caption : str
        Title of the plot, and what is measured.

    Returns
    -------
    matplotlib.axes.Axes
        The same axes.

    Examples
    --------
    >>> from matplotlib import pyplot as plt
    >>> ax = new_axes(3)
    >>> bars = ax.barh([0, 1], [5, 4])
    >>> ax = finish_rows(ax, ["first", "second"], "Latency", "float32 on CPU")
    >>> plt.close(ax.figure)
    """
    ax.set_yticks(range(len(labels)), [wrap(str(label), 30) for label in labels], fontsize=9)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    finish(ax, title, caption)
    ax.grid(axis="y", visible=False)
    ax.set_axisbelow(True)
    return ax


def group_small(frame: "pd.DataFrame", columns: list[str]) -> "pd.DataFrame":
    """Sort by the sum of the columns; rows (labels) below 1% of the total become one, the last."""
    totals = frame[columns].sum(axis=1).to_numpy()
    order = np.argsort(-totals, kind="stable")
    small = totals[order] < _SMALL * totals.sum()
    if np.count_nonzero(small) < 2:  # noqa: PLR2004 - a group
        return frame.iloc[order]
    other = frame.iloc[order[small]][columns].sum(min_count=1)
    label = f"other ({np.count_nonzero(small)})"
    shown: pd.DataFrame = pd.concat([frame.iloc[order[~small]], other.to_frame(label).T])
    return shown


def choose_unit(microseconds: np.ndarray) -> tuple[float, str]:
    """Choose the unit of durations: the factor and the name."""
    return (1 / _US_PER_MS, "ms") if np.nanmax(microseconds) >= _US_PER_MS else (1.0, "µs")


def node_label(op: str, name: str) -> str:
    """Name a node, with its operator unless the name tells it."""
    return shorten(clean(name if op in name else f"{op} {name}"), 30)


def wrap(text: str, width: int) -> str:
    """Break a text into lines."""
    return plain("\n".join(textwrap.wrap(text, width)))


def plain(text: str) -> str:
    """Escape the signs that matplotlib would read as a formula."""
    return str(text).replace("$", r"\$")


def clean(text: str) -> str:
    """Replace what cannot be printed (control, bidirectional override, invalid in XML)."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def shorten(text: str, limit: int = 40) -> str:
    """Cut a text in its middle: the beginning and the end of a name or of a signature matter."""
    if len(text) <= limit:
        return text
    kept = max(limit - 1, 0)
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
