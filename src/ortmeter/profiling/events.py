"""Read a profile file and make arrays of its events, block by block.

ONNX Runtime writes a JSON array of events which all start with ``{"cat"``. A file is parsed in
blocks that end before such a start, so that the memory needed does not grow with the file. A file
that was formatted again by another tool may have no such start: it is then one block.

A file of a thousand runs repeats the same names, types and shapes a thousand times: each distinct
description is kept once, and an event holds the row of its description.
"""

import itertools
import os
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError

Ints: TypeAlias = npt.NDArray[np.int64]

# The objects of a block stay in the cache of the core: blocks of megabytes take twice the time.
_BLOCK = 1 << 17
_START = b'{"cat"'
_SEPARATORS = string.whitespace.encode() + b","

#: A size that was not recorded.
ABSENT = -1 << 63


class _Sizes(msgspec.Struct, gc=False):
    """Bytes, which recent versions write as texts."""

    parameter_size: int = ABSENT
    activation_size: int = ABSENT
    output_size: int = ABSENT
    in_use: int = msgspec.field(default=ABSENT, name="mem_bytes_in_use")
    in_use_peak: int = msgspec.field(default=ABSENT, name="mem_in_use_peak")
    arena_held: int = msgspec.field(default=ABSENT, name="mem_arena_held")


#: Columns of bytes.
SIZES = _Sizes.__struct_fields__
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
KERNEL = "_kernel_time"
# Sums over the runs of such times do not overflow.
_LONGEST_US = 1 << 44


class _Arguments(_Sizes, gc=False):
    """What a kernel tells of its node."""

    op_name: str | None = None
    provider: str | None = None
    node_index: int | None = None
    graph_index: int | None = None  # its name in old versions
    input_type_shape: msgspec.Raw = msgspec.Raw(b"null")
    output_type_shape: msgspec.Raw = msgspec.Raw(b"null")


class Event(msgspec.Struct, gc=False):
    """Category, name, process, thread, start and duration in µs."""

    cat: str
    name: str
    pid: int
    tid: int
    ts: int
    dur: int
    # Some execution providers write none.
    args: _Arguments = msgspec.field(default_factory=lambda: _Arguments(op_name="unknown"))


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_integers = attrgetter("tid", "ts", "dur", *(f"args.{name}" for name in SIZES))


def read_blocks(stream: BinaryIO) -> Iterator[list[Event]]:
    """Iterate over the events of a file, many at a time."""
    count = 0
    for offset, array in _split(stream):
        try:
            events = _EVENTS.decode(array)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as cause:
            if not array.strip():
                told = "is empty: the session that wrote it was not closed by end_profiling"
            else:  # the message has a place in the array
                told = f"breaks after byte {offset} and {count} complete events: {cause}"
            refuse(stream.name, told)
        yield events
        count += len(events)


def refuse(path: str | os.PathLike[str], problem: str) -> NoReturn:
    raise InvalidArgumentError(
        f"Profile {Path(path).name!r} {problem}. Accepted: the JSON file that "
        "InferenceSession.end_profiling returns"
    )


def _split(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Cut a JSON array into arrays; each comes with its offset in the file."""
    offset, buffer, bracket = 0, b"", b""
    # Read twice as much when no event starts: a file of one block is not copied each time.
    while chunk := stream.read(max(_BLOCK, len(buffer))):
        buffer += chunk
        cut = buffer.rfind(_START)
        if cut > 0 and (block := buffer[:cut].rstrip(_SEPARATORS)) not in {b"", b"["}:
            yield offset - len(bracket), bracket + block + b"]"
            offset, buffer, bracket = offset + cut, buffer[cut:], b"["
    yield offset - len(bracket), bracket + buffer


class Description(NamedTuple):
    """What the runs do not change; types and shapes are as they are in the file."""

    category: str
    name: str
    op: str | None
    provider: str | None
    node_index: int | None
    inputs: bytes
    outputs: bytes

    @property
    def is_kernel(self) -> bool:
        if self.category != "Node" or not self.name.endswith(KERNEL):
            return False
        if self.op is None:
            raise KeyError("op_name")
        return True


@dataclass(frozen=True, eq=False)
class Columns:
    """Events by the row of their description and their position in the file; sizes are (6, n)."""

    descriptions: list[Description]
    row: Ints
    position: Ints
    thread: Ints
    start: Ints
    duration: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.row)

    @property
    def names(self) -> list[str]:
        """Name in each description."""
        return [description.name for description in self.descriptions]

    def is_named(self, name: str) -> npt.NDArray[np.bool_]:
        return np.array([other == name for other in self.names], bool)[self.row]

    def select(self, keep: npt.NDArray[Any]) -> Self:
        """Keep the events of a mask, or those at some positions."""
        arrays = (getattr(self, field.name)[..., keep] for field in fields(self)[1:])
        return type(self)(self.descriptions, *arrays)


def collect(blocks: Iterable[Sequence[Event]]) -> tuple[Columns, Columns]:
    """Gather the executions of kernels, and everything else, fences of old versions included."""
    rows: dict[Description, int] = defaultdict(itertools.count().__next__)
    arrays = []
    # Without any event, an empty block still tells the types and the shapes of the arrays.
    for events in itertools.chain([[]], blocks):
        row = np.fromiter((rows[_description_of(event)] for event in events), np.int64)
        values = itertools.chain.from_iterable(map(_integers, events))
        arrays.append((row, np.fromiter(values, np.int64).reshape(-1, 3 + len(SIZES))))
    row, integers = map(np.concatenate, zip(*arrays, strict=True))
    (thread, start, duration), sizes = np.split(np.ascontiguousarray(integers.T), [3])
    if np.any(duration < 0) or any(np.any(np.abs(t) > _LONGEST_US) for t in (start, duration)):
        raise ValueError("a duration below zero, or a time above half a year")
    every = Columns(list(rows), row, np.arange(len(row)), thread, start, duration, sizes)
    is_kernel = np.array([description.is_kernel for description in rows], bool)[row]
    return every.select(is_kernel), every.select(~is_kernel)


def _description_of(event: Event) -> Description:
    args = event.args
    return Description(
        event.cat,
        event.name,
        args.op_name,
        args.provider,
        args.graph_index if args.node_index is None else args.node_index,
        bytes(args.input_type_shape),
        bytes(args.output_type_shape),
    )
