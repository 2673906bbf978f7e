"""What runs a page once, in its own process: on this machine, or on a worker of dask."""

import contextlib
import functools
import itertools
import logging
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ortmeter
from ortmeter import child_main
from ortmeter.child import child_command, killed_by, process_group
from ortmeter.errors import OrtMeterError
from ortmeter.machine.environment import environment
from ortmeter.runtime.digests import digest
from ortmeter.study.records import FOLDER_VARIABLE, machine_name

#: File of the lock; by default, the temporary folder of the machine is locked.
LOCK_VARIABLE = "ORTMETER_MACHINE_LOCK"

#: Bytes of output that are kept.
MAX_OUTPUT = 16 * 1024

_POLL_S = 0.1

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A page to run once: its script travels as text, and *code* is that of the client."""

    file_name: str
    script: str
    arguments: tuple[str, ...]
    code: str
    timeout: float | None


@dataclass(frozen=True)
class Attempt:
    """What a process left: the JSON of a record or, on one line, why there is none."""

    machine: str
    seconds: float = 0.0
    record: bytes = b""
    error: str = ""
    output: str = ""


def code_version() -> str:
    """Return the version of the package and a hash of its source files, as they are now."""
    root = Path(ortmeter.__file__).parent
    files = [file for file in sorted(root.rglob("*")) if file.suffix != ".pyc" and file.is_file()]
    pairs = ((file.relative_to(root).as_posix().encode(), file.read_bytes()) for file in files)
    return f"{ortmeter.__version__}+{digest(itertools.chain.from_iterable(pairs))}"


def run_job(job: Job) -> Attempt:
    """Run a page when nothing else is timed on this machine; the wait counts in its time limit."""
    machine, code = _machine(), code_version()
    if job.code != code:
        return Attempt(machine, error=f"the worker has ortmeter {code}, expected {job.code}")
    deadline = math.inf if job.timeout is None else time.monotonic() + job.timeout
    try:
        with machine_lock(deadline) as lock:
            return _run_page(job, machine, lock, deadline)
    except TimeoutError:
        why = f"another sweep kept this machine for its time limit of {job.timeout:g} s"
        return Attempt(machine, job.timeout or 0.0, error=why)


@functools.cache
def _machine() -> str:
    return machine_name(environment())


@contextlib.contextmanager
def machine_lock(deadline: float = math.inf) -> Iterator[int]:
    """Wait until no other sweep times anything on this machine, or raise ``TimeoutError``.

    Yields a file descriptor that holds the lock: a process that inherits it keeps the lock for as
    long as it lives, even when this one dies.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OrtMeterError("a sweep needs a system with file locks: Linux or macOS") from error
    # The folder itself: it stands on every machine, and nothing is left in it.
    path = os.environ.get(LOCK_VARIABLE) or os.path.realpath(tempfile.gettempdir())
    made = 0 if Path(path).exists() else os.O_CREAT  # it belongs to the first user who needs it
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | made, 0o644)
    try:
        told = (
            f"waiting until another process, perhaps of another user, unlocks {path}: one sweep at "
            "a time is timed on a machine"
        )
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                if told:
                    _logger.warning(told)
                told = ""
                time.sleep(_POLL_S)
        yield descriptor
        # Even if a stray process that the page left has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _run_page(job: Job, machine: str, lock: int, deadline: float) -> Attempt:
    """Run a page with all that it starts; it may crash, hang or be killed, and holds the lock."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-", ignore_cleanup_errors=True) as temporary,
        tempfile.TemporaryFile() as output,
    ):
        folder = Path(temporary)
        script, work, results = folder / job.file_name, folder / "work", folder / "results"
        script.write_text(job.script, encoding="utf-8")
        work.mkdir()
        # What changes the defaults of a page stays here; one that runs a sweep of its own does it
        # within its turn.
        kept = {n: text for n, text in os.environ.items() if not n.startswith("ORTMETER_")}
        variables = {**kept, "MPLBACKEND": "agg", FOLDER_VARIABLE: str(results)}
        variables |= {LOCK_VARIABLE: str(folder / "machine.lock"), "TMPDIR": str(folder)}
        python, *rest = child_command(child_main.__name__, script, *job.arguments, "--record")
        # What was written before a crash is kept, and a crash says where.
        command = [python, "-u", "-X", "faulthandler", *rest]
        options = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": work, "env": variables}
        with process_group(command, pass_fds=(lock,), **options) as process:
            with _guard(process.pid):
                # Ten times a second: Popen.wait with a timeout wakes up more often.
                while process.poll() is None and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
            is_late = process.poll() is None
        code = process.wait()
        output.seek(max(output.seek(0, os.SEEK_END) - MAX_OUTPUT, 0))
        text = output.read(MAX_OUTPUT).decode(errors="replace")
        if is_late:
            record, error = b"", f"it exceeded its time limit of {job.timeout:g} s"
        elif code:
            record, error = b"", describe_end(code, text)
        elif len(files := [file for file in results.glob("*/*.json") if file.is_file()]) == 1:
            record, error = files[0].read_bytes(), ""
        else:
            record, error = b"", f"the page wrote {len(files)} records, expected 1"
    return Attempt(machine, time.perf_counter() - began, record, error, text)


def describe_end(code: int, output: str) -> str:
    """Say on one line how a process ended, with the last line of its output."""
    if code < 0:
        memory = " (the system does this when memory runs out)" * (code == -signal.SIGKILL)
        return f"{killed_by(code)}{memory}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1][:300] if lines else 'no output'}"


@contextlib.contextmanager
def _guard(group: int) -> Iterator[None]:
    """Kill a process group when this process dies: the system closes a pipe that a shell reads."""
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
