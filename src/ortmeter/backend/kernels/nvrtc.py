"""Compile device code: with NVRTC, which needs no GPU, else with nvcc."""

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels.compiler import keep, run_compiler

__all__ = ["compile_device", "find_nvrtc"]

# Products and sums are rounded one after the other, as on CPU.
_OPTIONS = ("--std=c++17", "--fmad=false")
_PADDING = "\0\n "
_TOLD = 2000  # characters of the messages of a compiler


def find_nvrtc() -> ctypes.CDLL | None:
    """Open the library of NVRTC that comes with torch or from a package of NVIDIA.

    Returns
    -------
    ctypes.CDLL or None
        The most recent one; None when there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or [])
    found = sorted(
        (path for root in roots for path in Path(root).glob("*/lib/libnvrtc.so.*")),
        key=lambda path: path.suffix,
        reverse=True,
    )
    for name in [*map(os.fspath, found), "libnvrtc.so.13", "libnvrtc.so.12"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compile_device(source: str, architecture: str) -> bytes:
    """Compile device code into what the driver loads.

    Parameters
    ----------
    source : str
        CUDA C++ that includes nothing.
    architecture : str
        ``sm_90`` and the like.

    Returns
    -------
    bytes
        A cubin, for this architecture.

    Raises
    ------
    KernelError
        There is no compiler of device code, or it refuses the source.
    """
    library, nvcc = find_nvrtc(), shutil.which("nvcc")
    options = [f"--gpu-architecture={architecture}", *_OPTIONS]

    def with_nvrtc(target: Path) -> None:
        assert library is not None
        target.write_bytes(_compile(library, source, options))

    def with_nvcc(target: Path) -> None:
        assert nvcc is not None
        code = target.with_suffix(".cu")
        code.write_text(source, encoding="utf-8")
        run_compiler([nvcc, "-cubin", *options, os.fspath(code), "-o", os.fspath(target)])

    if library is not None:
        version, build = _version(library), with_nvrtc
    elif nvcc is not None:
        version, build = run_compiler([nvcc, "--version"]), with_nvcc
    else:
        raise KernelError(
            "no compiler of device code works here (tried NVRTC and nvcc). Install one: "
            "pip install nvidia-cuda-nvrtc"
        )
    return keep((version, *options, source), ".cubin", build).read_bytes()


def _version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def _compile(library: ctypes.CDLL, source: str, options: Sequence[str]) -> bytes:
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            told = _get(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise KernelError(
                f"{_version(library)} refuses the device code for {' '.join(options)}: "
                f"{told.decode(errors='replace').strip(_PADDING)[-_TOLD:]}"
            )
        return _get(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _get(measure: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    measure(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    read(program, content)
    return content.raw
