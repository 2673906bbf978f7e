"""Read the events of a profile file, and refuse what is none."""

import os
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError

Ints: TypeAlias = npt.NDArray[np.int64]

_START = b'{"cat"'

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


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read the events in the order in which they were recorded: each one when it ended."""
    content = Path(path).read_bytes()
    try:
        return _EVENTS.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as cause:
        told = f"breaks: {cause}"  # which has the place of an event that is malformed
        if not content.strip():
            told = "is empty: the session that wrote it was not closed by end_profiling"
        elif "truncated" in told:
            last = max(content.rfind(_START), 0)
            told += f" after byte {last} and {content.count(_START, 0, last)} complete events"
        refuse(path, told)


def refuse(path: str | os.PathLike[str], problem: str) -> NoReturn:
    raise InvalidArgumentError(
        f"Profile {Path(path).name!r} {problem}. Accepted: the JSON file that "
        "InferenceSession.end_profiling returns"
    )

