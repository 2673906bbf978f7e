"""The files of a sweep: one for each record, one for what became of each task."""

import dataclasses
import errno
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from ortmeter.errors import InvalidArgumentError, OrtMeterError, RecordError
from ortmeter.files import write_atomically
from ortmeter.pages import Record, load
from ortmeter.sweep.report import SweepResult
from ortmeter.sweep.tasks import Outcome, Task
from ortmeter.sweep.worker import Attempt, Machine

#: Folder of what became of the tasks, beside those of the machines.
_FOLDER = "sweeps"
_TASKS = "tasks.json"
#: Records: the folder of a machine, a name made from the page.
_FILE = re.compile(r"[a-z0-9_-][a-z0-9_.-]*/plot_[\w.-]+\.json")
#: Types of what became of a task, beside the task.
_OUTCOME = {"machine": str, "seconds": float | int, "file": str | None, "error": str, "output": str}


class Store:
    """Keeps what became of the tasks of a page.

    *identity* is what a result depends on beside its task: the text of the page, the version of
    the code.
    """

    def __init__(
        self, output: str | os.PathLike[str], page: str, identity: Mapping[str, str]
    ) -> None:
        self._output = Path(output)
        self._folder = self._output / _FOLDER / page
        self._identity = dict(identity)

    def begin(self, tasks: Iterable[Task]) -> None:
        """Write the list of tasks, by which an interrupted sweep knows what is missing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        listed = [dataclasses.asdict(task) for task in tasks]
        _write(self._folder / _TASKS, {**self._identity, "tasks": listed})

    def done(self, tasks: Iterable[Task], machines: Iterable[Machine]) -> dict[str, Outcome]:
        """Return, by key of the task, what needs not run again: same configuration, same versions.

        What a machine of the workers measured with other packages runs again.
        """
        packages: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
        for machine in machines:
            packages[machine.name].append(machine.packages)
        found = {task.key: self.read(task) for task in tasks}
        return {
            key: outcome
            for key, outcome in found.items()
            if outcome is not None
            and outcome.record is not None
            and outcome.record.environment.packages
            in packages.get(outcome.machine, [outcome.record.environment.packages])
        }

    def refuse_existing(self) -> None:
        """Refuse a folder that has results of the page."""
        if (self._folder / _TASKS).exists():
            raise InvalidArgumentError(
                f"{self._output} has a sweep of {self._folder.name} already: --resume runs what "
                "is missing there, or give another folder with --output"
            )

    def keep(self, task: Task, attempt: Attempt) -> Outcome:
        """Check what a worker sent and write it: a record that is not valid is a failure."""
        record, error = _checked(attempt, task)
        file = None
        if record is not None:
            try:
                file = self._write_record(record)
            except OSError as cause:
                if cause.errno != errno.ENAMETOOLONG:
                    raise
                record, error = None, f"the page wrote a record whose names are too long: {cause}"
        outcome = Outcome(
            task=task,
            machine=record.machine if record is not None else attempt.machine,
            seconds=attempt.seconds,
            record=record,
            file=file,
            error=error,
            output=attempt.output,
        )
        fields = {
            **self._identity,
            "task": dataclasses.asdict(task),
            "machine": outcome.machine,
            "seconds": outcome.seconds,
            "file": file.relative_to(self._output).as_posix() if file else None,
            "error": error,
            "output": outcome.output,
        }
        _write(self._folder / f"{task.key}.json", fields)
        return outcome

    def _write_record(self, record: Record) -> Path:
        packages = sorted(record.environment.packages.items())
        versions = [record.environment.python, packages, sorted(self._identity.items())]
        digest = hashlib.sha256(orjson.dumps(versions)).hexdigest()[:8]
        name = f"{Path(record.file_name).stem}--{digest}--{record.run}.json"
        file = self._output / record.machine / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, record.to_json())
        return file

    def read(self, task: Task) -> Outcome | None:
        """Return what became of a task, None when it never ran, or with another page or version.

        What was damaged is a failure, which runs again.
        """
        file = self._folder / f"{task.key}.json"
        try:
            fields = _read_json(file, _OUTCOME)
            if any(fields.get(name) != value for name, value in self._identity.items()):
                return None
            return _outcome(self._output, task, fields)
        except (OSError, RecordError) as error:
            return Outcome(task, error=str(error))


def load_sweep(folder: str | os.PathLike[str]) -> SweepResult:
    """Read what a sweep left, even an interrupted one.

    Parameters
    ----------
    folder : path
        Its output.

    Returns
    -------
    SweepResult
        One outcome for each task, page by page.

    Raises
    ------
    InvalidArgumentError
        The folder has no sweep.
    RecordError
        A list of tasks cannot be read. A record that cannot is a failure of its task.
    """
    output = Path(folder)
    lists = sorted(output.glob(f"{_FOLDER}/*/{_TASKS}"))
    if not lists:
        raise InvalidArgumentError(f"{output} has no sweep. Accepted: the output of a sweep")
    outcomes: list[Outcome] = []
    for listed in lists:
        identity, tasks = _read_tasks(listed)
        store = Store(output, listed.parent.name, identity)
        outcomes += [store.read(task) or Outcome(task) for task in tasks]
    return SweepResult(tuple(outcomes), output)


def _checked(attempt: Attempt, task: Task) -> tuple[Record | None, str]:
    """Validate the record of a task, or say why it failed."""
    if attempt.error:
        return None, attempt.error
    try:
        record = Record.from_dict(orjson.loads(attempt.record))
    except (orjson.JSONDecodeError, OrtMeterError) as error:
        return None, f"the page wrote something else than a record: {error}"
    if record.page != task.page:
        return None, f"the page wrote a record of {record.page!r}, expected {task.page!r}"
    return dataclasses.replace(record, run=task.run), ""


def _outcome(output: Path, task: Task, fields: Mapping[str, Any]) -> Outcome | None:
    if not fields:
        return None
    if fields["file"] is not None and not _FILE.fullmatch(fields["file"]):
        raise RecordError(f"{task.key}.json has its record elsewhere, in {fields['file']!r}")
    file = output / fields["file"] if fields["file"] else None
    if file is not None and not file.exists():
        return None
    record = load(file) if file else None
    if record is not None and record.page != task.page:
        raise RecordError(f"{fields['file']} is a record of {record.page!r}")
    return Outcome(
        task=task,
        machine=fields["machine"],
        seconds=fields["seconds"],
        record=record,
        file=file,
        error=fields["error"],
        output=fields["output"],
    )


def _write(file: Path, fields: Mapping[str, Any]) -> None:
    write_atomically(file, orjson.dumps(fields, option=orjson.OPT_INDENT_2))


def _read_tasks(file: Path) -> tuple[dict[str, str], list[Task]]:
    """Return what the results depend on, and the list of tasks."""
    fields = _read_json(file, {"tasks": list})
    try:
        tasks = [_task(**task) for task in fields.pop("tasks", ())]
    except TypeError as error:
        raise RecordError(f"{file.name} is not a list of tasks: {error}") from error
    return fields, tasks


def _task(page: str, options: Mapping[str, str], run: int) -> Task:
    texts = [page, *options.values()] if isinstance(options, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or type(run) is not int or run < 1:
        raise TypeError("a task has a page, options that are texts and a run from 1")
    return Task(page, options, run)


def _read_json(file: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file has, nothing when it does not exist."""
    if not file.exists():
        return {}
    try:
        if not file.is_file():
            raise ValueError("not a regular file")
        fields = dict(orjson.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{file.name} cannot be read: {error}") from error
    if absent := [name for name in kinds if name not in fields]:
        raise RecordError(f"{file.name} lacks {', '.join(absent)}")
    if wrong := [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]:
        raise RecordError(f"{file.name} has {', '.join(wrong)} of another type")
    return fields
