"""Texts for a terminal: names of models and messages of libraries are not trusted."""

import os
import shutil
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

from ortmeter.errors import OrtMeterError, without_password


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""Escape what a terminal would obey instead of showing, and what it cannot; hide passwords."""
    text = without_password(text)
    shown = "".join(char if _is_shown(char) else repr(char)[1:-1] for char in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def open_streams() -> None:
    """Put the null device where a standard stream is closed, else the next file would be there."""
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:  # noqa: PLR2004 - standard streams
        pass
    os.close(free)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stdout is None:
        raise OrtMeterError(
            "the standard output is closed: nobody would read the result. Accepted: >/dev/null"
        )


def show(text: str) -> None:
    """Write the result of a command on the standard output."""
    try:
        print(printable(text, sys.stdout.encoding or "utf-8"), flush=True)  # noqa: T201
    except OSError as cause:
        with suppress(OSError, ValueError):
            # What is left to write would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OrtMeterError(f"the standard output cannot be written: {cause.strerror}") from cause


def terminal_width() -> int:
    """Return the width to write in: that of the terminal, within what can be read."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, 60), 120)


def tell(line: str) -> None:
    """Write a message on one line of the standard error."""
    with suppress(OSError):
        message = printable(" ".join(line.split()), sys.stderr.encoding or "utf-8")
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or unicodedata.category(char) == "Zs"
