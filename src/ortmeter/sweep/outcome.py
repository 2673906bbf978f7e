"""What a sweep is made of: tasks, what became of each one, all of them together."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmeter.pages import Record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Outcome", "SweepResult", "Task"]


@dataclass(frozen=True)
class Task:
    """One configuration of one page, run once.

    Parameters
    ----------
    page : str
        Name of the page.
    options : mapping of str to str
        Options given to the page, as its command line takes them.
    run : int
        1 for the first run of this configuration.

    Examples
    --------
    >>> print(Task("plot_x", {"config": "small", "provider": "cpu"}, run=2))
    plot_x config=small provider=cpu, run 2
    """

    page: str
    options: Mapping[str, str]
    run: int = 1

    @property
    def key(self) -> str:
        """Letters and digits that no other task of the sweep has."""
        text = json.dumps([self.page, sorted(self.options.items()), self.run])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        """Options as the command line of the page takes them."""
        return [f"--{name.replace('_', '-')}={text}" for name, text in self.options.items()]

    def __str__(self) -> str:
        options = [f"{name}={text}" for name, text in self.options.items()]
        return f"{' '.join([self.page, *options])}, run {self.run}"


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a record, an error, or nothing yet.

    Parameters
    ----------
    task : Task
        The task.
    machine : str
        Name of the machine that ran it, empty when none did.
    seconds : float
        Time that its process took.
    record : Record or None
        What the page recorded, None when it did not end well.
    file : Path or None
        File of the record.
    error : str
        Why there is no record, on one line; empty when there is one or when it never ran.
    output : str
        Last lines that the page wrote, on both streams.
    """

    task: Task
    machine: str = ""
    seconds: float = 0.0
    record: Record | None = None
    file: Path | None = None
    error: str = ""
    output: str = ""

    @property
    def state(self) -> str:
        """``done``, ``failed`` or ``missing``."""
        if self.record is not None:
            return "done"
        return "failed" if self.error else "missing"

    def __str__(self) -> str:
        where = f" on {self.machine} in {self.seconds:.1f} s" if self.machine else ""
        why = f": {self.error}" if self.error else ""
        return f"{self.state} {self.task}{where}{why}"


@dataclass(frozen=True)
class SweepResult:
    """What became of every task of a sweep; :func:`~ortmeter.sweep.run_sweep` makes it.

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
        """Those with a record."""
        return self._in_state("done")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Those that ran and have no record."""
        return self._in_state("failed")

    @property
    def missing(self) -> tuple[Outcome, ...]:
        """Those that did not run."""
        return self._in_state("missing")

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row for each task.

        Returns
        -------
        DataFrame
            Columns: one for each option, then ``run``, ``machine``, ``state``, ``time (s)`` and
            ``error``.
        """
        import pandas as pd

        rows = [
            {
                **outcome.task.options,
                "run": outcome.task.run,
                "machine": outcome.machine,
                "state": outcome.state,
                "time (s)": round(outcome.seconds, 1),
                "error": outcome.error,
            }
            for outcome in self.outcomes
        ]
        return pd.DataFrame(rows)

    def report(self, baseline: str | None = None) -> Any:
        """Compare the configurations: tables, plots and conclusion.

        Parameters
        ----------
        baseline : str, optional
            Candidate that the others are compared to, by default the first one of each group.

        Returns
        -------
        SweepReport
            See :func:`~ortmeter.sweep.sweep_report`.
        """
        from ortmeter.sweep.report import sweep_report

        return sweep_report(self, baseline)

    def _in_state(self, state: str) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.state == state)

    def __str__(self) -> str:
        counts = f"{len(self.done)} of {len(self.outcomes)} done, {len(self.failed)} failed"
        return f"{counts}, {len(self.missing)} missing"

    def _repr_html_(self) -> str:
        return str(self.report()._repr_html_())
