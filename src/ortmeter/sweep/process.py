"""A process that runs a page: its environment, the end of what it writes, and how it ends."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["MAX_OUTPUT", "Tail", "how_it_ended", "kill_group", "page_environment"]

#: Bytes of output that are kept.
MAX_OUTPUT = 16 * 1024

_JOIN_S = 5.0


class Tail(threading.Thread):
    """Reads what a process writes and keeps the end of it.

    Parameters
    ----------
    process : subprocess.Popen
        Process whose standard output is a pipe.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self._process = process
        self._kept = b""
        self.start()

    def run(self) -> None:
        """Read until the end."""
        stream = self._process.stdout
        assert stream is not None
        with stream, suppress(ValueError, OSError):
            while chunk := os.read(stream.fileno(), 2**16):
                self._kept = (self._kept + chunk)[-MAX_OUTPUT:]

    def read(self) -> str:
        """Return the end of the output, once it is there."""
        # A process that left its group may keep the stream open for ever.
        self.join(_JOIN_S)
        return self._kept.decode(errors="replace")


def kill_group(group: int) -> None:
    """Kill the processes of a group that still run.

    Parameters
    ----------
    group : int
        Identifier of the group.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def page_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that runs a page, without what changes its defaults.

    Parameters
    ----------
    variables : mapping of str to str
        Variables to add.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ORTMETER_")}
    return {**kept, "MPLBACKEND": "agg", **variables}


def how_it_ended(code: int, output: str) -> str:
    r"""Say on one line how a process ended.

    Parameters
    ----------
    code : int
        Its exit code, or minus the signal that killed it.
    output : str
        What it wrote.

    Examples
    --------
    >>> how_it_ended(1, "Traceback\nValueError: no\n")
    'exit code 1: ValueError: no'
    """
    if code < 0:
        name = _signal_name(-code)
        memory = " (the system does this when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{memory}"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
    return f"exit code {code}: {last.strip()[:300]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no name
        return f"signal {number}"
