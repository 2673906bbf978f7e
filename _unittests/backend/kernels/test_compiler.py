"""Compile once, wherever there is a compiler; say what is missing otherwise."""

import ctypes
import os
import subprocess
from pathlib import Path

import onnx_ir as ir
import pytest
from backend_kernels import BOOL, F16, F32, F64, number, step
from processes import launched

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import compiler
from ortmeter.backend.kernels.compiler import (
    compile_device,
    compile_library,
    find_compiler,
    find_nvrtc,
    kernel_folder,
)
from ortmeter.backend.kernels.expression import OPERATORS, Expression
from ortmeter.backend.kernels.sources import cuda_device_source

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() {{ return {}; }}'


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)


def kept():
    return [path.name for path in kernel_folder().iterdir()]


def count_runs(monkeypatch):
    ran = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (ran.append(a), run(*a, **k))[1])
    return ran


def program(folder, text):
    """A compiler of our own, that the path finds first."""
    folder.mkdir(exist_ok=True)
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_library_is_compiled_once(monkeypatch):
    find_compiler()
    ran = count_runs(monkeypatch)
    first = compile_library(ANSWER.format(42))
    assert len(ran) == 1
    assert ctypes.CDLL(str(first)).answer() == 42
    assert compile_library(ANSWER.format(42)) == first
    assert len(ran) == 1
    assert compile_library(ANSWER.format(43)) != first


def test_another_compiler_makes_another_library(monkeypatch):
    first = compile_library(ANSWER.format(42))
    monkeypatch.setattr(compiler, "_version", lambda _: "another version")
    assert compile_library(ANSWER.format(42)) != first


def test_another_machine_makes_another_library(monkeypatch):
    first = compile_library(ANSWER.format(42))
    monkeypatch.setattr(compiler, "cpu_flags", lambda: ("another",))
    assert compile_library(ANSWER.format(42)) != first


def test_nothing_but_the_library_is_left():
    library = compile_library(ANSWER.format(42))
    assert kept() == [library.name]


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match=r"tried g\+\+, c\+\+, clang\+\+.*apt install g\+\+.*CXX"):
        compile_library(ANSWER.format(1))


def test_the_compiler_of_the_environment_is_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(KernelError, match="tried no-such-compiler -m64"):
        find_compiler()
    path = program(tmp_path / "bin", 'echo "mine 1.0"')
    monkeypatch.setenv("CXX", f"{path} -m64")
    assert find_compiler() == (str(path), "-m64")


def test_a_compiler_that_does_not_start_is_passed_over(monkeypatch, tmp_path):
    path = program(tmp_path / "bin", "exit 1")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_compiler() != (str(path),)


def test_a_compiler_that_refuses_says_why():
    with pytest.raises(KernelError, match=r"ended with code 1.*no_such_thing"):
        compile_library("int x = no_such_thing;")
    assert kept() == []


def test_a_compiler_that_writes_nothing_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(program(tmp_path / "bin", "echo fake")))
    with pytest.raises(KernelError, match="cannot be written"):
        compile_library(ANSWER.format(1))
    assert kept() == []


def test_the_folder_is_private():
    assert kernel_folder().stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_into_is_refused():
    kernel_folder().chmod(0o777)
    with pytest.raises(KernelError, match="not safe for code that runs. Set ORTMETER_CACHE"):
        compile_library(ANSWER.format(1))


def test_a_folder_that_cannot_be_made_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "file"))
    with pytest.raises(KernelError, match="cannot be used"):
        kernel_folder()


def test_two_processes_compile_at_once(tmp_path):
    code = (
        "from ortmeter.backend.kernels.compiler import compile_library\n"
        f"print(compile_library({ANSWER.format(7)!r}))"
    )
    options = {"stdout": subprocess.PIPE, "text": True}
    with launched("-c", code, **options) as one, launched("-c", code, **options) as other:
        paths = {child.communicate()[0].strip() for child in (one, other)}
    assert (one.returncode, other.returncode) == (0, 0)
    (path,) = paths
    assert ctypes.CDLL(path).answer() == 7
    assert kept() == [Path(path).name]


# Device code.

BF16 = ir.DataType.BFLOAT16
GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")


def every_operator(dtype):
    """One step for each operator of real numbers."""
    pairs = {"Add", "Sub", "Mul", "Div", "Min", "Max", "Sum"}
    compared = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
    steps = []
    for name in OPERATORS:
        if name in {"Where", "Pow", "Not", "And", "Or", "Xor", "Cast", "IsNaN"}:
            continue
        operands = ("x0", "x1") if name in pairs | compared else ("x0",)
        steps.append(step(name, *operands, dtype=BOOL if name in compared else dtype))
    steps += [step("Pow", "x0", number(p, dtype), dtype=dtype) for p in (-0.5, 2.0, 3.0)]
    steps += [step("Cast", "x0", dtype=t, to=int(t)) for t in (F32, F64, BOOL)]
    inner = range(len(steps))
    total = [step("Sum", *(f"t{i}" for i in inner if steps[i].dtype == dtype), dtype=dtype)]
    return Expression((dtype, dtype), (*steps, *total))


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=lambda t: t.name)
def test_every_operator_compiles(dtype, architecture):
    cubin = compile_device(cuda_device_source([every_operator(dtype)]), architecture)
    assert cubin.startswith(b"\x7fELF")
    assert b"kernel_0" in cubin


def test_what_nvrtc_opens_is_opened_before_it(monkeypatch, tmp_path):
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.so.12"):
        (tmp_path / name).touch()
    opened = []
    monkeypatch.setattr(compiler, "nvidia_folders", lambda: [tmp_path])
    monkeypatch.setattr(compiler.ctypes, "CDLL", opened.append)
    find_nvrtc()
    assert [Path(name).name for name in opened] == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]


@needs_nvrtc
def test_a_refusal_says_why():
    with pytest.raises(KernelError, match=r"(?s)NVRTC \d+.\d+ refuses .*no_such_thing"):
        compile_device("int x = no_such_thing;", "sm_90")
    with pytest.raises(KernelError, match="sm_1"):
        compile_device(cuda_device_source([GATE]), "sm_1")


@needs_nvrtc
def test_device_code_is_compiled_once(monkeypatch):
    first = compile_device(cuda_device_source([GATE]), "sm_90")
    monkeypatch.setattr(compiler, "_compile_with_nvrtc", pytest.fail)
    assert compile_device(cuda_device_source([GATE]), "sm_90") == first


def test_without_a_compiler_of_device_code(monkeypatch):
    monkeypatch.setattr(compiler, "find_nvrtc", lambda: None)
    with pytest.raises(KernelError, match="not found. Install it: pip install nvidia-cuda-nvrtc"):
        compile_device(cuda_device_source([GATE]), "sm_90")
