"""Put the measurements of a sweep on its grid."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ortmeter.dtypes import numpy_dtype
from ortmeter.sweep._groups import Group, find_groups, name_keys
from ortmeter.sweep.outcome import Outcome, Task
from ortmeter.timing import Measurement

__all__ = [
    "MACHINE",
    "Cell",
    "is_number",
    "make_cells",
    "make_coordinates",
    "pool",
    "varying_options",
]

MACHINE = "machine"
# The option of the pages for the type of elements, by its number in ONNX, and what is shown.
_ITYPE, _TYPE = "itype", "type"


@dataclass(frozen=True)
class Cell:
    """A group of candidates at one place of the grid.

    Parameters
    ----------
    page, group : str
        Page, and where its data hold the measurements.
    coordinates : mapping of str to object
        Options that vary, machine, keys of the group in the data.
    runs : mapping of int to mapping
        Candidates of each run.
    """

    page: str
    group: str
    coordinates: Mapping[str, Any]
    runs: Mapping[int, Mapping[str, Measurement]]

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates that every run has, in the order of the page."""
        first, *others = self.runs.values()
        return tuple(name for name in first if all(name in other for other in others))

    def samples(self, candidate: str) -> Measurement:
        """Samples of a candidate in all the runs together, see :func:`pool`.

        Parameters
        ----------
        candidate : str
            Name of the candidate.
        """
        return pool([measured[candidate] for measured in self.runs.values()])


def make_cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """Gather the runs of each place of the grid.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Those without a record are left out.

    Returns
    -------
    list of Cell
        By page, in the order of the outcomes.
    """
    varying = varying_options([outcome.task for outcome in outcomes])
    by_page = itertools.groupby(
        sorted((o for o in outcomes if o.record), key=lambda o: o.task.page),
        lambda o: o.task.page,
    )
    return [cell for page, own in by_page for cell in _cells_of_page(page, list(own), varying)]


def varying_options(tasks: Iterable[Task]) -> dict[str, tuple[Any, ...]]:
    """Find the options that have several values.

    Parameters
    ----------
    tasks : iterable of Task
        All the tasks.

    Returns
    -------
    dict of str to tuple
        The values of each one, as numbers when all of them are.

    Examples
    --------
    >>> varying_options([Task("plot_x", {"size": n, "threads": "1"}) for n in ("8", "16")])
    {'size': (8, 16)}
    """
    texts: dict[str, dict[str, None]] = {}
    for task in tasks:
        for name, text in task.options.items():
            texts.setdefault(name, {})[text] = None
    return {name: _as_numbers(tuple(found)) for name, found in texts.items() if len(found) > 1}


def make_coordinates(
    task: Task, machine: str, varying: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Place a task on the grid.

    Parameters
    ----------
    task : Task
        The task.
    machine : str
        Name of the machine.
    varying : mapping of str to tuple
        What :func:`varying_options` found.

    Returns
    -------
    dict of str to object
        The options that vary and the machine. Element types are named.
    """
    options = (
        _coordinate(name, task.options[name], is_numeric=all(map(is_number, values)))
        for name, values in varying.items()
        if name in task.options
    )
    return {**dict(options), MACHINE: machine}


def is_number(value: Any) -> bool:
    """Whether a coordinate is a number, a size for instance, rather than a name."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _cells_of_page(
    page: str, outcomes: Sequence[Outcome], varying: Mapping[str, tuple[Any, ...]]
) -> list[Cell]:
    found: dict[str, list[tuple[Outcome, Group]]] = {}
    for outcome in outcomes:
        for group in find_groups(outcome.record.data if outcome.record else {}):
            found.setdefault(group.name, []).append((outcome, group))
    records = [outcome.record for outcome in outcomes if outcome.record]
    cells: list[Cell] = []
    for name, own in found.items():
        places = _places(own, name_keys(records, name), varying)
        runs: dict[tuple[Any, ...], dict[int, Mapping[str, Measurement]]] = {}
        for place, (outcome, group) in zip(places, own, strict=True):
            runs.setdefault(tuple(place.items()), {})[outcome.task.run] = group.measured
        cells += [Cell(page, name, dict(place), by_run) for place, by_run in runs.items()]
    return cells


def _places(
    own: Sequence[tuple[Outcome, Group]],
    names: Sequence[str],
    varying: Mapping[str, tuple[Any, ...]],
) -> list[dict[str, Any]]:
    """Place each group on the grid; a key that repeats an option everywhere is left out."""
    options = [make_coordinates(outcome.task, outcome.machine, varying) for outcome, _ in own]
    keys = [dict(zip(names, group.keys, strict=False)) for _, group in own]
    repeated = {
        name
        for name in names
        for option in options[0]
        if all(name in k and k[name] == o.get(option) for k, o in zip(keys, options, strict=True))
    }
    return [
        o | {_distinct(name, o): value for name, value in k.items() if name not in repeated}
        for k, o in zip(keys, options, strict=True)
    ]


def _distinct(name: str, options: Mapping[str, Any]) -> str:
    """Name a key that has the name of an option, whose value may be a list of such keys."""
    return f"{name} measured" if name in options else name


def _coordinate(name: str, text: str, *, is_numeric: bool) -> tuple[str, Any]:
    if not is_numeric:
        return name, text
    (value,) = _as_numbers((text,))
    return (_TYPE, str(numpy_dtype(value))) if name == _ITYPE else (name, value)


def _as_numbers(texts: tuple[str, ...]) -> tuple[Any, ...]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return texts
    return tuple(int(v) if v.is_integer() else v for v in values)


def pool(runs: Sequence[Measurement]) -> Measurement:
    """Put the samples of several runs together, so that an interval draws runs, then blocks.

    Parameters
    ----------
    runs : sequence of Measurement
        The same candidate, in several runs.

    Returns
    -------
    Measurement
        One row per run, its processes one after the other, cut to the shortest run; a run alone
        is returned as it is.

    Examples
    --------
    >>> runs = [Measurement("a", [[1.0, 2.0], [3.0, 4.0]]), Measurement("a", [[5.0, 6.0, 7.0]])]
    >>> pool(runs).seconds.tolist()
    [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]
    """
    if len(runs) == 1:
        return runs[0]
    length = min(run.seconds.size for run in runs)
    return Measurement(runs[0].name, np.stack([run.seconds.ravel()[:length] for run in runs]))
