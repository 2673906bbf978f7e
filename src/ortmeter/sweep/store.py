"""The files of a sweep: one per record, one per outcome of a task."""

import dataclasses
import errno
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from ortmeter.errors import InvalidArgumentError, OrtMeterError, RecordError
from ortmeter.files import write_atomically
from ortmeter.study.records import Record, load
from ortmeter.sweep.report import SweepResult
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.sweep.worker import Attempt, Machine

#: Folder of what became of the tasks, beside those of the machines.
_FOLDER = "sweeps"
_TASKS = "tasks.json"
#: Records: the folder of a machine, a name made from the page.
_FILE = re.compile(r"[a-z0-9_-][a-z0-9_.-]*/plot_[\w.-]+\.json")

_File = TypeVar("_File", bound="_Written")


class _Written(msgspec.Struct):
    """What a result depends on beside its task: the text of the page, the version of the code."""

    script: str
    code: str


class _Tasks(_Written):
    tasks: list[Task]


class _Kept(_Written):
    task: Task
    machine: str
    seconds: float
    file: str | None
    error: str
    output: str


class Store:
    """Keeps what became of the tasks of a page, by the text of its script and the code."""

    def __init__(
        self, output: str | os.PathLike[str], page: str, *, script: str, code: str
    ) -> None:
        self._output = Path(output)
        self._folder = self._output / _FOLDER / page
        self._script, self._code = script, code

    def begin(self, tasks: Iterable[Task]) -> None:
        """Write the list of tasks, by which an interrupted sweep knows what is missing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _write(self._folder / _TASKS, _Tasks(self._script, self._code, list(tasks)))

    def done(self, tasks: Iterable[Task], machines: Iterable[Machine]) -> dict[str, Outcome]:
        """Return, by key of the task, what needs not run again: same configuration, same versions.

        What a machine of the workers measured with other packages runs again.
        """
        packages: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
        for machine in machines:
            packages[machine.name].append(machine.packages)
        outcomes = {}
        for task in tasks:
            outcome = self.read(task)
            if outcome is not None and outcome.record is not None:
                own = outcome.record.environment.packages
                if own in packages.get(outcome.machine, [own]):
                    outcomes[task.key] = outcome
        return outcomes

    def refuse_existing(self) -> None:
        """Refuse a folder that has results of the page."""
        if (self._folder / _TASKS).exists():
            raise InvalidArgumentError(
                f"{self._output} already has a sweep of {self._folder.name}. Accepted: --resume "
                "to finish it, or another folder with --output"
            )

    def keep(self, task: Task, attempt: Attempt) -> Outcome:
        """Check what a worker sent and write it: a record that is not valid is a failure."""
        record, file, machine, error = None, None, attempt.machine, attempt.error
        try:
            if not error:
                record = _read_record(attempt.record, task)
                file, machine = self._write_record(record), record.machine
        except RecordError as cause:
            record, error = None, str(cause)
        place = file.relative_to(self._output).as_posix() if file else None
        seconds, output = attempt.seconds, attempt.output
        kept = _Kept(self._script, self._code, task, machine, seconds, place, error, output)
        _write(self._folder / f"{task.key}.json", kept)
        return Outcome(task, machine, seconds, record, file, error, output)

    def _write_record(self, record: Record) -> Path:
        packages = sorted(record.environment.packages.items())
        versions = [record.environment.python, packages, self._script, self._code]
        digest = hashlib.sha256(msgspec.json.encode(versions)).hexdigest()[:8]
        name = f"{record.case}--{digest}--{record.run}.json"
        file = self._output / record.machine / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, record.to_json())
        except OSError as cause:
            if cause.errno != errno.ENAMETOOLONG:
                raise
            raise RecordError(
                f"the page wrote a record whose names are too long: {cause}"
            ) from None
        return file

    def read(self, task: Task) -> Outcome | None:
        """Return what became of a task, None when it never ran, or with another page or version.

        What was damaged is a failure, which runs again.
        """
        record = file = None
        try:
            kept = _read(self._folder / f"{task.key}.json", _Kept)
            if kept is None or (kept.script, kept.code) != (self._script, self._code):
                return None
            if kept.file is not None:
                if not _FILE.fullmatch(kept.file):
                    raise RecordError(f"{task.key}.json has its record elsewhere, in {kept.file!r}")
                file = self._output / kept.file
                if not file.exists():
                    return None
                record = load(file)
                if record.page != task.page:
                    raise RecordError(f"{kept.file} is a record of {record.page!r}")
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
        if begun := _read(listed, _Tasks):
            store = Store(output, listed.parent.name, script=begun.script, code=begun.code)
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


def _write(file: Path, content: _Written) -> None:
    write_atomically(file, msgspec.json.format(msgspec.json.encode(content), indent=2))


def _read(file: Path, kind: type[_File]) -> _File | None:
    """Return what a file has, None when it does not exist."""
    if not file.exists():
        return None
    try:
        if not file.is_file():
            raise OSError("not a regular file")
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise RecordError(f"{file.name} cannot be read: {error}") from error
