"""Directives that write about what was recorded on every machine."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext import history
from _ext.claims import claims_text
from _ext.tables import list_table, plain, reference
from ortmeter.study.records import Record, load_records

#: The page that measures the peaks of a machine.
PEAKS_PAGE = "plot_op_gemm2_cuda"


def register(app: Sphinx) -> None:
    """Add the directives ``ortmeter-machines``, ``ortmeter-answers``, and those of claims."""
    for name in _TEXTS:
        app.add_directive(f"ortmeter-{name}", _Directive)


class _Directive(SphinxDirective):
    """Table of the machines, of their answers, of original conclusions, or of changed claims."""

    def run(self) -> list[nodes.Node]:
        """Write the text and parse it where the directive stands."""
        results = Path(self.env.srcdir, "results")
        for file in sorted(results.rglob("*.json")):
            self.env.note_dependency(str(file))
        lines = _TEXTS[self.name.removeprefix("ortmeter-")](results)
        return self.parse_text_to_nodes("\n".join(lines))


def machines_text(records: Sequence[Record]) -> list[str]:
    """Write the table of the machines, in lines of reStructuredText."""
    if not records:
        return ["Nothing was recorded yet.", ""]
    header = ("machine", "system", "versions", "peaks, one thread")
    ordered = sorted(records, key=lambda record: (record.machine, record.file_name))
    groups = itertools.groupby(ordered, lambda record: record.machine)
    rows = (_machine_row([*own]) for _, own in groups)
    return list_table(header, rows, classes="stacked")


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


def answers_text(records: Sequence[Record]) -> list[str]:
    """Write whether the answer of each page holds on each machine; a reader filters the rows."""
    header = ("page", "machine", "provider", "date", "answer")
    rows = (
        (
            reference(record.page),
            plain(record.environment.hardware),
            record.configuration["provider"].upper(),
            f"{record.date:%Y-%m-%d}",
            record.answer.verdict,
        )
        for record in sorted(records, key=lambda record: (record.page, record.machine))
        if record.answer
    )
    return list_table(header, rows, classes="dataframe")


_TEXTS: dict[str, Callable[[Path], list[str]]] = {
    "machines": lambda results: machines_text(load_records(folder=results)),
    "answers": lambda results: answers_text(load_records(folder=results)),
    "claims": lambda results: claims_text(load_records(folder=results)),
    "history": lambda results: history.changes_text(history.load_history(results)),
}
