"""What a machine has for a sweep: its devices, its cores, and a lock: one timed run at a time."""

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ortmeter
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.pages import machine_name
from ortmeter.runtime.environment import Environment, environment

__all__ = [
    "LOCK_VARIABLE",
    "Machine",
    "code_version",
    "describe_machine",
    "machine_lock",
    "pinned",
    "read_cores",
]

#: File of the lock, one for each machine by default.
LOCK_VARIABLE = "ORTMETER_MACHINE_LOCK"

_POLL_S = 0.1


@dataclass(frozen=True)
class Machine:
    """What a worker says of the machine that it runs on.

    Parameters
    ----------
    name : str
        Name of the machine, see :func:`~ortmeter.pages.machine_name`.
    devices : tuple of str
        ``cpu``, and ``cuda:0``, ``cuda:1``... where CUDA works.
    cores : int
        Logical cores that its runs may use.
    code : str
        Version of the package, see :func:`code_version`.
    packages : mapping of str to str
        Version of each package that matters.
    """

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
    """Describe the machine of this process.

    Examples
    --------
    >>> describe_machine().devices[0]
    'cpu'
    """
    found = _environment()
    return Machine(
        name=machine_name(found),
        devices=("cpu", *_cuda_devices(found)),
        cores=found.cores,
        code=code_version(),
        packages=dict(found.packages),
    )


def code_version() -> str:
    """Return the version of the package and a hash of its source files, as they are now.

    Examples
    --------
    >>> code_version().startswith(ortmeter.__version__)
    True
    """
    root = Path(ortmeter.__file__).parent
    digest = hashlib.sha256()
    files = (f for f in root.rglob("*") if f.is_file() and f.suffix != ".pyc")
    for file in sorted(files):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(file.read_bytes() + b"\0")
    return f"{ortmeter.__version__}+{digest.hexdigest()[:12]}"


def read_cores(text: str) -> frozenset[int]:
    """Read a set of cores.

    Parameters
    ----------
    text : str
        Numbers and ranges, such as ``0-3,8``.

    Raises
    ------
    InvalidArgumentError
        It is something else, this process may not use one of them, or the system does not choose.

    Examples
    --------
    >>> core = min(os.sched_getaffinity(0))
    >>> read_cores(f"{core}") == {core}
    True
    """
    if not hasattr(os, "sched_setaffinity"):
        raise InvalidArgumentError(f"cores: got {text!r}, this system lets nobody choose them")
    matches = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip()) for part in text.split(",")]
    ranges = [range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches if m]
    usable = _affinity()
    # A range may have a billion numbers: it is not listed.
    cores = frozenset(core for core in usable if any(core in numbers for numbers in ranges))
    whole = all(0 < len(r) == sum(core in r for core in usable) for r in ranges)
    if not (all(matches) and whole):
        raise InvalidArgumentError(
            f"cores: got {text!r}, expected numbers or ranges such as 0-3,8 among "
            f"{', '.join(map(str, sorted(usable)))}"
        )
    return cores


@contextmanager
def pinned(cores: frozenset[int] | None) -> Iterator[None]:
    """Keep this thread, and the processes that it starts, on some cores.

    Parameters
    ----------
    cores : frozenset of int, optional
        The cores, by default those that the thread has.
    """
    if cores is None:
        yield
        return
    before = _affinity()
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def machine_lock(stopped: threading.Event) -> Iterator[int]:
    """Wait until no other sweep times anything on this machine.

    Parameters
    ----------
    stopped : threading.Event
        Ends the wait.

    Yields
    ------
    int
        File descriptor that holds the lock: a process that inherits it keeps the lock for as long
        as it lives, even when this one dies.

    Raises
    ------
    OrtMeterError
        The wait was ended, or the system has no such lock.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OrtMeterError("a sweep needs a system with file locks: Linux or macOS") from error
    descriptor = _open_lock()
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped.wait(_POLL_S):
                    raise OrtMeterError("cancelled before it started") from None
        yield descriptor
        # Even if a stray process that the page left has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@cache
def _environment() -> Environment:
    return environment()


def _open_lock() -> int:
    """Open the file of the lock, which belongs to the first user who needed it."""
    default = Path(tempfile.gettempdir(), "ortmeter-machine.lock")
    path = os.environ.get(LOCK_VARIABLE) or default
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _cuda_devices(found: Environment) -> tuple[str, ...]:
    if found.providers.get("cuda") != "usable":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found.gpus) if visible is None else len(visible.split(","))
    return tuple(f"cuda:{i}" for i in range(max(count, 1)))
