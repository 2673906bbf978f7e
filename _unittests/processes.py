"""Processes that tests start, none of which outlives its test; threads of this one."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

#: Seconds that a test waits for an end.
PATIENCE_S = 10


def wait_until(condition):
    """Wait for what is about to be true; the test fails when it is not."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not true after {PATIENCE_S} s"
        time.sleep(0.01)


def wait_for_start(process, condition):
    """Wait for what a process is about to do, however busy the machine is, as long as it lives."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def is_alive(pid):
    """Tell whether a process runs; a zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_end(pid):
    """Wait for the end of a process that somebody else stops; it is killed when it does not end."""
    try:
        wait_until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def launched(*arguments, **options):
    """Start Python; kill it in the end, with all that it started."""
    with subprocess.Popen([sys.executable, *map(str, arguments)], **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()


def run_python(*arguments, variables=None, check=False, **options):
    """Run Python to its end, with more variables if asked; return what it wrote, and its code."""
    usual = {"capture_output": True, "text": True, "env": {**os.environ, **(variables or {})}}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=check, **usual | options)


def _other_threads():
    return [task for task in Path("/proc/self/task").iterdir() if int(task.name) != os.getpid()]


def _sleep(tasks):
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)


def work_of_other_threads():
    """Wait until all threads but the first one sleep; return how long each has run so far, in ns.

    Linux counts it exactly, whatever else the cores do: a thread that is not woken stays the same.
    """
    wait_until(lambda: _sleep(_other_threads()))
    return [int((task / "schedstat").read_text().split()[0]) for task in _other_threads()]
