"""Show for every recorded machine what a page shows for its own."""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ortmeter.pages.record import Record
from ortmeter.pages.rendering import as_html, as_text, freeze

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
            "\n".join([_heading(record), *map(as_text, shown)]) for record, shown in self.parts
        )

    def _repr_html_(self) -> str:
        return "".join(_as_details(*part) for part in self.parts) or f"<p>{self}</p>"


def replay(report: Report, records: Iterable[Record]) -> Replay:
    """Apply the report of a page to what was recorded elsewhere.

    Parameters
    ----------
    report : callable
        Takes a :class:`~ortmeter.pages.Record` and yields what the page shows for it: tables,
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
    return Replay([(record, [freeze(item) for item in report(record)]) for record in records])


def _heading(record: Record) -> str:
    machine = record.environment
    names = [*(gpu.name for gpu in machine.gpus), f"{machine.cpu}, {machine.cores} cores"]
    return f"{', '.join(names)}, recorded on {record.date:%Y-%m-%d}"


def _as_details(record: Record, shown: Iterable[Any]) -> str:
    return (
        f'<details class="ortmeter-recorded"><summary>{html.escape(_heading(record))}</summary>'
        f"<p>{html.escape(record.parameters)}</p>{as_html(record.environment)}"
        f"{''.join(map(as_html, shown))}</details>"
    )
