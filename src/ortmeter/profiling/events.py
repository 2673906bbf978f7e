"""Read the events of a profile file, block by block.

ONNX Runtime writes a JSON array of events which all start with ``{"cat"``. A file is parsed in
blocks that end before such a start. A file that was formatted again by another tool may have no
such start: it is then one block.
"""

import os
import string
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

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
#: Columns of types and of shapes.
TENSORS = ("input_types", "input_shapes", "output_types", "output_shapes")
KERNEL = "_kernel_time"


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

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel ran, and no fence of old versions."""
        if self.cat != "Node" or not self.name.endswith(KERNEL):
            return False
        if self.args.op_name is None:
            raise KeyError("op_name")
        return True


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)


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

