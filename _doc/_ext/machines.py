"""Directives that write about what was recorded on every machine."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext import history
from _ext.answers import WHOLE, Answers, page_files, read_answers
from _ext.claims import claims_text
from _ext.tables import list_table, plain, reference
from ortmeter.study.records import Record, load_records
from ortmeter.study.writer import enumerate_items

#: The page that measures the peaks of a machine.
PEAKS_PAGE = "plot_op_gemm2_cuda"


def register(app: Sphinx) -> None:
    """Add the directives ``ortmeter-machines``, ``ortmeter-history`` and ``ortmeter-claims``."""
    app.add_directive("ortmeter-machines", MachinesDirective)
    app.add_directive("ortmeter-history", HistoryDirective)
    app.add_directive("ortmeter-claims", ClaimsDirective)


class _Directive(SphinxDirective):
    write: ClassVar[Callable[[Path], list[str]]]
    files: ClassVar[str] = "results/*/*.json"

    def run(self) -> list[nodes.Node]:
        """Write the text and parse it where the directive stands."""
        source = Path(self.env.srcdir)
        for file in [*sorted(source.glob(self.files)), *page_files(source).values()]:
            self.env.note_dependency(str(file))
        parent = nodes.Element()
        lines = type(self).write(source)
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, parent)
        return parent.children


class MachinesDirective(_Directive):
    """Table of the machines, then a table of the answer of each page on them."""

    @staticmethod
    def write(source: Path) -> list[str]:
        """Write both."""
        records = load_records(folder=source / "results")
        return machines_text(records) + answers_text(read_answers(source).values())


class ClaimsDirective(_Directive):
    """Table of the claims of the original pages, and of the records that answer them."""

    @staticmethod
    def write(source: Path) -> list[str]:
        """Write the table."""
        return claims_text(load_records(folder=source / "results"))


class HistoryDirective(_Directive):
    """Table of the claims that changed."""

    files = "results/*/history/*.json"

    @staticmethod
    def write(source: Path) -> list[str]:
        """Write the table."""
        return history.changes_text(history.load_history(source / "results"))


def machines_text(records: Sequence[Record]) -> list[str]:
    """Write the table of the machines, in lines of reStructuredText."""
    if not records:
        return ["Nothing was recorded yet.", ""]
    header = ("machine", "system", "versions", "peaks, one thread")
    rows = map(_machine_row, _groups(records, lambda record: record.machine))
    return list_table(header, rows, classes="stacked")


def answers_text(pages: Collection[Answers]) -> list[str]:
    """Write the table of the answers: what this build found, then what was recorded.

    With one machine there is no table: its answers are on the pages.
    """
    rows = []
    for page in pages:
        for answer in page.all:
            where = f"{answer['machine']}{' (this build)' if answer is page.here else ''}"
            text = WHOLE.sub(
                lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), answer["answer"]
            )
            cells = (where, answer["provider"].upper(), answer["date"], text)
            rows.append((reference(page.page), *map(plain, cells)))
    if not rows:
        return []
    missing = [reference(page.page) for page in pages if not page.on_cuda]
    if len(missing) == len(pages):
        told = ["On CUDA, no page is recorded yet.", ""]
    elif missing:
        verb = "is" if len(missing) == 1 else "are"
        told = [f"On CUDA, {enumerate_items(missing)} {verb} not recorded yet.", ""]
    else:
        told = []
    places = {(answer["machine"], answer["provider"]) for page in pages for answer in page.all}
    if len(places) == 1:
        return ["One machine measured all pages: its answers are at their top.", "", *told]
    return told + list_table(
        ("page", "machine", "provider", "date", "answer"), rows, classes="stacked answers"
    )


def _groups(records: Iterable[Record], key: Callable[[Record], object]) -> list[list[Record]]:
    ordered = sorted(records, key=lambda record: (key(record), record.machine, record.file_name))
    return [list(own) for _, own in itertools.groupby(ordered, key)]


def _machine_row(own: Sequence[Record]) -> tuple[str, ...]:
    environment = own[0].environment
    versions = (f"{name} {version}" for name, version in environment.packages.items())
    peaks = {
        f"{record.data['peaks']['GFLOP/s']:.3g} GFLOP/s, {record.data['peaks']['GB/s']:.3g} GB/s "
        f"({record.data['legend']})"
        for record in own
        if record.page == PEAKS_PAGE
    }
    cells = (
        environment.hardware,
        f"{environment.system}, Python {environment.python}",
        ", ".join(versions),
        "; ".join(sorted(peaks)) or "not recorded",
    )
    return tuple(map(plain, cells))
