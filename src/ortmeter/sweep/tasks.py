"""The tasks of a sweep: a page, the values of its options in every combination, and outcomes."""

import hashlib
import itertools
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.page_check import CHECK_VARIABLE
from ortmeter.study.records import UNRECORDED, Record
from ortmeter.sweep.worker import Script, run_script

#: Tasks of a sweep, which takes at least a second for each one.
MAX_TASKS = 100_000

_CHECK_TIMEOUT_S = 120
_MAX_BYTES = 2**20

# What a command line, or a file of JSON, cannot hold.
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")


@dataclass(frozen=True)
class Task:
    """One run of one configuration of a page.

    Parameters
    ----------
    page : str
        Name of the page.
    options : mapping of str to str
        Options of the page, as its command line accepts them.
    run : int
        1 for the first run of this configuration.

    Examples
    --------
    >>> print(Task("plot_x", {"config": "small", "provider": "cpu"}, run=2))
    plot_x config=small provider=cpu, run 2
    """

    page: str
    options: Mapping[str, str]
    run: Annotated[int, Meta(ge=1)] = 1

    @property
    def key(self) -> str:
        """Letters and digits that no other task of the sweep has."""
        text = json.dumps([self.page, sorted(self.options.items()), self.run])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        options = [f"{name}={text}" for name, text in self.options.items()]
        return f"{' '.join([self.page, *options])}, run {self.run}"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task: a record, an error, or nothing yet.

    Parameters
    ----------
    task : Task
        The task.
    machine : str
        Name of the machine that ran it, empty if it did not run.
    seconds : float
        Duration of its process.
    record : Record or None
        Record of the page, None if it failed.
    file : Path or None
        File of the record.
    error : str
        Why there is no record, on one line; empty if there is one or if the task did not run.
    output : str
        Last lines of the output of the page, both streams.
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


def command_line(options: Mapping[str, str]) -> list[str]:
    """Write options as the command line of a page takes them."""
    return [f"--{name.replace('_', '-')}={text}" for name, text in options.items()]


def read_grid(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read the axes of a grid: ``name=value,value``, semicolons where values are lists themselves.

    >>> read_grid(["config=small,medium", "batch=1,32;64,128"])
    {'config': ('small', 'medium'), 'batch': ('1,32', '64,128')}
    """
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equal, values = text.partition("=")
        if not (equal and name.strip()):
            raise InvalidArgumentError(f"got {text!r}, expected NAME=VALUE,VALUE...")
        if _name(name) in axes:
            raise InvalidArgumentError(f"{_name(name)} is given twice")
        parts = values.split(";" if ";" in values else ",")
        axes[_name(name)] = tuple(filter(None, map(str.strip, parts)))
    return axes


def configurations(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Combine the values of a grid, the last axis varies first."""
    for name, values in grid.items():
        if isinstance(values, str):
            raise InvalidArgumentError(
                f"{name}: got {values!r}, expected a list such as [{values!r}]"
            )
    axes = {_name(name): [str(value) for value in values] for name, values in grid.items()}
    if not axes or not all(axes.values()):
        empty = ", ".join(name for name, values in axes.items() if not values) or "the grid"
        raise InvalidArgumentError(
            f"{empty} has no value. Accepted: options of the page with their values, such as "
            "config=small,medium"
        )
    for text in itertools.chain(axes, *axes.values()):
        if _UNWRITABLE.search(text):
            raise InvalidArgumentError(f"got {text!r}, expected UTF-8 without null character")
    if (size := math.prod(map(len, axes.values()))) > MAX_TASKS:
        raise InvalidArgumentError(f"the grid has {size} configurations. Accepted: {MAX_TASKS}")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_")
    if name in UNRECORDED | {"help"}:
        raise InvalidArgumentError(f"{name} cannot be set: a sweep always records, and only that")
    return name


def read_script(path: str | os.PathLike[str]) -> Script:
    """Read the script of a page, refuse what is no Python."""
    file = Path(path)
    try:
        status = file.stat()
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
        is_script = is_small and file.suffix == ".py"
        text = file.read_text(encoding="utf-8") if is_script else ""
        compile(text, file.name, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"the page {file} cannot be read: {error}") from None
    if not is_script:
        raise InvalidArgumentError(f"{file} is not the script of a page (plot_x.py)")
    return Script(file.name, text)


def check_page(script: Script, chosen: Sequence[Mapping[str, str]]) -> str:
    """Ask a page whether it accepts every configuration, return its name."""
    lines = [[*command_line(options), "--record"] for options in chosen]
    answer = _ask(script, lines)
    name, readings = answer.page, answer.readings
    # What records refuse; a name is also that of a folder.
    if not re.fullmatch(r"plot_\w{1,100}", name):
        raise InvalidArgumentError(
            f"{script.file_name} calls itself {name!r}. "
            "Accepted: plot_ and at most 100 letters, digits and underscores"
        )
    if errors := [*dict.fromkeys(one.error for one in readings if one.error)]:
        more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""  # noqa: PLR2004
        raise InvalidArgumentError("; ".join(errors[:3]) + more)
    seen: dict[str, Sequence[str]] = {}
    for reading, line in zip(readings, lines, strict=True):
        other = seen.setdefault(json.dumps(reading.labels, sort_keys=True), line)
        if other is not line:
            raise InvalidArgumentError(
                f"{' '.join(other[:-1])} and {' '.join(line[:-1])} are the same configuration"
            )
    return name


class _Reading(msgspec.Struct):
    labels: dict[str, str] = {}
    error: str = ""


class _Answer(msgspec.Struct):
    page: str
    readings: list[_Reading]


def _ask(script: Script, lines: Sequence[Sequence[str]]) -> _Answer:
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        question, answer = folder / "question.json", folder / "answer.json"
        asked = {"command_lines": lines, "answer": str(answer)}
        question.write_text(json.dumps(asked), encoding="utf-8")
        variables = {CHECK_VARIABLE: str(question)}
        ended = run_script(
            script.write(folder), [], variables, folder=folder, timeout=_CHECK_TIMEOUT_S
        )
        if ended.code is not None and answer.exists():
            try:
                told = msgspec.json.decode(answer.read_bytes(), type=_Answer)
                if len(told.readings) == len(lines):
                    return told
                reason = f"{len(told.readings)} readings of {len(lines)} configurations"
            except (OSError, ValueError, RecursionError) as error:
                reason = str(error)
            raise InvalidArgumentError(f"{script.file_name} gives no valid answer: {reason}")
    why = f"does not declare its parameters with get_parsed_args ({ended})"
    if ended.code is None:
        why = f"did not declare its parameters in {_CHECK_TIMEOUT_S} s: a page starts with "
        why += "get_parsed_args"
    raise InvalidArgumentError(f"{script.file_name} {why}")
