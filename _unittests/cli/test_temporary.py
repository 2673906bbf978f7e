"""No command leaves a file in the temporary folder, however it ends."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from commands import save
from processes import PATIENCE_S, launched, wait_for_start
from sweep_pages import FastPage

from ortmeter.cli import main

TEXT = """(float[4] X) => (float[4] Y) { Z = Sub (X, X) T = Div (Z, Z) Y = Exp (T) }"""
BENCH = ("bench", "m.onnx", "--provider", "cpu", "--optimization", "none,all", "--repeat", "3")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder, empty, of this process and of those that it starts."""
    folder, work = tmp_path / "temporary", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    save("m.onnx", TEXT)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("env",),
        (*BENCH, "--budget", "1"),
        ("profile", "m.onnx", "--provider", "cpu", "--repeat", "3"),
        ("diff", "m.onnx", "--provider", "cpu", "--against", "float64"),
        ("sweep", "plot_fast.py", "--grid", "number=1"),
        pytest.param(
            ("operators", "--filter", "Relu-f32-L1", "--provider", "cpu", "--processes", "1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("reduce", "m.onnx", "--until", "nan"), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_leaves_nothing(temporary, tmp_path, arguments):
    if arguments[0] == "sweep":
        FastPage(tmp_path / "work")
    assert main(list(arguments)) == 0
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupted_command_leaves_a_partial_report_alone(temporary):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = ("--processes", "9", "--budget", "60", "--html", "report.html")
    with launched("-m", "ortmeter", *BENCH, *options, **streams) as command:
        wait_for_start(command, lambda: list(temporary.glob("ortmeter-*")))
        command.send_signal(signal.SIGINT)
        out, errors = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, "Traceback" in errors) == (130, False), errors
    for text in (out, Path("report.html").read_text(encoding="utf-8")):
        assert "This report is partial" in text
    assert list(temporary.iterdir()) == []
