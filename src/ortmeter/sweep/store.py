"""The files of a sweep: one per record, one per outcome of a task."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from ortmeter.errors import InvalidArgumentError, OrtMeterError, RecordError
from ortmeter.files import write_atomically
from ortmeter.study.records import Record, load
from ortmeter.sweep.report import SweepResult
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.sweep.worker import Attempt

#: Folder of what became of the tasks, beside those of the machines.
_FOLDER = "sweeps"
_TASKS = "tasks.json"

_File = TypeVar("_File")


class _Tasks(msgspec.Struct):
    conditions: str
    tasks: list[Task]


class _Kept(msgspec.Struct):
    conditions: str
    task: Task
    machine: str
    seconds: float
    file: str | None
    error: str
    output: str


class Store:
    """Keeps what became of the tasks of a page; *conditions* stand for its text and versions."""

    def __init__(self, output: str | os.PathLike[str], page: str, conditions: str) -> None:
        self._output = Path(output)
        self._folder = self._output / _FOLDER / page
        self._conditions = conditions

    def begin(self, tasks: Iterable[Task]) -> None:
        """Write the list of tasks, by which an interrupted sweep knows what is missing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _write(self._folder / _TASKS, _Tasks(self._conditions, list(tasks)))

    def done(self, tasks: Iterable[Task]) -> dict[str, Outcome]:
        """Return, by key of the task, what needs not run again."""
        outcomes = {task.key: self.read(task) for task in tasks}
        return {key: o for key, o in outcomes.items() if o is not None and o.record is not None}

    def refuse_existing(self) -> None:
        """Refuse a folder that has results of the page."""
        if (self._folder / _TASKS).exists():
            raise InvalidArgumentError(
                f"{self._output} already has a sweep of {self._folder.name}. Accepted: --resume "
                "to finish it, or another folder with --output"
            )

    def keep(self, task: Task, attempt: Attempt) -> Outcome:
        """Check what a page wrote and keep it: a record that is not valid is a failure."""
        record, file, machine, error = None, None, attempt.machine, attempt.error
        try:
            if not error:
                record = _read_record(attempt.record, task)
                name = f"{record.case}--{self._conditions[:8]}--{record.run}.json"
                file, machine = self._output / record.machine / name, record.machine
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, record.to_json())
        except (OSError, RecordError) as cause:  # an option makes a name that is too long
            record, file, error = None, None, str(cause)
        place = file.relative_to(self._output).as_posix() if file else None
        seconds, output = attempt.seconds, attempt.output
        kept = _Kept(self._conditions, task, machine, seconds, place, error, output)
        _write(self._folder / f"{task.key}.json", kept)
        return Outcome(task, machine, seconds, record, file, error, output)

    def read(self, task: Task) -> Outcome | None:
        """Return what became of a task, None when it never ran, or under other conditions.

        What was damaged is a failure, which runs again.
        """
        record = file = None
        try:
            kept = _read_file(self._folder / f"{task.key}.json", _Kept)
            if kept is None or kept.conditions != self._conditions:
                return None
            if kept.file is not None:
                file = self._output / kept.file
                if not file.exists():
                    return None
                record = load(file)
        except (OSError, RecordError) as error:
            return Outcome(task, error=str(error))
        return Outcome(task, kept.machine, kept.seconds, record, file, kept.error, kept.output)


def load_sweep(folder: str | os.PathLike[str]) -> SweepResult:
    """Read the results of a sweep, finished or interrupted.

    Parameters
    ----------
    folder : path
        Output folder of the sweep.

    Returns
    -------
    SweepResult
        One outcome per task, page by page.

    Raises
    ------
    InvalidArgumentError
        The folder has no sweep.
    RecordError
        A list of tasks cannot be read. If a record cannot be read, its task is a failure.
    """
    output = Path(folder)
    lists = sorted(output.glob(f"{_FOLDER}/*/{_TASKS}"))
    if not lists:
        raise InvalidArgumentError(f"{output} has no sweep. Accepted: the output of a sweep")
    outcomes: list[Outcome] = []
    for listed in lists:
        if begun := _read_file(listed, _Tasks):
            store = Store(output, listed.parent.name, begun.conditions)
            outcomes += [store.read(task) or Outcome(task) for task in begun.tasks]
    return SweepResult(tuple(outcomes), output)


def _read_record(content: bytes, task: Task) -> Record:
    try:
        record = Record.from_dict(msgspec.json.decode(content))
    except (ValueError, RecursionError, msgspec.DecodeError, OrtMeterError) as error:
        raise RecordError(f"the page wrote a file that is not a record: {error}") from None
    if record.page != task.page:
        raise RecordError(f"the page wrote a record of {record.page!r}, expected {task.page!r}")
    return dataclasses.replace(record, run=task.run)


def _write(file: Path, content: msgspec.Struct) -> None:
    write_atomically(file, msgspec.json.format(msgspec.json.encode(content), indent=2))


def _read_file(file: Path, kind: type[_File]) -> _File | None:
    """Return what a file has, None when it does not exist."""
    if not file.exists():
        return None
    try:
        if not file.is_file():
            raise OSError("not a regular file")
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise RecordError(f"{file.name} cannot be read: {error}") from error
