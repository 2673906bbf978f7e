"""Report of a sweep: tables over the grid, plots, a computed conclusion."""

import functools
import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ortmeter.evidence import Speedup, rounded
from ortmeter.pictures import freeze
from ortmeter.plotting.sweep import sweep_plot
from ortmeter.study.rendering import as_html, as_text, bullets
from ortmeter.study.writer import sentences
from ortmeter.sweep.comparison import (
    MACHINE,
    Cell,
    RunComparison,
    conclude,
    group_by,
    make_cells,
)
from ortmeter.sweep.tasks import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MS = 1e3
_WIDTH = 90  # characters of a line
_CONSTANTS = ("page", "group", MACHINE)
_BASELINE = {"speedup": 1.0, "low": 1.0, "high": 1.0, "verdict": "baseline"}
_TIMES = ["median (ms)", "q1 (ms)", "q3 (ms)"]
_SPREAD = ["between runs (%)", "one run (± %)", "runs differ", "verdicts"]


@dataclass(frozen=True)
class SweepReport:
    """Comparison of the outcomes of a sweep, see :meth:`~ortmeter.sweep.SweepResult.report`.

    Parameters
    ----------
    outcomes : tuple of Outcome
        Outcome of every task.
    """

    outcomes: tuple[Outcome, ...]

    @functools.cached_property
    def _cells(self) -> list[tuple[Cell, list[RunComparison]]]:
        return [(cell, cell.compare()) for cell in make_cells(self.outcomes)]

    @property
    def comparisons(self) -> list[RunComparison]:
        """Every candidate compared with the first of its group, at every place of the grid."""
        return [comparison for _, own in self._cells for comparison in own]

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """One row per place of the grid and candidate.

        Index: options that vary, machine, axis of the measurements, candidate. Columns: ``median
        (ms)`` and quartiles of all the samples, ``speedup`` over the first candidate and its
        interval, ``verdict``. What all the rows share is the name of the columns.
        """
        rows = []
        for cell, own in self._cells:
            compared = {c.overall.subject: _verdict(c.overall) for c in own}
            compared |= {c.overall.baseline: _BASELINE for c in own}
            rows += [
                (_place(cell, name), _latency(cell, name) | compared.get(name, {}))
                for name in cell.candidates
            ]
        return _readable(rows, [*_TIMES, *_BASELINE])

    @property
    def spread(self) -> pd.DataFrame:
        """What changes from run to run, one row per comparison; empty when there is one run.

        Index: the coordinates and the candidate. Columns: the speedup of each run; their standard
        deviation and the half-width of the interval of one run, in percent; whether two of these
        intervals do not meet; the verdicts.
        """
        rows = []
        runs: dict[str, None] = {}
        for c in self.comparisons:
            if len(c.runs) > 1:
                ratios = {f"run {run}": rounded(claim.ratio) for run, claim in c.runs.items()}
                differ = {True: "yes", False: "no", None: ""}[c.runs_differ]
                values = _percent(c.between), _percent(c.within), differ, c.stability
                spread = dict(zip(_SPREAD, values, strict=True))
                rows.append((_place(c, c.overall.subject), ratios | spread))
                runs |= dict.fromkeys(ratios)
        return _readable(rows, [*runs, *_SPREAD])

    @property
    def answers(self) -> pd.DataFrame:
        """What the page answered, one row per task that has an answer."""
        rows = [
            (str(o.task), o.machine, str(o.record.answer))
            for o in self.outcomes
            if o.record and o.record.answer
        ]
        return pd.DataFrame(rows, columns=["task", "machine", "answer"]).set_index("task")

    @property
    def conclusion(self) -> list[str]:
        """Sentences: whether verdicts hold, then what was found over the grid."""
        return sentences(conclude(self.outcomes, self.comparisons))

    @property
    def _measured_on(self) -> str:
        records = [outcome.record for outcome in self.outcomes if outcome.record]
        return "; ".join(dict.fromkeys(str(r.environment) for r in records)) or "nothing"

    def plots(self) -> "list[Axes]":
        """Plot speedups against a size, a figure for each group of candidates of each page.

        The size is the axis of the measurements when it is a number, else the numeric option that
        has the most values; without any, there is one row per place of the grid.
        """
        return [
            sweep_plot(
                [c.overall for c in own],
                runs=[c.ratios if len(c.runs) > 1 else () for c in own],
                title="Does the speedup hold over the grid?",
                caption=_legend([_place(c) for c in own]),
            )
            for own in group_by(self.comparisons, lambda c: c.pair[:3]).values()
        ]

    def parts(self) -> list[tuple[str, list[Any]]]:
        """Return titles, each with its tables and plots, as a report takes them."""
        lost = [outcome for outcome in self.outcomes if outcome.record is None]
        reasons = pd.DataFrame(
            [(str(o.task), o.machine, o.state, o.error) for o in lost],
            columns=["task", "machine", "state", "reason"],
        )
        outputs = [f"{o.task}: {o.error}\n{o.output}".strip() for o in lost if o.error]
        parts: list[tuple[str, list[Any]]] = [
            ("Over the grid", [self.table, *map(freeze, self.plots())]),
            ("From run to run", [self.spread]),
            ("What the pages answered", [self.answers]),
            ("Tasks without a result", [reasons.set_index("task"), *outputs]),
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
        first, *others = self.conclusion
        told = "\n".join([first, f"Measured on {self._measured_on}:", *bullets(others, _WIDTH)])
        return "\n\n".join([*blocks, told])

    def _repr_html_(self) -> str:
        first, *others = map(html.escape, self.conclusion)
        items = "".join(f"<li>{told}</li>" for told in others)
        measured = f"<p>Measured on {html.escape(self._measured_on)}:</p><ul>{items}</ul>"
        blocks = [f'<div class="ortmeter-conclusion"><p>{first}</p>{measured}</div>']
        for title, shown in self.parts():
            blocks += [f"<h4>{title}</h4>", *map(as_html, shown)]
        return "".join(blocks)


@dataclass(frozen=True)
class SweepResult:
    """Outcomes of all the tasks of a sweep, see :func:`~ortmeter.sweep.run_sweep`.

    Parameters
    ----------
    outcomes : tuple of Outcome
        One for each task, in the order of the grid.
    output : Path
        Folder of the files.
    """

    outcomes: tuple[Outcome, ...]
    output: Path

    @property
    def done(self) -> tuple[Outcome, ...]:
        """Outcomes with a record."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "done")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Outcomes of tasks that ran and have no record."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    def report(self) -> SweepReport:
        """Compare the configurations: tables, plots and conclusion."""
        return SweepReport(self.outcomes)

    def __str__(self) -> str:
        states = Counter(outcome.state for outcome in self.outcomes)
        counts = f"{states['done']} of {states.total()} done, {states['failed']} failed"
        return f"{counts}, {states['missing']} missing"

    def _repr_html_(self) -> str:
        return str(self.report()._repr_html_())


def _place(place: Cell | RunComparison, candidate: str = "") -> dict[str, Any]:
    where = {"page": place.page, "group": place.group, **place.coordinates}
    return {**where, "candidate": candidate}


def _latency(cell: Cell, candidate: str) -> dict[str, float]:
    measured = cell.samples(candidate)
    times = (measured.median, *measured.quartiles)
    return dict(zip(_TIMES, (rounded(time * _MS) for time in times), strict=True))


def _verdict(claim: Speedup) -> dict[str, Any]:
    numbers = {"speedup": claim.ratio, "low": claim.low, "high": claim.high}
    return {name: rounded(n) for name, n in numbers.items()} | {"verdict": claim.verdict}


def _shared(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Find which of page, group and machine are the same everywhere; a row may have none."""
    values = {name: {row[name] for row in rows if row.get(name)} for name in _CONSTANTS}
    return {name: str(*shared) for name, shared in values.items() if len(shared) <= 1}


def _legend(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(filter(None, _shared(rows).values()))


def _readable(
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], columns: Sequence[str]
) -> pd.DataFrame:
    """Index values by what distinguishes their places; what all of these share is the legend."""
    places = [place for place, _ in rows]
    names = dict.fromkeys(name for place in places for name in place)
    index = [n for n in names if n not in {*_shared(places), "candidate"}] + ["candidate"]
    # Objects: a row without a value must not turn sizes into floats.
    keys = [[place.get(name, "") for name in index] for place in places]
    labels = pd.DataFrame(keys, columns=index, dtype=object)
    values = pd.DataFrame([values for _, values in rows], columns=list(columns))
    table = labels.join(values).set_index(index)
    return table.rename_axis(columns=_legend(places) or None)


def _percent(deviation: float | None) -> float:
    """Write a deviation of a logarithm as a percentage."""
    return math.nan if deviation is None else rounded(100 * float(np.expm1(deviation)), 2)
