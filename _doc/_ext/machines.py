"""Directives that write about what was recorded on every machine."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext.claims import claims_text
from _ext.gallery import SECTIONS
from _ext.tables import list_table, plain, reference
from ortmeter.pages import Record, load_records

#: The page that measures the peaks of a machine.
PEAKS_PAGE = "plot_op_gemm2_cuda"


def register(app: Sphinx) -> None:
    """Add the directives ``ortmeter-machines`` and ``ortmeter-claims``."""
    app.add_directive("ortmeter-machines", MachinesDirective)
    app.add_directive("ortmeter-claims", ClaimsDirective)


class _RecordsDirective(SphinxDirective):
    write: ClassVar[Callable[[Sequence[Record]], list[str]]]

    def run(self) -> list[nodes.Node]:
        """Write the text and parse it where the directive stands."""
        folder = Path(self.env.srcdir, "results")
        for file in sorted(folder.glob("*/*.json")):
            self.env.note_dependency(str(file))
        parent = nodes.Element()
        lines = type(self).write(load_records(folder=folder))
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, parent)
        return parent.children


def machines_text(records: Sequence[Record]) -> list[str]:
    """Write what was recorded as tables, in lines of reStructuredText."""
    if not records:
        return ["Nothing was recorded yet."]
    lines = list_table(
        ("machine", "system", "versions", "peaks, one thread"),
        [_machine_row(own) for own in _groups(records, lambda record: record.machine)],
    )
    for own in _groups(records, _page_rank):
        lines += [reference(own[0].page), ""]
        header = ("machine", "provider", "recorded", "answer")
        lines += list_table(header, [_headline_row(record) for record in own])
    return lines


class MachinesDirective(_RecordsDirective):
    """Table of the machines, then a table of what each page found on them."""

    write = staticmethod(machines_text)


class ClaimsDirective(_RecordsDirective):
    """Table of what the original pages claimed, beside what was recorded."""

    write = staticmethod(claims_text)


def _groups(records: Iterable[Record], key: Callable[[Record], object]) -> list[list[Record]]:
    ordered = sorted(records, key=lambda record: (key(record), record.machine, record.file_name))
    return [list(own) for _, own in itertools.groupby(ordered, key)]


def _page_rank(record: Record) -> tuple[bool, int, str]:
    pages = [name for names in SECTIONS.values() for name in names]
    known = record.page in pages
    return (not known, pages.index(record.page) if known else 0, record.page)


def _machine_row(own: Sequence[Record]) -> tuple[str, ...]:
    environment = own[0].environment
    gpus = [str(gpu) for gpu in environment.gpus]
    versions = (f"{name} {version}" for name, version in environment.packages.items())
    peaks = {
        f"{record.data['peaks']['GFLOP/s']:.3g} GFLOP/s, {record.data['peaks']['GB/s']:.3g} GB/s "
        f"({record.data['legend']})"
        for record in own
        if record.page == PEAKS_PAGE
    }
    cells = (
        ", ".join([f"{environment.cpu}, {environment.cores} cores", *gpus]),
        f"{environment.system}, Python {environment.python}",
        ", ".join(versions),
        "; ".join(sorted(peaks)) or "not recorded",
    )
    return tuple(map(plain, cells))


def _headline_row(record: Record) -> tuple[str, ...]:
    provider = record.configuration["provider"]
    answer = next(iter(record.sentences), "none")
    cells = (record.machine, provider, f"{record.date:%Y-%m-%d}", answer)
    return tuple(map(plain, cells))
