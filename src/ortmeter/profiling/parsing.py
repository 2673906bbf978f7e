"""Read the events of a profile file, block by block.

ONNX Runtime writes a JSON array of events which all start with ``{"cat"``. A file is parsed in
blocks that end before such a start, so that the memory needed does not grow with the file. A file
that was formatted again by another tool may have no such start: it is then one block.
"""

import contextlib
import itertools
import json
import os
import re
import string
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import orjson

from ortmeter.errors import InvalidArgumentError

__all__ = ["Event", "EventFile"]

Event: TypeAlias = dict[str, Any]

# The objects of a block stay in the cache of the core: blocks of megabytes take twice the time.
_BLOCK = 1 << 17
_START = b'{"cat"'
_SEPARATORS = string.whitespace.encode() + b","
_BETWEEN = re.compile(r"[\s,]*")

#: What every event has: category, name, process, thread, start and duration in µs.
_FIELDS = {"cat": str, "name": str, "pid": int, "tid": int, "ts": int, "dur": int, "args": dict}


class EventFile:
    """A profile file, which may be truncated.

    Parameters
    ----------
    path : path
        File written by ONNX Runtime.
    recover : bool
        Stop at the first incomplete event instead of failing; ``truncated`` is then True.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "profile.json")
    ...     _ = file.write_text('[{"cat": "A", "name": "b", "ts": 1, "dur": 2}, {"cat": "No')
    ...     events = EventFile(file, recover=True)
    ...     blocks = list(events.blocks())
    >>> blocks, events.truncated
    ([[{'cat': 'A', 'name': 'b', 'ts': 1, 'dur': 2}]], True)
    """

    def __init__(self, path: str | os.PathLike[str], *, recover: bool = False) -> None:
        self.path = Path(path)
        self.recover = recover
        self.truncated = False

    def blocks(self) -> Generator[list[Event]]:
        """Iterate over the events, many at a time.

        Yields
        ------
        list of dict
            The next events of the file.

        Raises
        ------
        InvalidArgumentError
            The file cannot be read, is not a JSON array of events, or is truncated: the message
            tells the number of the event and the byte where it breaks.
        """
        try:
            with self.path.open("rb") as stream:
                yield from self._parse(stream)
        except OSError as cause:
            raise InvalidArgumentError(
                f"Profile {str(self.path)!r} cannot be read: {cause.strerror}"
            ) from cause

    def refuse(self, problem: str) -> NoReturn:
        """Raise the error that says what is wrong with the file."""
        raise InvalidArgumentError(
            f"Profile {self.path.name!r} {problem}. Accepted: the JSON file that "
            "InferenceSession.end_profiling returns"
        )

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

    def refuse_content(self, cause: Exception) -> NoReturn:
        """Raise the error that tells which event cannot be read."""
        with contextlib.closing(self.blocks()) as blocks:
            ranked = enumerate(itertools.chain.from_iterable(blocks))
            rank = next((rank for rank, event in ranked if not _is_event(event)), None)
        if rank is not None:
            expected = ", ".join(f"{name} ({kind.__name__})" for name, kind in _FIELDS.items())
            self.refuse(f"was not written by ONNX Runtime: event {rank} lacks one of {expected}")
        self.refuse(f"holds a value that is not understood ({type(cause).__name__}: {cause})")


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
