"""Compile sources once: what is compiled stays in the user's cache folder.

C++ is compiled by the compiler of the machine, device code by NVRTC, which needs no GPU.
"""

import ctypes
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
from pathlib import Path
from typing import Any

from ortmeter.backend.errors import KernelError
from ortmeter.errors import OrtMeterError
from ortmeter.files import cache_folder
from ortmeter.runtime.cpu import cpu_flags
from ortmeter.runtime.providers import nvidia_folders

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
# GCC leaves half of the widest vectors unused on many processors; others have no such option.
_WIDE = ("-mprefer-vector-width=512",) if platform.machine() in {"x86_64", "AMD64"} else ()
# Products and sums are rounded one after the other, as on CPU.
_DEVICE_FLAGS = ("--std=c++17", "--fmad=false")
_PADDING = "\0\n "
_TOLD = 2000  # characters of the messages of a compiler of device code


def find_compiler() -> tuple[str, ...]:
    """Find a compiler of C++ that works: the environment variable ``CXX``, else one of the path."""
    asked = os.environ.get("CXX")
    commands = [shlex.split(asked)] if asked else [[name] for name in _NAMES]
    for name, *options in commands:
        path = shutil.which(name)
        with suppress(KernelError):
            if path is not None:
                _version((path, *options))  # it runs
                return path, *options
    raise KernelError(
        f"no compiler of C++ works here (tried {', '.join(map(shlex.join, commands))}). Install "
        "one (apt install g++, dnf install gcc-c++, xcode-select --install) or name it in the "
        "environment variable CXX"
    )


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    return run_compiler([*command, "--version"]).partition("\n")[0]


def compile_library(source: str, *, libraries: Sequence[str] = ()) -> Path:
    """Compile a source in C++ into a library, unless that was done before."""
    command = find_compiler()
    options = [*_FLAGS, *_WIDE, *(f"-l{name}" for name in libraries)]
    build = functools.partial(_compile_file, command, options, source)
    machine = (platform.machine(), *cpu_flags())  # -march=native
    return keep((*command, _version(command), *options, *machine, source), ".so", build)


def _compile_file(
    command: Sequence[str], options: Sequence[str], source: str, target: Path
) -> None:
    code = target.with_suffix(".cpp")
    code.write_text(source, encoding="utf-8")
    run_compiler([*command, os.fspath(code), "-o", os.fspath(target), *options])


def keep(what: Sequence[str], suffix: str, build: Callable[[Path], object]) -> Path:
    """Build a file unless it is there already; its name is made of *what* it depends on.

    ``build(path)`` writes it into an empty folder. Several processes may do so at the same time.
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
    """Return the folder of the compiled kernels, which nobody else may write into."""
    try:
        return cache_folder("kernels")
    except OrtMeterError as cause:
        raise KernelError(str(cause)) from cause


def run_compiler(command: Sequence[str]) -> str:
    """Run a compiler, without a shell, and return what it prints."""
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


def find_nvrtc() -> ctypes.CDLL | None:
    """Open the latest library of NVRTC that came with torch or from a package of NVIDIA."""
    found = [path for folder in nvidia_folders() for path in folder.glob("libnvrtc.so.*")]
    found.sort(key=lambda path: path.suffix, reverse=True)
    for path in [*found, Path("libnvrtc.so.13"), Path("libnvrtc.so.12")]:
        try:
            # Version 13.0 does not look beside itself for what it opens when it compiles.
            for beside in path.parent.glob("libnvrtc-builtins.so.*") if path in found else ():
                ctypes.CDLL(os.fspath(beside))
            return ctypes.CDLL(os.fspath(path))
        except OSError:
            continue
    return None


def compile_device(source: str, architecture: str) -> bytes:
    """Compile CUDA C++ that includes nothing into a cubin for an architecture such as ``sm_90``."""
    library = find_nvrtc()
    if library is None:
        raise KernelError(
            "NVRTC, which compiles device code, is not found. Install it: "
            "pip install nvidia-cuda-nvrtc"
        )
    options = [f"--gpu-architecture={architecture}", *_DEVICE_FLAGS]
    build = functools.partial(_compile_with_nvrtc, library, options, source)
    return keep((_nvrtc_version(library), *options, source), ".cubin", build).read_bytes()


def _nvrtc_version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def _compile_with_nvrtc(
    library: ctypes.CDLL, options: Sequence[str], source: str, target: Path
) -> None:
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            told = _get(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise KernelError(
                f"{_nvrtc_version(library)} refuses the device code for {' '.join(options)}: "
                f"{told.decode(errors='replace').strip(_PADDING)[-_TOLD:]}"
            )
        target.write_bytes(_get(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _get(measure: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    measure(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    read(program, content)
    return content.raw
