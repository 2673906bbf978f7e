"""Read a profile file and make arrays of its events, block by block.

ONNX Runtime writes a JSON array of events which all start with ``{"cat"``. A file is parsed in
blocks that end before such a start, so that the memory needed does not grow with the file. A file
that was formatted again by another tool may have no such start: it is then one block.

A file of a thousand runs repeats the same names, types and shapes a thousand times: each distinct
description is kept once, and an event holds the row of its description.
"""

import contextlib
import itertools
import json
import os
import re
import string
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from ortmeter.errors import InvalidArgumentError

Event: TypeAlias = dict[str, Any]
Ints: TypeAlias = npt.NDArray[np.int64]

# The objects of a block stay in the cache of the core: blocks of megabytes take twice the time.
_BLOCK = 1 << 17
_START = b'{"cat"'
_SEPARATORS = string.whitespace.encode() + b","
_BETWEEN = re.compile(r"[\s,]*")

#: What every event has: category, name, process, thread, start and duration in µs.
_FIELDS = {"cat": str, "name": str, "pid": int, "tid": int, "ts": int, "dur": int, "args": dict}

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
#: Columns of ``Profile.events`` and their dtypes.
COLUMNS = {
    "iteration": "int64",
    "name": "category",
    "op": "category",
    "domain": "category",
    "node_index": "Int64",
    "provider": "category",
    "parent": "category",
    "thread": "int64",
    "start": "int64",
    "duration": "int64",
    "self_duration": "int64",
    "input_types": "object",
    "input_shapes": "object",
    "output_types": "object",
    "output_shapes": "object",
    "signature": "category",
    **dict.fromkeys(SIZES, "Int64"),
}
_KERNEL = "_kernel_time"
# Sums over the runs of such times do not overflow.
_LONGEST_US = 1 << 44
_DESCRIBED = ("op_name", "provider", "node_index", "input_type_shape", "output_type_shape")
_identity = itemgetter("cat", "name")
_times = itemgetter("tid", "ts", "dur")
_described = itemgetter(*_DESCRIBED)
_sized = itemgetter(*SIZES.values())


class EventFile:
    """A file written by ONNX Runtime, which may be truncated.

    With *recover*, it stops at the first incomplete event; ``truncated`` is then True.
    """

    def __init__(self, path: str | os.PathLike[str], *, recover: bool = False) -> None:
        self.path = Path(path)
        self.recover = recover
        self.truncated = False

    def blocks(self) -> Generator[list[Event]]:
        """Iterate over the events, many at a time."""
        try:
            with self.path.open("rb") as stream:
                yield from self._parse(stream)
        except OSError as cause:
            raise InvalidArgumentError(
                f"Profile {str(self.path)!r} cannot be read: {cause.strerror}"
            ) from cause

    def refuse(self, problem: str) -> NoReturn:
        raise InvalidArgumentError(
            f"Profile {self.path.name!r} {problem}. Accepted: the JSON file that "
            "InferenceSession.end_profiling returns"
        )

    def refuse_content(self, cause: Exception) -> NoReturn:
        """Raise the error that tells which event cannot be read."""
        with contextlib.closing(self.blocks()) as blocks:
            ranked = enumerate(itertools.chain.from_iterable(blocks))
            rank = next((rank for rank, event in ranked if not _is_event(event)), None)
        if rank is not None:
            expected = ", ".join(f"{name} ({kind.__name__})" for name, kind in _FIELDS.items())
            self.refuse(f"was not written by ONNX Runtime: event {rank} lacks one of {expected}")
        self.refuse(f"holds a value that is not understood ({type(cause).__name__}: {cause})")

    def _parse(self, stream: BinaryIO) -> Iterator[list[Event]]:
        count = 0
        for offset, array in _split(stream):
            try:
                events = orjson.loads(array)
            except orjson.JSONDecodeError:
                events = self._complete_events(array, offset, count)
            if not isinstance(events, list):
                self.refuse(f"holds one JSON value ({type(events).__name__}), not an array")
            if events:
                yield events
            count += len(events)
            if self.truncated:
                return

    def _complete_events(self, array: bytes, offset: int, count: int) -> list[Event]:
        """Return the events before the one that breaks, or say where that one is."""
        if not array.strip():
            self.refuse("is empty: the session that wrote it was not closed by end_profiling")
        if not array.lstrip().startswith(b"["):
            self.refuse("is not JSON")
        events, stop = _decode_one_by_one(array)
        if not self.recover:
            raise InvalidArgumentError(
                f"Profile {self.path.name!r} breaks at byte {offset + stop}, in event "
                f"{count + len(events)}: the {count + len(events)} events before it are complete. "
                "Accepted: a complete file, or recover=True, which keeps the complete events"
            )
        self.truncated = True
        return events


def _is_event(event: Any) -> bool:
    return isinstance(event, dict) and all(
        isinstance(event.get(key), kind) for key, kind in _FIELDS.items()
    )


def _split(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Cut a JSON array into arrays; each comes with its offset in the file."""
    offset, buffer, bracket = 0, b"", b""
    # Twice as much each time that no event starts: a file in one block is not copied at each read.
    while chunk := stream.read(max(_BLOCK, len(buffer))):
        buffer += chunk
        cut = buffer.rfind(_START)
        if cut > 0 and (block := buffer[:cut].rstrip(_SEPARATORS)) not in {b"", b"["}:
            yield offset - len(bracket), bracket + block + b"]"
            offset, buffer, bracket = offset + cut, buffer[cut:], b"["
    yield offset - len(bracket), bracket + buffer


def _decode_one_by_one(array: bytes) -> tuple[list[Event], int]:
    """Decode the items of an array up to the first that is incomplete, whose byte is returned."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    # An incomplete character can only be in the incomplete event.
    text = array.decode(errors="replace")
    events: list[Event] = []
    position = text.index("[") + 1
    while True:
        separators = _BETWEEN.match(text, position)
        position = separators.end() if separators else position
        try:
            event, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return events, len(text[:position].encode())
        events.append(event)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


@dataclass(frozen=True, eq=False)
class Columns:
    """Events of the same sort, in the order of the file.

    A description is ``[category, name]``, followed for a kernel by its operator, provider, index,
    and types and shapes as they are in the file; ``row`` is that of each event, ``position`` its
    rank in the file. Sizes are in the order of :data:`SIZES`, of shape (10, events), or (0, events)
    for what is not a kernel; ``absent`` is where none was recorded.
    """

    descriptions: list[list[Any]]
    row: Ints
    position: Ints
    thread: Ints
    start: Ints
    duration: Ints
    sizes: Ints
    absent: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def names(self) -> list[str]:
        """Name in each description."""
        return [description[1] for description in self.descriptions]

    def is_named(self, name: str) -> npt.NDArray[np.bool_]:
        return np.array([other == name for other in self.names], bool)[self.row]

    def select(self, keep: npt.NDArray[Any]) -> Self:
        """Keep the events of a mask, or those at some positions."""
        arrays = (getattr(self, field.name)[..., keep] for field in fields(self)[1:])
        return type(self)(self.descriptions, *arrays)


def collect(blocks: Iterable[Sequence[Event]]) -> tuple[Columns, Columns]:
    """Gather the executions of kernels, and everything else, fences of old versions included."""
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


class _Accumulator:
    """Arrays of each block, put end to end when all have come."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = defaultdict(itertools.count().__next__)
        self._blocks: list[tuple[npt.NDArray[Any], ...]] = []

    def add(
        self,
        events: Sequence[Event],
        positions: Ints,
        descriptions: Iterable[Sequence[Any]],
        sizes: Ints,
        absent: npt.NDArray[np.bool_],
    ) -> None:
        rows = map(self._rows.__getitem__, map(orjson.dumps, descriptions))
        row = np.fromiter(rows, np.int64, len(events))
        self._blocks.append((row, positions, *_matrix(map(_times, events), 3), sizes, absent))

    def columns(self) -> Columns:
        arrays = [np.concatenate(parts, axis=-1) for parts in zip(*self._blocks, strict=True)]
        found = Columns([orjson.loads(key) for key in self._rows], *arrays)
        if np.any(found.duration < 0) or any(
            np.any(np.abs(times) > _LONGEST_US) for times in (found.start, found.duration)
        ):
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
    """Sizes, which recent versions write as text, and where none is."""
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
