"""Tests of ortmeter.cli.first_run: a model that kills the process ends in one line."""

import numpy as np
import pytest
from commands import parse, save
from processes import run_python

from ortmeter.child import ChildError
from ortmeter.cli import first_run
from ortmeter.cli.first_run import refuse_deadly
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec

CPU = {"provider": Provider("cpu")}
EMPTY = {"x": np.zeros((2, 3, 0), np.float32), "z": np.zeros((2, 4, 0), np.float32)}


@pytest.fixture
def deadly(tmp_path):
    """A model that kills onnxruntime 1.31 on empty operands; the test runs it to know."""
    text = """(float[b, i, j] x, float[b, k, j] z) => (float[b, i, k] y) {
        y = Einsum<equation = "bij,bkj->bik">(x, z) }"""
    file = save(tmp_path / "deadly.onnx", text)
    code = (
        "import numpy, onnxruntime, sys;"
        "onnxruntime.InferenceSession(sys.argv[1]).run(None, {n: numpy.zeros((2, s, 0), 'f') "
        "for n, s in (('x', 3), ('z', 4))})"
    )
    if run_python("-c", code, file).returncode >= 0:
        pytest.skip("this release of onnxruntime runs Einsum on empty operands")
    return file


def test_what_kills_the_process_is_named_in_one_line(deadly):
    spec = SessionSpec(deadly, EMPTY, CPU)
    with pytest.raises(OrtMeterError, match="killed by SIG") as caught:
        refuse_deadly({"deadly.onnx": spec})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("deadly.onnx: a first run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["diff"], ["profile"], ["bench", "--processes", "1"], ["bench", "--cold"]]
)
def test_the_commands_end_in_one_line(deadly, command):
    given = [*command, str(deadly), "--shape", "x=2x3x0", "--shape", "z=2x4x0"]
    ran = run_python("-m", "ortmeter", *given)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert "killed by SIG" in ran.stderr


@pytest.mark.slow
def test_a_death_that_nothing_foretells_is_told(tmp_path):
    text = """(float[n] X) => (int64[n] Y) <int64 k = {-1}> {
        A = Cast<to = 7>(X) Y = Div(A, k) }"""
    given = ["profile", save(tmp_path / "cast.onnx", text), "--value", "X=nan"]
    there = {"TMPDIR": str(tmp_path)}  # what it leaves, as it dies, is the test's
    ran = run_python("-m", "ortmeter", *given, variables=there)
    if ran.returncode == 0:
        pytest.skip("this release of onnxruntime divides the smallest integer by -1")
    assert ran.returncode < 0
    assert ran.stderr.startswith("Fatal Python error: Floating")
    assert "onnxruntime" in ran.stderr


@pytest.mark.parametrize(
    ("text", "array", "asked"),
    [
        ("(float[n] X) => (float[n] Y) { Y = Abs(X) }", np.ones(2, np.float32), False),
        ("(float[n] X) => (float[n] Y) { Y = Abs(X) }", np.ones(0, np.float32), True),
        ("(float[n] X) => (int64[1, m] Y) { Y = NonZero(X) }", np.ones(2, np.float32), True),
        ("(int64[n] X) => (int64[n] Y) { Y = Abs(X) }", np.array([1, -(2**63)]), True),
        ("(int64[n] X) => (int64[n] Y) { Y = Abs(X) }", np.array([1, 1 - 2**63]), False),
    ],
)
def test_only_arrays_that_may_kill_start_a_process(monkeypatch, text, array, asked):
    started = []
    monkeypatch.setattr(first_run, "call", lambda *given: started.append(given))
    refuse_deadly({"m": SessionSpec(parse(text), {"X": array}, CPU)})
    assert bool(started) is asked


@pytest.mark.parametrize("error", [OrtMeterError("refused"), ChildError("late"), ChildError("", 1)])
def test_other_errors_are_those_of_the_command(monkeypatch, error):
    def fail(*_given):
        raise error

    monkeypatch.setattr(first_run, "call", fail)
    text = "(float[n] X) => (float[n] Y) { Y = Abs(X) }"
    refuse_deadly({"m": SessionSpec(parse(text), {"X": np.ones(0, np.float32)}, CPU)})
