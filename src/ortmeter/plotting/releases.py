"""Plot the latency of a model along the releases of ONNX Runtime."""

from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.axes import finish, mark_one, new_axes, plain, series_style, whiskers, wrap
from ortmeter.timing.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def release_plot(found: Comparison, *, title: str, caption: str = "") -> "Axes":
    """Plot the latency of each release over that of the first, with its 99% interval.

    Parameters
    ----------
    found : Comparison
        One measurement per release, in their order.
    title, caption : str
        Title of the plot, and the line below it.

    Returns
    -------
    matplotlib.axes.Axes
        The band around 1 is the minimum effect; a point without whiskers has too few samples.

    Raises
    ------
    InvalidArgumentError
        There is one release only.

    Examples
    --------
    >>> from ortmeter.timing.measurement import Measurement
    >>> times = {"1.24.1": [[1.0, 1.0]], "1.31.1": [[2.0, 2.0]]}
    >>> found = Comparison(Measurement(name, t) for name, t in times.items())
    >>> release_plot(found, title="cnn.onnx").get_ylabel()
    'latency over that of 1.24.1, lower is better'
    """
    if len(found) == 1:
        raise InvalidArgumentError("got one release. Accepted: two or more")
    first, *others = found
    claims = [claim.reversed for claim in found.speedups(first)]
    ratios = [1.0, *(claim.ratio or 1.0 for claim in claims)]
    ends = [(0.0, 0.0), *map(whiskers, claims)]
    ax = new_axes(4.2)
    mark_one(ax, claims[0].min_effect)
    ax.errorbar(
        range(len(ratios)), ratios, yerr=list(zip(*ends, strict=True)), capsize=4, **series_style(0)
    )
    ax.set_xticks(range(len(ratios)), [wrap(name, 18) for name in (first, *others)])
    ax.set_xlim(-0.5, len(ratios) - 0.5)
    ax.set_ylim(bottom=0)
    ax.set(
        xlabel="release of ONNX Runtime",
        ylabel=f"latency over that of {plain(first)}, lower is better",
    )
    return finish(ax, title, caption)
