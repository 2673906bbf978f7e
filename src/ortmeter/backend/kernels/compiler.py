"""Compile sources into libraries, once: what is compiled stays in the user's cache folder."""

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ortmeter.backend.errors import KernelError
from ortmeter.runtime.environment import cpu_flags
from ortmeter.runtime.sessions import cache_folder

__all__ = ["Compiler", "compile_library", "find_compiler", "keep", "kernel_folder", "run_compiler"]

_NAMES = ("g++", "c++", "clang++")
_TIMEOUT_S = 300
_LAST_LINES = 8
# Real numbers follow IEEE 754: NaN, infinities and the order of operations are kept. Only what
# nobody reads is given up, the error codes of functions and the exception flags, for both would
# forbid vector instructions.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fPIC",
    "-fvisibility=hidden",
    "-shared",
)


@dataclass(frozen=True)
class Compiler:
    """A compiler of C++.

    Parameters
    ----------
    command : tuple of str
        How it is started.
    version : str
        What it says that it is.
    """

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """Find a compiler of C++: that of the environment variable ``CXX``, else one of the path.

    Returns
    -------
    Compiler
        The first one that works.

    Raises
    ------
    KernelError
        There is none.
    """
    asked = os.environ.get("CXX")
    commands = [shlex.split(asked)] if asked else [[name] for name in _NAMES]
    for name, *options in commands:
        path = shutil.which(name)
        with suppress(KernelError):
            if path is not None:
                return Compiler((path, *options), _version((path, *options)))
    raise KernelError(
        f"no compiler of C++ works here (tried {', '.join(map(shlex.join, commands))}). Install "
        "one (apt install g++, dnf install gcc-c++, xcode-select --install) or name it in the "
        "environment variable CXX"
    )


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    return run_compiler([*command, "--version"]).partition("\n")[0]


def compile_library(source: str, *, libraries: Sequence[str] = ()) -> Path:
    """Compile a source into a library, unless that was done before.

    Parameters
    ----------
    source : str
        Source in C++.
    libraries : sequence of str
        Libraries of the system to link.

    Returns
    -------
    Path
        The library, see :func:`keep`.

    Raises
    ------
    KernelError
        There is no compiler, or it refuses the source.
    """
    compiler = find_compiler()
    options = [*_FLAGS, *(f"-l{name}" for name in libraries)]

    def build(target: Path) -> None:
        code = target.with_suffix(".cpp")
        code.write_text(source, encoding="utf-8")
        run_compiler([*compiler.command, os.fspath(code), "-o", os.fspath(target), *options])

    machine = (platform.machine(), *cpu_flags())  # -march=native
    return keep((*compiler.command, compiler.version, *options, *machine, source), ".so", build)


def keep(what: Sequence[str], suffix: str, build: Callable[[Path], None]) -> Path:
    """Build a file unless it is there already.

    Parameters
    ----------
    what : sequence of str
        All that its content depends on.
    suffix : str
        End of its name.
    build : callable
        ``build(path)`` writes it into an empty folder.

    Returns
    -------
    Path
        The file, in :func:`kernel_folder`, under a name made of *what*. Several processes may
        build it at the same time.

    Raises
    ------
    KernelError
        It cannot be built.
    """
    folder = kernel_folder()
    target = folder / f"{hashlib.sha256(repr(tuple(what)).encode()).hexdigest()[:24]}{suffix}"
    if not target.exists():
        try:
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                fresh = Path(temporary) / f"kernels{suffix}"
                build(fresh)
                # Renamed once complete: another process sees the whole file or none.
                fresh.replace(target)
        except OSError as cause:
            raise KernelError(f"{os.fspath(target)!r} cannot be written: {cause}") from cause
    return target


def kernel_folder() -> Path:
    """Give the folder of the compiled kernels, which nobody else may write into.

    Returns
    -------
    Path
        ``kernels`` in :func:`~ortmeter.runtime.sessions.cache_folder`, created when missing.

    Raises
    ------
    KernelError
        It cannot be created, or others could put libraries there, which this process would run.
    """
    folder = cache_folder() / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as cause:
        raise KernelError(f"the folder of the compiled kernels cannot be used: {cause}") from cause
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise KernelError(
            f"{os.fspath(folder)!r} belongs to, or may be written by, somebody else: what is "
            "compiled there would not be safe. Set ORTMETER_CACHE to a folder of your own"
        )
    return folder


def run_compiler(command: Sequence[str]) -> str:
    """Run a compiler and return what it prints.

    Parameters
    ----------
    command : sequence of str
        Program and arguments; no shell reads them.

    Raises
    ------
    KernelError
        It cannot be started, takes too long, or refuses what it is given.
    """
    try:
        told = subprocess.run(  # noqa: S603 - a compiler that the user installed
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as cause:
        raise KernelError(f"{command[0]} failed: {cause}") from cause
    if told.returncode:
        last = "\n".join(told.stderr.strip().splitlines()[-_LAST_LINES:])
        raise KernelError(f"{command[0]} ended with code {told.returncode}: {last}")
    return told.stdout
