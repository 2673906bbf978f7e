"""Show for every recorded machine what a page shows for its own."""

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ortmeter.results.record import Record

__all__ = ["Replay", "replay"]

Report = Callable[[Record], Iterable[Any]]


@dataclass(frozen=True)
class Replay:
    """What was recorded on other machines; :func:`replay` makes it.

    Parameters
    ----------
    parts : sequence of (Record, sequence)
        Each record with what the page shows for it.
    """

    parts: Sequence[tuple[Record, Sequence[Any]]]

    def __str__(self) -> str:
        if not self.parts:
            return "Nothing was recorded on other machines."
        return "\n\n".join(
            "\n".join([_heading(record), *map(_as_text, shown)]) for record, shown in self.parts
        )

    def _repr_html_(self) -> str:
        if not self.parts:
            return f"<p>{self}</p>"
        return "".join(
            f'<details class="ortmeter-recorded"><summary>{html.escape(_heading(record))}</summary>'
            f"<p>{html.escape(record.parameters)}</p>{record.environment._repr_html_()}"
            + "".join(map(_as_html, shown))
            + "</details>"
            for record, shown in self.parts
        )


def replay(report: Report, records: Iterable[Record]) -> Replay:
    """Apply the report of a page to what was recorded elsewhere.

    Parameters
    ----------
    report : callable
        Takes a :class:`~ortmeter.results.Record` and yields what the page shows for it: tables,
        plots (a figure or its axes), conclusions.
    records : iterable of Record
        What was recorded.

    Returns
    -------
    Replay
        Shown by a page or a notebook, one part for each record.

    Examples
    --------
    >>> print(replay(lambda record: [record.page], []))
    Nothing was recorded on other machines.
    """
    return Replay([(record, [_frozen(item) for item in report(record)]) for record in records])


@dataclass(frozen=True)
class _Picture:
    """A figure that is closed: a page must not collect it a second time."""

    png: bytes
    title: str


def _frozen(item: Any) -> Any:
    figure = item.figure if isinstance(item, Axes) else item
    if not isinstance(figure, Figure):
        return item
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200, bbox_inches="tight")
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    plt.close(figure)
    return _Picture(content.getvalue(), next(filter(None, titles), "plot"))


def _heading(record: Record) -> str:
    gpus = ", ".join(gpu.name for gpu in record.environment.gpus)
    machine = f"{record.environment.cpu}, {record.environment.cores} cores"
    return f"{f'{gpus}, ' if gpus else ''}{machine}, recorded on {record.date:%Y-%m-%d}"


def _as_text(item: Any) -> str:
    if isinstance(item, _Picture):
        return f"[{item.title}]"
    return str(item.to_string() if hasattr(item, "to_string") else item)


def _as_html(item: Any) -> str:
    if isinstance(item, _Picture):
        data = base64.b64encode(item.png).decode("ascii")
        return f'<img alt="{html.escape(item.title)}" src="data:image/png;base64,{data}">'
    if hasattr(item, "_repr_html_"):
        return str(item._repr_html_())
    return f"<pre>{html.escape(str(item))}</pre>"
