"""Run a page once in a process of its own, which may crash, hang or be killed."""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ortmeter.child import child_command
from ortmeter.pages.records import FOLDER_VARIABLE
from ortmeter.sweep.machine import LOCK_VARIABLE, pinned
from ortmeter.sweep.process import Tail, how_it_ended, kill_group, page_environment
from ortmeter.sweep.script import Script

__all__ = ["Attempt", "Stop", "run_page"]

#: Bytes of a record that goes back to the client.
_MAX_RECORD = 2**28


@dataclass(frozen=True)
class Attempt:
    """What a process left.

    Parameters
    ----------
    machine : str
        Name of the machine.
    seconds : float
        Time that the process took, imports included.
    record : bytes
        JSON of the record, empty when there is none.
    error : str
        Why there is none, on one line.
    output : str
        End of what it wrote, on both streams.
    """

    machine: str
    seconds: float = 0.0
    record: bytes = b""
    error: str = ""
    output: str = ""


class Stop:
    """Ends the running pages, and those that would start, from another thread.

    Examples
    --------
    >>> stop = Stop()
    >>> stop.ask()
    >>> stop.asked.is_set()
    True
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._groups: set[int] = set()
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Kill what runs."""
        with self._lock:
            self.asked.set()
            for group in self._groups:
                kill_group(group)

    @contextmanager
    def covers(self, group: int) -> Iterator[None]:
        """Include a process group while it runs.

        Parameters
        ----------
        group : int
            Identifier of the group.
        """
        with self._lock:
            self._groups.add(group)
            if self.asked.is_set():
                kill_group(group)
        try:
            yield
        finally:
            with self._lock:
                self._groups.discard(group)


def run_page(
    script: Script,
    arguments: Sequence[str],
    machine: str,
    *,
    timeout: float | None,
    cores: frozenset[int] | None,
    lock: int,
    stop: Stop,
) -> Attempt:
    """Run a page and read the record that it writes.

    Parameters
    ----------
    script : Script
        Script of the page.
    arguments : sequence of str
        Its command line.
    machine : str
        Name of this machine.
    timeout : float, optional
        Seconds after which it is killed.
    cores : frozenset of int, optional
        Cores that it may use.
    lock : int
        File descriptor of the lock of the machine, that the page holds too.
    stop : Stop
        Ends it early.

    Returns
    -------
    Attempt
        The record, or why there is none.
    """
    with tempfile.TemporaryDirectory(prefix="ortmeter-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        results = folder / "results"
        began = time.perf_counter()
        with pinned(cores):
            process = _start(script.write(folder), arguments, results, lock)
        tail = Tail(process)
        with stop.covers(process.pid), _deadline(process.pid, timeout) as late, _guard(process.pid):
            code = process.wait()
        seconds = time.perf_counter() - began
        kill_group(process.pid)  # what the page started goes with it
        output = tail.read()
        record, error = _read_record(results) if code == 0 else (b"", how_it_ended(code, output))
    if late.is_set():
        error = f"it took more than {timeout:g} s"
    elif stop.asked.is_set():
        error = "cancelled while it ran"
    return Attempt(machine, seconds, b"" if error else record, error, output)


def _start(
    script: Path, arguments: Sequence[str], results: Path, lock: int
) -> "subprocess.Popen[bytes]":
    work = script.parent / "work"
    work.mkdir()
    # A page that runs a sweep of its own does it within its turn.
    turn = {LOCK_VARIABLE: str(script.parent / "machine.lock")}
    return subprocess.Popen(  # noqa: S603 - the page that is asked for
        child_command("ortmeter.sweep.page_run", script, *arguments, "--record"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=work,
        env=page_environment({FOLDER_VARIABLE: str(results), **turn}),
        pass_fds=(lock,),
        start_new_session=True,
    )


@contextmanager
def _deadline(group: int, timeout: float | None) -> Iterator[threading.Event]:
    """Kill a process group when its time is over, and tell."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        kill_group(group)

    timer = threading.Timer(timeout, kill) if timeout is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield late
    finally:
        if timer:
            timer.cancel()


@contextmanager
def _guard(group: int) -> Iterator[None]:
    """Kill a process group when this process dies, however it dies.

    A shell waits for the end of a pipe, which the system closes with this process.
    """
    watch = subprocess.Popen(  # noqa: S603 - fixed command
        ["/bin/sh", "-c", 'read -r _; kill -9 "-$1"', "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watch.kill()
        watch.communicate()


def _read_record(results: Path) -> tuple[bytes, str]:
    files = [file for file in results.glob("*/*.json") if file.is_file()]
    if len(files) != 1:
        return b"", f"the page wrote {len(files)} records, expected 1"
    size = files[0].stat().st_size
    if size > _MAX_RECORD:
        return b"", f"the page wrote a record of {size} bytes. Accepted: {_MAX_RECORD}"
    return files[0].read_bytes(), ""
