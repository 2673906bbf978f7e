"""What is shown while a sweep runs."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ortmeter.progress import progress_bar
from ortmeter.sweep.outcome import Outcome, Task

__all__ = ["BarWatcher", "LineWatcher", "Watcher"]


class Watcher(Protocol):
    """Is told what happens."""

    def begin(self, total: int, kept: int) -> None:
        """Begin: *kept* of the *total* tasks are done already."""

    def started(self, task: Task, machine: str) -> None:
        """Tell that a task runs on a machine."""

    def ended(self, outcome: Outcome) -> None:
        """Tell what became of a task."""

    def close(self) -> None:
        """Finish, or stop."""


class LineWatcher:
    """One line for each task that ends.

    Parameters
    ----------
    write : callable
        Takes a line.

    Examples
    --------
    >>> watcher = LineWatcher(print)
    >>> watcher.begin(total=2, kept=1)
    1 of 2 done already
    >>> watcher.ended(Outcome(Task("plot_x", {"config": "small"}), "a-cpu", 1.5, error="no"))
    [2/2] failed plot_x config=small, run 1 on a-cpu in 1.5 s: no
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._total = self._ended = 0

    def begin(self, total: int, kept: int) -> None:
        """Say what is done already."""
        self._total, self._ended = total, kept
        if kept:
            self._write(f"{kept} of {total} done already")

    def started(self, task: Task, machine: str) -> None:
        """Say nothing: a line when it ends is enough."""

    def ended(self, outcome: Outcome) -> None:
        """Say what became of a task."""
        self._ended += 1
        self._write(f"[{self._ended}/{self._total}] {outcome}")

    def close(self) -> None:
        """Say nothing: the report follows."""


class BarWatcher:
    """A bar, with what is done, failed and running on each machine."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._running: dict[str, str] = {}

    def begin(self, total: int, kept: int) -> None:
        """Show the bar, in a terminal or a notebook."""
        self._bar = progress_bar("sweep", total=total)
        self._bar.update(kept)

    def started(self, task: Task, machine: str) -> None:
        """Count a run of a machine."""
        self._leave(task)  # it starts again when its worker died
        self._running[task.key] = machine
        self._count(machine, "running")

    def ended(self, outcome: Outcome) -> None:
        """Count what became of a task, where it ran or was last seen."""
        last_seen = self._leave(outcome.task)
        self._count(outcome.machine or last_seen, outcome.state)
        self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    @property
    def text(self) -> str:
        """What the bar shows: the counts of each machine."""
        return "; ".join(
            f"{machine}: " + ", ".join(f"{n} {state}" for state, n in sorted(counts.items()) if n)
            for machine, counts in self._counts.items()
        )

    def _leave(self, task: Task) -> str:
        """Forget that a task runs, return where it did."""
        machine = self._running.pop(task.key, "")
        if machine:
            self._counts[machine]["running"] -= 1
        return machine or "no machine"

    def _count(self, machine: str, state: str) -> None:
        self._counts.setdefault(machine, Counter())[state] += 1
        self._bar.set_postfix_str(self.text)
