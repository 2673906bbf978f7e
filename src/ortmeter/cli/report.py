"""Report of a command: title, tables and plots, computed conclusion, machine."""

import itertools
import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.files import replaceable, write_atomically
from ortmeter.machine.environment import Environment, environment
from ortmeter.machine.preflight import Preflight
from ortmeter.pictures import freeze
from ortmeter.plotting.axes import shorten
from ortmeter.study.rendering import as_html, bullets, digits, flatten
from ortmeter.study.writer import sentences

if TYPE_CHECKING:
    import onnx

__all__ = ["Report"]

#: What a page begins with.
PAGE = b"<!doctype html>"
INTERRUPTED = "This report is partial: the command was interrupted."
_GAP = "  "
_NARROWEST = 12
_LINES = 2  # of a cell

# Larger graphs take too long to lay out, and cannot be read.
_MAX_DRAWN = 300


class Rows(NamedTuple):
    """A table: its columns, its rows, what its cells are."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], caption: str = "") -> "Rows":
        """Make a table of rows by column; a cell that a row lacks is missing."""
        columns = tuple(dict.fromkeys(name for row in records for name in row))
        return cls(columns, tuple(tuple(map(row.get, columns)) for row in records), caption)


@dataclass(frozen=True)
class Code:
    """Lines to copy, which are not wrapped."""

    text: str

    def __str__(self) -> str:
        return self.text


class Section(NamedTuple):
    """A part of a report: tables and texts, and plots and drawings for the HTML page."""

    title: str
    items: tuple[Any, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return its tables as plain values for JSON, and its lines to copy, if it has some."""
        code = [item.text for item in self.items if isinstance(item, Code)]
        tables = [_records(item) for item in self.items if isinstance(item, Rows)]
        return {"title": self.title, "tables": tables, **({"code": code} if code else {})}


@dataclass
class Report:
    r"""A report filled step by step, so that an interrupted command can still write it.

    Parameters
    ----------
    title : str
        The command.
    machine : Environment
        Environment of the measurements, by default this machine.
    session : str
        Settings of the sessions, as they were asked for, where there are some.
    preflight : dict of str to Preflight
        Whether the machine was fit to measure, ``before``, ``during`` or ``now``.
    measurement : dict
        How it was measured, for JSON: processes, rounds, calls of a sample, why it stopped.
    draws : bool
        Whether an HTML page is wanted: plots are drawn for it alone.

    Examples
    --------
    >>> report = Report("two plus two")
    >>> report.add("Sum", Rows(("sum",), ((4,),)))
    >>> report.conclude("the sum is 4.")
    >>> print("\n".join(report.to_text().splitlines()[:3]))
    Conclusion
    ----------
    - the sum is 4.
    """

    title: str
    machine: Environment = field(default_factory=environment)
    sections: list[Section] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    session: str = ""
    preflight: dict[str, Preflight] = field(default_factory=dict)
    measurement: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    draws: bool = True

    def add(self, title: str, *items: Any) -> None:
        """Add a section of tables and texts, and of functions that draw what an HTML page shows."""
        shown = [item for item in items if self.draws or not callable(item)]
        made = [freeze(item() if callable(item) else item) for item in shown]
        self.sections.append(Section(title, tuple(_as_rows(i) for i in made if i is not None)))

    def conclude(self, *said: str | Speedup) -> None:
        """Add sentences to the conclusion, and claims, computed from what the sections show."""
        self.sentences += [f"{told.removesuffix('.')}." for told in sentences(said)]

    @property
    def beside(self) -> str:
        """What a sentence on threads or callers begins with on a machine that is not quiet."""
        found = [text for looked in self.preflight.values() for text in looked.findings]
        return f"on a machine that is not quiet ({found[-1].partition(':')[0]}), " if found else ""

    @property
    def told_preflight(self) -> str:
        """Whether the machine was fit to measure, in a few words; empty if nobody looked."""
        known: set[str] = set()
        told = []
        for when, looked in self.preflight.items():
            if new := [finding for finding in looked.findings if finding not in known]:
                told.append(f"{when.capitalize()}: {'; '.join(new)}.")
            known.update(looked.findings)
        if told:
            return f"This machine was not fit to measure. {' '.join(told)}"
        return f"On this machine, {looked}." if self.preflight else ""

    def to_text(self, width: int = 80) -> str:
        """Return the report for a terminal, the conclusion first, without plots."""
        blocks = [INTERRUPTED] if self.interrupted else []
        if self.sentences:
            blocks.append("\n".join(["Conclusion", "----------", *bullets(self.sentences, width)]))
        blocks.append(textwrap.fill(f"Measured on {self.machine}", width))
        if self.session:
            blocks.append(textwrap.fill(f"Sessions: {self.session}", width))
        if told := self.told_preflight:
            blocks.append(textwrap.fill(told, width))
        for title, items in self.sections:
            written = [i for i in items if isinstance(i, str | Code | Rows)]
            shown = [_fitted(item, width) for item in written]
            if shown:
                heading = shorten(title, width)
                blocks.append("\n".join([heading, "-" * len(heading), *shown]))
        return "\n\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON: no plot, missing numbers are None."""
        return {
            "title": self.title,
            "conclusion": list(self.sentences),
            "environment": self.machine.to_dict(),
            "session": self.session,
            **({"measurement": self.measurement} if self.measurement else {}),
            "preflight": {when: looked.to_dict() for when, looked in self.preflight.items()},
            "sections": [section.to_dict() for section in self.sections],
            "interrupted": self.interrupted,
        }

    def to_html(self) -> str:
        """Return one HTML page that needs no network."""
        import jinja2

        writer = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        writer.filters |= {"as_html": as_html, "columns": _columns}
        page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        return writer.from_string(page).render(
            title=self.title,
            notice=INTERRUPTED if self.interrupted else "",
            sentences=self.sentences,
            sections=self.sections,
            machine=self.machine,
            session=self.session,
            preflight=self.told_preflight,
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the HTML page atomically; an existing file is replaced only with *overwrite*."""
        file = Path(path)
        check_writable(file, PAGE, overwrite=overwrite)
        write_atomically(file, self.to_html().encode())
        return file


def check_writable(file: Path, begins: bytes, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before the work starts, or that is not of its kind."""
    target = replaceable(file)
    if target.exists() and not overwrite:
        raise InvalidArgumentError(
            f"{file} exists: choose another name, or replace it with --force"
        )
    if target.exists():
        with target.open("rb") as stream:
            first = stream.read(len(begins))
        if first not in (b"", begins):  # a model, its inputs...
            raise InvalidArgumentError(
                f"{file} exists and is not an ortmeter report; refusing to overwrite it"
            )
    if not os.access(target.parent, os.W_OK):
        raise InvalidArgumentError(f"{file} cannot be written: choose a file in a writable folder")


def _fitted(item: str | Code | Rows, width: int) -> str:
    """Write a table within a width: texts are broken at spaces, or shortened in the middle."""
    if isinstance(item, Code):
        return item.text
    if isinstance(item, str):
        return textwrap.fill(item, width)
    columns = _columns(item)
    room = width - len(_GAP) * (len(columns) - 1)
    for least in ("words", "least"):  # between words first, inside of them if need be
        while sum(column.width for column in columns) > room:
            widest = max(columns, key=lambda column: column.width - getattr(column, least))
            if widest.width <= getattr(widest, least):
                break
            widest.width -= 1
    lines = textwrap.wrap(item.caption, width)
    for rank in range(1 + len(item.rows)):
        cells = itertools.zip_longest(*(c.cell(rank) for c in columns), fillvalue="")
        for parts in cells:  # lines of a row
            texts = (column.placed(part) for column, part in zip(columns, parts, strict=True))
            lines.append(_GAP.join(texts).rstrip())
    return "\n".join(lines)


class _Column:
    """Texts of a column of a table, and the width that it is given."""

    def __init__(self, header: str, values: Sequence[Any]) -> None:
        numbers = [_written(value) for value in values]
        self.texts = [header, *numbers]
        self.is_text = any(isinstance(value, str) for value in values)
        self.width = max(map(len, self.texts))
        # A number is never broken, nor shortened.
        words = " ".join(self.texts).split() if self.is_text else [*header.split(), *numbers]
        kept = min(self.width, _NARROWEST) if self.is_text else 0
        self.words = max([kept, *map(len, words)])
        self.least = kept or self.words

    def cell(self, rank: int) -> list[str]:
        """Return the lines of a cell, of the header for 0."""
        text, room = self.texts[rank], _LINES * self.width
        while True:
            lines = textwrap.wrap(
                shorten(text, room), self.width, break_long_words=False, break_on_hyphens=False
            )
            if len(lines) <= _LINES or room <= self.width:
                return [shorten(line, self.width) for line in lines] or [""]
            room -= 1

    def placed(self, text: str) -> str:
        """Put a line of a cell on its side."""
        return text.ljust(self.width) if self.is_text else text.rjust(self.width)


def _written(value: Any) -> str:
    return "-" if value is None else digits(value) if isinstance(value, float) else str(value)


def _as_rows(item: Any) -> Any:
    """Turn a frame into rows of plain values, in which what is missing is None."""
    if hasattr(item, "to_string"):
        table = flatten(item)
        columns = tuple(map(str, table.columns))
        item = Rows(columns, tuple(table.itertuples(index=False)), item.columns.name or "")
    if isinstance(item, Rows):
        return item._replace(rows=tuple(tuple(map(_plain, row)) for row in item.rows))
    return item


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    # A name may be "nan"; of what is not a text, only what is missing is written so.
    missing = not isinstance(value, str) and str(value) in {"None", "nan", "<NA>", "NaT"}
    return None if missing else value


def _columns(table: Rows) -> list[_Column]:
    return [
        _Column(header, [row[rank] for row in table.rows])
        for rank, header in enumerate(table.columns)
    ]


def _records(table: Rows) -> list[dict[str, Any]]:
    infinite = math.inf, -math.inf
    rows = ((None if value in infinite else value for value in row) for row in table.rows)
    return [dict(zip(table.columns, row, strict=True)) for row in rows]


def drawn(model: "onnx.ModelProto", draw: Callable[[], Any]) -> Any:
    """Draw the graph of a model, or say that it is too large."""
    from ortmeter.runtime.graphs import walk_nodes

    count = sum(1 for _ in walk_nodes(model.graph.node))
    if count <= _MAX_DRAWN:
        return draw()
    return f"Not drawn: this graph has {count} nodes, and {_MAX_DRAWN} at most can be read."


def speedup_rows(claims: Sequence[Speedup]) -> list[dict[str, Any]]:
    """Write a row per claim, by its place and its candidate."""
    return [
        {
            **claim.where,
            "candidate": claim.subject,
            "speedup": claim.ratio,
            "low": claim.low,
            "high": claim.high,
            "verdict": claim.verdict,
        }
        for claim in claims
    ]
