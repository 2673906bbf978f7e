"""The tasks of a sweep: values of the options of a page, in every combination, and outcomes."""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ortmeter.errors import InvalidArgumentError
from ortmeter.pages import Record

#: Tasks of a sweep, which takes at least a second for each one.
MAX_TASKS = 100_000

# What a command line, or a file of JSON, cannot hold.
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")

# Options that the sweep gives itself.
_RESERVED = {"record", "help"}


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
    run: Annotated[int, Meta(ge=1)] = 1

    @property
    def key(self) -> str:
        """Letters and digits that no other task of the sweep has."""
        text = json.dumps([self.page, sorted(self.options.items()), self.run])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        """Options as the command line of the page takes them."""
        return command_line(self.options)

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


def command_line(options: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={text}" for name, text in options.items()]


def read_grid(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read the axes of a grid: ``name=value,value``, semicolons where values are lists themselves.

    >>> read_grid(["config=small,medium", "batch=1,32;64,128"])
    {'config': ('small', 'medium'), 'batch': ('1,32', '64,128')}
    """
    pairs = _pairs(texts, "NAME=VALUE,VALUE...")
    return {name: _values(text) for name, text in pairs.items()}


def read_options(texts: Iterable[str]) -> dict[str, str]:
    """Read the options that all configurations share; commas belong to the value."""
    return _pairs(texts, "NAME=VALUE")


def configurations(
    grid: Mapping[str, Sequence[str]], options: Mapping[str, str]
) -> list[dict[str, str]]:
    """Combine the values of a grid, the last axis varies first; add what all of them share."""
    axes = {_name(name): [str(v) for v in _listed(name, grid[name])] for name in grid}
    shared = {_name(name): str(value) for name, value in options.items()}
    if not axes or not all(axes.values()):
        empty = ", ".join(name for name, values in axes.items() if not values) or "the grid"
        raise InvalidArgumentError(
            f"{empty} has no value. Accepted: options of the page with their values, such as "
            "config=small,medium"
        )
    for name, values in axes.items():
        if repeated := {value for value, times in Counter(values).items() if times > 1}:
            raise InvalidArgumentError(f"{name} has {', '.join(sorted(repeated))} more than once")
    if both := [name for name in axes if name in shared]:
        raise InvalidArgumentError(f"{', '.join(both)} is in the grid and fixed: choose one")
    for text in itertools.chain(axes, shared, shared.values(), *axes.values()):
        if _UNWRITABLE.search(text):
            raise InvalidArgumentError(f"got {text!r}, expected UTF-8 without null character")
    if (size := math.prod(map(len, axes.values()))) > MAX_TASKS:
        raise InvalidArgumentError(f"the grid has {size} configurations. Accepted: {MAX_TASKS}")
    return [
        dict(zip(axes, values, strict=True)) | shared
        for values in itertools.product(*axes.values())
    ]


def _pairs(texts: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equal, value = text.partition("=")
        if not (equal and name.strip()):
            raise InvalidArgumentError(f"got {text!r}, expected {form}")
        if _name(name) in pairs:
            raise InvalidArgumentError(f"{_name(name)} is given twice")
        pairs[_name(name)] = value
    return pairs


def _values(text: str) -> tuple[str, ...]:
    separator = ";" if ";" in text else ","
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def _listed(name: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise InvalidArgumentError(f"{name}: got {values!r}, expected a list such as [{values!r}]")
    return values


def _name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_")
    if name in _RESERVED:
        raise InvalidArgumentError(f"{name} is not for a grid: a sweep always records")
    return name
