"""What a sweep says: tables over the grid, plots, a computed conclusion."""

import functools
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ortmeter._rendering import as_html, as_text, freeze
from ortmeter.conclusion import Conclusion
from ortmeter.errors import InvalidArgumentError
from ortmeter.progress import progress_bar
from ortmeter.sweep._cells import Cell, make_cells
from ortmeter.sweep._plots import draw_comparisons, numeric_coordinate
from ortmeter.sweep._sentences import conclude, group_sentences
from ortmeter.sweep._tables import failure_table, result_table, spread_table
from ortmeter.sweep.comparison import Comparison, compare_cell
from ortmeter.sweep.outcome import Outcome, SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SweepReport", "sweep_report"]


@dataclass(frozen=True)
class SweepReport:
    """The outcomes of a sweep, compared; :func:`sweep_report` makes it.

    Parameters
    ----------
    outcomes : tuple of Outcome
        What became of every task.
    cells : tuple of Cell
        What was measured at every place of the grid.
    comparisons : tuple of Comparison
        Every candidate beside its baseline, at every place of the grid.
    """

    outcomes: tuple[Outcome, ...]
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """One row per place of the grid and candidate, and one per task that has no record.

        Index: options that vary, machine, keys of the data, candidate. Columns: ``median (ms)``
        and the interval of the median, ``speedup`` over the baseline and its interval,
        ``verdict``. What all the rows share is the name of the columns.
        """
        return result_table(self.cells, self.comparisons, self.outcomes)

    @property
    def failures(self) -> pd.DataFrame:
        """Tasks that failed or did not run: machine, state, reason."""
        return failure_table(self.outcomes)

    @property
    def spread(self) -> pd.DataFrame:
        """What changes from run to run, one row per comparison; empty when there is one run."""
        return spread_table(self.comparisons)

    @property
    def sentences(self) -> pd.DataFrame:
        """What the pages concluded, numbers apart, and where."""
        return group_sentences(self.outcomes)

    @property
    def conclusion(self) -> Conclusion:
        """Sentences computed from all of this."""
        records = [outcome.record for outcome in self.outcomes if outcome.record]
        machines = dict.fromkeys(str(record.environment) for record in records)
        return Conclusion(
            conclude(self.outcomes, self.comparisons), "; ".join(machines) or "nothing"
        )

    def plot(
        self, page: str | None = None, group: str | None = None, x: str | None = None
    ) -> "Figure":
        """Plot speedups against a size, one line per type and machine, one panel per candidate.

        Parameters
        ----------
        page, group : str, optional
            Page, and group of its candidates; the first ones by default.
        x : str, optional
            Coordinate of the horizontal axis. By default a key of the data that is a number, then
            the numeric option that has the most values; without any, there is one row per place of
            the grid.

        Returns
        -------
        matplotlib.figure.Figure
            The plot. Candidates beyond the fourth and lines beyond the seventh are left out, and
            this is said.

        Raises
        ------
        InvalidArgumentError
            Nothing was compared there, or a coordinate is not a number everywhere.
        """
        own = [c for c in self.comparisons if page in {None, c.page} and group in {None, c.group}]
        if not own:
            known = dict.fromkeys(f"{c.page}, {c.group}" for c in self.comparisons)
            raise InvalidArgumentError(
                f"Nothing was compared in page {page!r}, group {group!r}. "
                f"Accepted: {'; '.join(known) or 'a sweep with measurements'}"
            )
        first = own[0]
        own = [c for c in own if (c.page, c.group) == (first.page, first.group)]
        return draw_comparisons(own, x or numeric_coordinate(own))

    def plots(self) -> "list[Figure]":
        """Plot every group of candidates of every page."""
        groups = dict.fromkeys((c.page, c.group) for c in self.comparisons)
        return [self.plot(page, group) for page, group in groups]

    def parts(self) -> list[tuple[str, list[Any]]]:
        """Return what a document shows: titles, each with tables and plots.

        Returns
        -------
        list of (str, list)
            For :meth:`ortmeter.report.Report.add`; parts without content are left out.
        """
        parts: list[tuple[str, list[Any]]] = [
            ("Over the grid", [self.table, *map(freeze, self.plots())]),
            ("From run to run", [self.spread]),
            ("What the pages concluded", [self.sentences]),
            ("Tasks without a result", [self.failures]),
        ]
        return [
            (title, items)
            for title, items in parts
            if any(not isinstance(item, pd.DataFrame) or len(item) for item in items)
        ]

    def __str__(self) -> str:
        blocks = [
            "\n".join([title, "-" * len(title), *map(as_text, items)])
            for title, items in self.parts()
        ]
        return "\n\n".join([*blocks, str(self.conclusion)])

    def _repr_html_(self) -> str:
        blocks = [as_html(self.conclusion)]
        for title, items in self.parts():
            blocks += [f"<h4>{title}</h4>", *map(as_html, items)]
        return "".join([*blocks, *_outputs(self.outcomes)])


def sweep_report(result: SweepResult, baseline: str | None = None) -> SweepReport:
    """Compare the configurations of a sweep.

    Parameters
    ----------
    result : SweepResult
        What :func:`~ortmeter.sweep.run_sweep` or :func:`~ortmeter.sweep.load_sweep` returned.
    baseline : str, optional
        Candidate that the others are compared with, where it is measured; elsewhere, and by
        default, the first candidate of each group.

    Returns
    -------
    SweepReport
        Tables, plots and conclusion.

    Raises
    ------
    InvalidArgumentError
        No group of candidates has this baseline.
    """
    cells = make_cells(result.outcomes)
    known = dict.fromkeys(name for cell in cells for name in cell.candidates)
    if baseline is not None and baseline not in known:
        raise InvalidArgumentError(f"baseline is {baseline!r}. Accepted: {', '.join(known)}")
    comparisons = _compare(cells, baseline)
    return SweepReport(result.outcomes, tuple(cells), tuple(comparisons))


def _compare(cells: Sequence[Cell], baseline: str | None) -> list[Comparison]:
    found = []
    with progress_bar("comparisons", total=len(cells)) as bar:
        for cell in cells:
            found += compare_cell(cell, baseline)
            bar.update()
    return found


def _outputs(outcomes: Iterable[Outcome]) -> list[str]:
    """Write the last lines of the tasks that failed, folded."""
    return [
        f"<details><summary>{html.escape(str(outcome.task))}: {html.escape(outcome.error)}"
        f"</summary><pre>{html.escape(outcome.output)}</pre></details>"
        for outcome in outcomes
        if outcome.error
    ]
