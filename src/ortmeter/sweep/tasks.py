"""The tasks of a sweep: a page, the values of its options in every combination, and outcomes."""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.records import UNRECORDED, Record

#: Tasks of a sweep, which takes at least a second for each one.
MAX_TASKS = 100_000

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
        return digest(self.page, sorted(self.options.items()), self.run)

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


def digest(*values: Any) -> str:
    """Return letters and digits that stand for what JSON can write."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


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
        if _option_name(name) in axes:
            raise InvalidArgumentError(f"{_option_name(name)} is given twice")
        parts = values.split(";" if ";" in values else ",")
        axes[_option_name(name)] = tuple(filter(None, map(str.strip, parts)))
    return axes


def configurations(grid: Mapping[str, Sequence[str]], repeat_runs: int = 1) -> list[dict[str, str]]:
    """Combine the values of a grid, the last axis varies first; its runs are counted."""
    for name, values in grid.items():
        if isinstance(values, str):
            raise InvalidArgumentError(
                f"{name}: got {values!r}, expected a list such as [{values!r}]"
            )
    axes = {_option_name(name): [*dict.fromkeys(map(str, values))] for name, values in grid.items()}
    if not axes or not all(axes.values()):
        empty = ", ".join(name for name, values in axes.items() if not values) or "the grid"
        raise InvalidArgumentError(
            f"{empty} has no value. Accepted: options of the page with their values, such as "
            "config=small,medium"
        )
    for text in itertools.chain(axes, *axes.values()):
        if _UNWRITABLE.search(text):
            raise InvalidArgumentError(f"got {text!r}, expected UTF-8 without null character")
    size = math.prod(map(len, axes.values()))
    if not 1 <= repeat_runs <= MAX_TASKS // size:
        raise InvalidArgumentError(
            f"got {repeat_runs} runs of {size} configurations. Accepted: at least one run, at most "
            f"{MAX_TASKS} in all"
        )
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _option_name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_")
    if name in UNRECORDED | {"help"}:
        raise InvalidArgumentError(f"{name} cannot be set: a sweep always records, and only that")
    return name


def read_script(path: str | os.PathLike[str]) -> str:
    """Read the script of a page, refuse what is not Python."""
    file = Path(path)
    try:
        if not file.is_file() or file.suffix != ".py":
            raise ValueError("not a file of Python")
        text = file.read_text(encoding="utf-8")
        compile(text, file.name, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(
            f"the page {file} cannot be read: {error}. Accepted: the script of a page, plot_x.py"
        ) from None
    if not re.fullmatch(r"plot_\w{1,100}", file.stem):
        raise InvalidArgumentError(
            f"got the page {file.name}. Accepted: plot_ and at most 100 letters, digits and "
            "underscores, then .py"
        )
    return text
