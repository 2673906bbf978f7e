"""Turn the events of a file into arrays, one block after the other.

A file of a thousand runs repeats the same names, types and shapes a thousand times: each distinct
description is kept once, and an event holds the row of its description.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from ortmeter.profiling.parsing import Event

__all__ = ["SIZES", "Columns", "Ints", "collect"]

Ints: TypeAlias = npt.NDArray[np.int64]

#: Column of bytes -> its name in the file.
SIZES = {
    "parameter_size": "parameter_size",
    "activation_size": "activation_size",
    "output_size": "output_size",
    "in_use": "mem_bytes_in_use",
    "in_use_delta": "mem_in_use_delta",
    "in_use_peak": "mem_in_use_peak",
    "requested": "mem_bytes_requested_in_use",
    "requested_delta": "mem_requested_in_use_delta",
    "arena_held": "mem_arena_held",
    "arena_held_delta": "mem_arena_held_delta",
}
_KERNEL = "_kernel_time"
# Sums over the runs of such times do not overflow.
_LONGEST_US = 1 << 44
_DESCRIBED = ("op_name", "provider", "node_index", "input_type_shape", "output_type_shape")
_identity = itemgetter("cat", "name")
_times = itemgetter("tid", "ts", "dur")
_described = itemgetter(*_DESCRIBED)
_sized = itemgetter(*SIZES.values())


@dataclass(frozen=True, eq=False)
class Columns:
    """Events of the same sort, in the order of the file.

    Parameters
    ----------
    descriptions : list of list
        ``[category, name]``, followed for a kernel by its operator, provider, index, and types and
        shapes of the inputs and of the outputs as they are in the file.
    row : array of int64, shape (events,)
        Position of the description of each event.
    position : array of int64, shape (events,)
        Rank in the file.
    times : array of int64, shape (3, events)
        Thread, start and duration (µs).
    sizes : array of int64, shape (10, events) or (0, events)
        Bytes, in the order of :data:`SIZES`; none for what is not a kernel.
    absent : array of bool, same shape
        Where a size was not recorded.
    """

    descriptions: list[list[Any]]
    row: Ints
    position: Ints
    times: Ints
    sizes: Ints
    absent: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def thread(self) -> Ints:
        """Thread of each event."""
        return self._time(0)

    @property
    def start(self) -> Ints:
        """Start of each event, in µs."""
        return self._time(1)

    @property
    def duration(self) -> Ints:
        """Duration of each event, in µs."""
        return self._time(2)

    def is_named(self, *names: str) -> npt.NDArray[np.bool_]:
        """Tell which events have one of these names, an array of bool of shape (events,)."""
        found = [name in names for name in self.names]
        return np.array(found, bool)[self.row]

    @property
    def names(self) -> list[str]:
        """Name in each description."""
        return [description[1] for description in self.descriptions]

    def select(self, keep: npt.NDArray[Any]) -> Self:
        """Keep the events of a mask, or those at some positions."""
        return type(self)(
            self.descriptions,
            self.row[keep],
            self.position[keep],
            self.times[:, keep],
            self.sizes[:, keep],
            self.absent[:, keep],
        )

    def _time(self, row: int) -> Ints:
        found: Ints = self.times[row]
        return found


def collect(blocks: Iterable[Sequence[Event]]) -> tuple[Columns, Columns]:
    """Gather the events of a file.

    Parameters
    ----------
    blocks : iterable of sequences of dict
        Events in the order of the file.

    Returns
    -------
    kernels, others : Columns
        Executions of kernels, and everything else, with what old versions of ONNX Runtime recorded
        around a kernel (``fence_before``, ``fence_after``).

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError
        An event lacks a field, or a number is not one or is out of range.
    """
    kernels, others = _Accumulator(), _Accumulator()
    count = 0
    # Without any event, an empty block still tells the types and the shapes of the arrays.
    for events in itertools.chain([[]], blocks):
        is_kernel = np.array(
            [cat == "Node" and name.endswith(_KERNEL) for cat, name in map(_identity, events)],
            bool,
        )
        positions = np.arange(count, count + len(events))
        found = list(itertools.compress(events, is_kernel))
        kernels.add(found, positions[is_kernel], _kernel_descriptions(found), *_kernel_sizes(found))
        rest = list(itertools.compress(events, ~is_kernel))
        none = np.empty((0, len(rest)), np.int64)
        others.add(rest, positions[~is_kernel], map(_identity, rest), none, none.astype(bool))
        count += len(events)
    return kernels.columns(), others.columns()


class _Table(dict[bytes, int]):
    """Number the keys in the order in which they come."""

    def __missing__(self, key: bytes) -> int:
        self[key] = number = len(self)
        return number


class _Accumulator:
    """Arrays of each block, put end to end when all have come."""

    def __init__(self) -> None:
        self._table = _Table()
        self._blocks: list[tuple[npt.NDArray[Any], ...]] = []

    def add(
        self,
        events: Sequence[Event],
        positions: Ints,
        descriptions: Iterable[Sequence[Any]],
        sizes: Ints,
        absent: npt.NDArray[np.bool_],
    ) -> None:
        """Add the events of a block."""
        rows = map(self._table.__getitem__, map(orjson.dumps, descriptions))
        row = np.fromiter(rows, np.int64, len(events))
        self._blocks.append((row, positions, _matrix(map(_times, events), 3), sizes, absent))

    def columns(self) -> Columns:
        """Put the blocks end to end."""
        arrays = [np.concatenate(parts, axis=-1) for parts in zip(*self._blocks, strict=True)]
        found = Columns([orjson.loads(key) for key in self._table], *arrays)
        if np.any(found.duration < 0) or np.any(np.abs(found.times[1:]) > _LONGEST_US):
            raise ValueError("a duration below zero, or a time above half a year")
        return found


def _kernel_descriptions(events: Sequence[Event]) -> Iterable[Sequence[Any]]:
    """Category, name of the node, and what its arguments say that a run does not change."""
    names = ((cat, name.removesuffix(_KERNEL)) for cat, name in map(_identity, events))
    try:
        described = list(map(_described, map(itemgetter("args"), events)))
    except KeyError:
        described = [_described_before(event["args"]) for event in events]
    return map(tuple.__add__, names, described)


def _described_before(args: dict[str, Any]) -> tuple[Any, ...]:
    """Description in a format where the index has another name, or where fields are missing."""
    found = {"node_index": args.get("graph_index"), **args}
    return args["op_name"], *(found.get(key) for key in _DESCRIBED[1:])


def _kernel_sizes(events: Sequence[Event]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Sizes of shape (10, events), which recent versions write as text, and where none is."""
    try:
        rows = map(_sized, map(itemgetter("args"), events))
        sizes = _matrix((map(int, row) for row in rows), len(SIZES))
    except KeyError:
        found = [[event["args"].get(key) for key in SIZES.values()] for event in events]
        absent = np.array([[value is None for value in row] for row in found], bool)
        sizes = _matrix((map(int, (value or 0 for value in row)) for row in found), len(SIZES))
        return sizes, absent.reshape(-1, len(SIZES)).T
    return sizes, np.zeros(sizes.shape, bool)


def _matrix(rows: Iterable[Iterable[int]], width: int) -> Ints:
    """Make an array of shape (width, rows)."""
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return np.ascontiguousarray(flat.reshape(-1, width).T)
