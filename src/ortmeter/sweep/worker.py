"""A worker: its machine, and the pages that it runs, one process at a time."""

import hashlib
import logging
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ortmeter
from ortmeter.child import child_command, killed_by
from ortmeter.errors import OrtMeterError
from ortmeter.machine.environment import Environment, environment
from ortmeter.study.records import FOLDER_VARIABLE, machine_name

#: File of the lock; by default, the temporary folder of the machine is locked.
LOCK_VARIABLE = "ORTMETER_MACHINE_LOCK"

#: Bytes of output that are kept.
MAX_OUTPUT = 16 * 1024

#: Bytes of a record that goes back to the client.
_MAX_RECORD = 2**28

_logger = logging.getLogger(__name__)
_POLL_S = 0.1
_SILENT_S = 1.0
_FULL = 2**30  # bytes that a page may print


@dataclass(frozen=True)
class Machine:
    """What a worker says of the machine that it runs on; *code* is the version of the package."""

    name: str
    devices: tuple[str, ...]
    cores: int
    code: str
    packages: Mapping[str, str]

    @property
    def resources(self) -> dict[str, float]:
        """What dask shares out: one run at a time on each device, and the cores."""
        return {**dict.fromkeys(self.devices, 1.0), "cores": float(self.cores)}

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.devices)}; {self.cores} cores)"


def describe_machine() -> Machine:
    own = _environment()
    devices = ["cpu"]
    if own.providers.get("cuda", "").startswith("usable"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = len(own.gpus) if visible is None else len(visible.split(","))
        devices += [f"cuda:{i}" for i in range(max(count, 1))]
    return Machine(machine_name(own), tuple(devices), own.cores, code_version(), dict(own.packages))


@cache
def _environment() -> Environment:
    return environment()


def fits(wanted: Mapping[str, float], resources: Mapping[str, float]) -> bool:
    """Return whether a worker has what a task takes."""
    return all(resources.get(name, 0) >= amount for name, amount in wanted.items())


def code_version() -> str:
    """Return the version of the package and a hash of its source files, as they are now."""
    root = Path(ortmeter.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.suffix != ".pyc" and file.is_file():
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
            digest.update(file.read_bytes() + b"\0")
    return f"{ortmeter.__version__}+{digest.hexdigest()[:12]}"


@contextmanager
def machine_lock(stopped: threading.Event) -> Iterator[int]:
    """Wait until no other sweep times anything on this machine, unless *stopped* is set.

    Yields a file descriptor that holds the lock: a process that inherits it keeps the lock for as
    long as it lives, even when this one dies.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OrtMeterError("a sweep needs a system with file locks: Linux or macOS") from error
    # The folder itself: it stands on every machine, and nothing is left in it.
    path = os.environ.get(LOCK_VARIABLE) or os.path.realpath(tempfile.gettempdir())
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:  # it belongs to the first user who needs it
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        begun, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped.wait(_POLL_S):
                    raise OrtMeterError("cancelled before it started") from None
            if not told and time.monotonic() - begun > _SILENT_S:
                told = True
                _logger.warning(
                    "waiting until another process, perhaps of another user, unlocks %s: one sweep "
                    "at a time is timed on a machine",
                    path,
                )
        yield descriptor
        # Even if a stray process that the page left has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Script:
    """The script of a page; it travels as text."""

    file_name: str
    text: str

    def write(self, folder: Path) -> Path:
        path = folder / self.file_name
        path.write_text(self.text, encoding="utf-8")
        return path


@dataclass(frozen=True)
class Job:
    """A page to run once; *code* is the version of the package that the client has."""

    sweep: str
    script: Script
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


#: By sweep, what ends its runs: a worker may serve several clients.
_stopped: dict[str, threading.Event] = {}


def stop_jobs(sweep: str) -> None:
    """Kill what this worker runs for a sweep, and refuse what would start."""
    _stopped.setdefault(sweep, threading.Event()).set()


def run_job(job: Job) -> Attempt:
    """Run a page when nothing else is timed on this machine."""
    machine = describe_machine()
    if job.code != machine.code:
        # A worker that joined after the others were checked, or sources that changed since.
        error = f"the worker has ortmeter {machine.code}, expected {job.code}"
        return Attempt(machine.name, error=error)
    stopped = _stopped.setdefault(job.sweep, threading.Event())
    with machine_lock(stopped) as lock:
        return _run_page(job, machine.name, lock, stopped)


def _run_page(job: Job, machine: str, lock: int, stopped: threading.Event) -> Attempt:
    with tempfile.TemporaryDirectory(prefix="ortmeter-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        work, results = folder / "work", folder / "results"
        work.mkdir()
        # A page that runs a sweep of its own does it within its turn; its files go with the folder.
        own = {LOCK_VARIABLE: str(folder / "machine.lock"), "TMPDIR": str(folder)}
        began = time.perf_counter()
        ended = run_script(
            job.script.write(folder),
            [*job.arguments, "--record"],
            {FOLDER_VARIABLE: str(results), **own},
            folder=work,
            timeout=job.timeout,
            stopped=stopped,
            lock=lock,
        )
        seconds = time.perf_counter() - began
        record, error = b"", str(ended)
        if stopped.is_set():
            error = "cancelled while it ran"
        elif ended.code is None:
            error = f"it exceeded its time limit of {job.timeout:g} s"
        elif ended.code == 0:
            record, error = _read_record(results)
    return Attempt(machine, seconds, record, error, ended.output)


def _read_record(results: Path) -> tuple[bytes, str]:
    files = [file for file in results.glob("*/*.json") if file.is_file()]
    if len(files) != 1:
        return b"", f"the page wrote {len(files)} records, expected 1"
    size = files[0].stat().st_size
    if size > _MAX_RECORD:
        return b"", f"the page wrote a record of {size} bytes. Accepted: {_MAX_RECORD}"
    return files[0].read_bytes(), ""


@dataclass(frozen=True)
class Ended:
    """How the process of a page ended: its code, None when it was stopped, and what it wrote."""

    code: int | None
    output: str

    def __str__(self) -> str:
        if self.code is None:
            return "stopped"
        if self.code < 0:
            is_kill = self.code == -signal.SIGKILL
            memory = " (the system does this when memory runs out)" if is_kill else ""
            return f"{killed_by(self.code)}{memory}"
        written = reversed(self.output.splitlines())
        last = next((line for line in written if line.strip()), "no output")
        return f"exit code {self.code}: {last.strip()[:300]}"


def run_script(
    script: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: Path,
    timeout: float | None = None,
    stopped: threading.Event | None = None,
    lock: int | None = None,
) -> Ended:
    """Run a script until it ends, its time is over or *stopped* is set, with all that it starts.

    It may crash, hang or be killed; *lock* is a file descriptor that it holds as long as it lives.
    """
    # What changes the defaults of a page stays here.
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ORTMETER_")}
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    stopped = stopped or threading.Event()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the page that is asked for
            child_command("ortmeter.study.page_check", script, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**kept, "MPLBACKEND": "agg", **variables},
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,
        )
        try:
            with _guard(process.pid):
                # Ten times a second: Popen.wait with a timeout wakes up more often.
                while (code := process.poll()) is None and time.monotonic() < deadline:
                    if stopped.wait(_POLL_S):
                        break
                    if os.fstat(output.fileno()).st_size > _FULL:  # the disk would be
                        code = -signal.SIGKILL
                        break
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what the page started goes with it
            process.wait()
        output.seek(max(output.seek(0, os.SEEK_END) - MAX_OUTPUT, 0))
        return Ended(code, output.read(MAX_OUTPUT).decode(errors="replace"))


@contextmanager
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
