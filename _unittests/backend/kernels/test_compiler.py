"""Compile once, wherever there is a compiler; say what is missing otherwise."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import compiler
from ortmeter.backend.kernels.compiler import compile_library, find_compiler, kernel_folder

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
    real = find_compiler()
    monkeypatch.setattr(
        compiler, "find_compiler", lambda: compiler.Compiler(real.command, "another version")
    )
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
    assert find_compiler().command == (str(path), "-m64")
    assert find_compiler().version == "mine 1.0"


def test_a_compiler_that_does_not_start_is_passed_over(monkeypatch, tmp_path):
    path = program(tmp_path / "bin", "exit 1")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_compiler().command != (str(path),)


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
    with pytest.raises(KernelError, match="would not be safe. Set ORTMETER_CACHE"):
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
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    (path,) = paths
    assert ctypes.CDLL(path).answer() == 7
    assert kept() == [Path(path).name]
