"""Report of a command: title, tables and plots, computed conclusion, machine."""

import json
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.files import replaceable, write_atomically
from ortmeter.pages.rendering import as_html, as_text, bullets, digits, flatten, freeze
from ortmeter.runtime.environment import Environment, environment

__all__ = ["Report"]

INTERRUPTED = "This report is partial: the command was interrupted."
_WIDTH = 100

#: Larger graphs take too long to lay out, and cannot be read.
MAX_DRAWN = 300

_UNITS: Mapping[str, str] = {
    "median": "median (µs)",
    "q1": "q1 (µs)",
    "q3": "q3 (µs)",
    "mean_baseline": "baseline mean (µs)",
    "mean_candidate": "candidate mean (µs)",
    "gflop_per_s": "GFLOP/s",
    "gb_per_s": "GB/s",
}


class Section(NamedTuple):
    """A part of a report: tables and texts, and plots and drawings for the HTML page."""

    title: str
    items: tuple[Any, ...]


@dataclass
class Report:
    """A report filled step by step, so that an interrupted command can still write it.

    Parameters
    ----------
    title : str
        The command.
    machine : Environment
        Environment of the measurements, by default this machine.

    Examples
    --------
    >>> report = Report("two plus two")
    >>> report.add("Sum", pd.DataFrame({"sum": [4]}))
    >>> report.conclude("the sum is 4.")
    >>> print(report.to_text().splitlines()[-1])
    - the sum is 4.
    """

    title: str
    machine: Environment = field(default_factory=environment)
    sections: list[Section] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    interrupted: bool = False

    def add(self, title: str, *items: Any) -> None:
        """Add a section of tables, texts, plots and drawings; figures become images."""
        self.sections.append(Section(title, tuple(map(freeze, items))))

    def conclude(self, *sentences: str) -> None:
        """Add sentences to the conclusion, computed from what the sections show."""
        self.sentences.extend(sentences)

    def to_text(self) -> str:
        """Return the report for a terminal: tables and sentences, without plots."""
        blocks = [textwrap.fill(str(self.machine), _WIDTH)]
        for title, items in self.sections:
            shown = [as_text(i) for i in items if isinstance(i, (pd.DataFrame, str))]
            if shown:
                blocks.append("\n".join([title, "-" * len(title), *shown]))
        if self.sentences:
            blocks.append("\n".join(["Conclusion", "----------", *bullets(self.sentences, _WIDTH)]))
        if self.interrupted:
            blocks.append(INTERRUPTED)
        return "\n\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON: no plot, missing numbers are None."""
        return {
            "title": self.title,
            "environment": self.machine.to_dict(),
            "sections": [
                {"title": title, "tables": [_rows(i) for i in items if isinstance(i, pd.DataFrame)]}
                for title, items in self.sections
            ],
            "conclusion": list(self.sentences),
            "interrupted": self.interrupted,
        }

    def to_html(self) -> str:
        """Return one HTML page that needs no network."""
        writer = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        writer.filters["shown"] = _shown
        page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        return writer.from_string(page).render(
            title=self.title,
            notice=INTERRUPTED if self.interrupted else "",
            sentences=self.sentences,
            sections=self.sections,
            machine=self.machine,
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the HTML page atomically; an existing file is replaced only with *overwrite*."""
        file = Path(path)
        check_writable(file, overwrite=overwrite)
        write_atomically(file, self.to_html().encode())
        return file


def check_writable(file: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before the work starts."""
    target = replaceable(file)
    if target.exists() and not overwrite:
        raise InvalidArgumentError(
            f"{file} exists: choose another name, or replace it with --force"
        )
    if not os.access(target.parent, os.W_OK):
        raise InvalidArgumentError(f"{file} cannot be written: choose a file in a writable folder")


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(flatten(table).to_json(orient="records"))
    return rows


def _shown(item: Any) -> str:
    """Write an item as HTML; a table whose index is made of columns: any of them sorts."""
    if not isinstance(item, pd.DataFrame):
        return as_html(item)
    return str(
        flatten(item).to_html(
            index=False, border=0, na_rep="", classes="sortable", float_format=digits, escape=True
        )
    )


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Prepare a table of a profile or of errors for reading."""
    first, *others = table.columns
    shown = {_UNITS.get(name, name): _plain(table[name]) for name in others}
    return pd.DataFrame({first: table[first].astype(object), **shown}).set_index(first)


def _plain(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Forget categories and nullable types, which print their missing values in their own way."""
    return column.astype(float) if column.dtype.kind == "f" else column.astype(object)
