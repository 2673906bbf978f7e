"""Put what a sweep measured on its grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from ortmeter.dtypes import numpy_dtype
from ortmeter.sweep.outcome import Outcome, Task
from ortmeter.timing import Comparison, Measurement

__all__ = [
    "MACHINE",
    "Cell",
    "is_number",
    "make_cells",
    "make_coordinates",
    "varying_names",
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
        Options that vary, machine, axis of the measurements.
    runs : mapping of int to Comparison
        What each run measured.
    """

    page: str
    group: str
    coordinates: Mapping[str, Any]
    runs: dict[int, Comparison] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates that every run has, in the order of the page."""
        first, *others = self.runs.values()
        return tuple(name for name in first if all(name in other for other in others))

    def samples(self, candidate: str) -> Measurement:
        """All the samples of a candidate, in one row.

        Parameters
        ----------
        candidate : str
            Name of the candidate.
        """
        samples = [measured[candidate].seconds.ravel() for measured in self.runs.values()]
        return Measurement(candidate, np.concatenate(samples)[None])


def make_cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """Gather the runs of each place of the grid.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Those without a record are left out.

    Returns
    -------
    list of Cell
        By page and group, in the order of the outcomes.
    """
    varying = varying_options(outcome.task for outcome in outcomes)
    cells: dict[tuple[Any, ...], Cell] = {}
    groups: dict[tuple[str, str], None] = {}
    for outcome in outcomes:
        if outcome.record is None:
            continue
        for group, where, found in outcome.record.comparisons():
            page, place = outcome.task.page, make_coordinates(outcome, varying, where)
            groups[page, group] = None
            cell = cells.setdefault((page, group, *place.items()), Cell(page, group, place))
            cell.runs[outcome.task.run] = found
    ranks = list(groups)
    return sorted(cells.values(), key=lambda cell: ranks.index((cell.page, cell.group)))


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
    outcome: Outcome,
    varying: Mapping[str, tuple[Any, ...]],
    where: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Place a task, or what it measured or said somewhere, on the grid.

    Parameters
    ----------
    outcome : Outcome
        What became of the task.
    varying : mapping of str to tuple
        What :func:`varying_options` found.
    where : mapping of str to object, optional
        Place inside the page: the axis of a comparison, the place of a claim.

    Returns
    -------
    dict of str to object
        The options that vary, the machine, and *where*. Element types are named; an axis that has
        the name of an option and another value, one of those that the option lists, is "measured".
    """
    options = dict(
        _coordinate(name, outcome.task.options[name], is_numeric=all(map(is_number, values)))
        for name, values in varying.items()
        if name in outcome.task.options
    )
    options[MACHINE] = outcome.machine
    inside = {
        f"{name} measured" if options.get(name, value) != value else name: value
        for name, value in (where or {}).items()
    }
    return {**options, **inside}


def varying_names(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the coordinates that tell places apart.

    Parameters
    ----------
    places : sequence of mappings
        Coordinates.

    Returns
    -------
    list of str
        Names of those that do not have one value everywhere.

    Examples
    --------
    >>> varying_names([{"type": "float", "size": 8}, {"type": "float", "size": 16}])
    ['size']
    """
    names = dict.fromkeys(name for place in places for name in place)
    return [name for name in names if len({place.get(name) for place in places}) > 1]


def is_number(value: Any) -> bool:
    """Whether a coordinate is a number, a size for instance, rather than a name."""
    return isinstance(value, Real) and not isinstance(value, bool)


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
