"""What must hold: how it is read, and what each answer looks at."""

import shlex
import sys

import numpy as np
import onnx
import pytest

from ortmeter.cli import until
from ortmeter.cli.until import read_question
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate
from ortmeter.releases.environments import Release
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def spec(tmp_path):
    def make(nodes, **feeds):
        inputs = ", ".join(f"float[{len(array)}] {name}" for name, array in feeds.items())
        model = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => (float[n] Y) {{ {nodes} }}")
        onnx.save(model, tmp_path / "model.onnx")
        arrays = {name: np.float32(array) for name, array in feeds.items()}
        return SessionSpec(tmp_path / "model.onnx", arrays, {"provider": Provider("cpu")})

    return make


def ask(text, spec, timeout_s=30.0):
    return read_question(text, timeout_s, "cpu").ask(spec, spec.model.parent)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slower:1.5 --runtime 1.26.0,1.32.0", ("slower", "1.5", ["1.26.0", "1.32.0"], "")),
        ("differs:1e-3 --against float64", ("differs", "1e-3", ["installed"], "float64")),
        ("differs:.1", ("differs", ".1", ["installed"], "float64")),
        ("differs:0 --runtime 1.26.0,installed", ("differs", "0", ["1.26.0", "installed"], "")),
        ("nan", ("nan", "", ["installed"], "")),
        ("fails --runtime 1.32.0", ("fails", "", ["1.32.0"], "")),
        ("fails:out of --runtime 1.32.0", ("fails", "out of", ["1.32.0"], "")),
        ("command: python x.py {model}", ("command", " python x.py {model}", ["installed"], "")),
    ],
)
def test_what_must_hold_is_read(text, expected):
    question = read_question(text, 1.0, "cpu")
    releases = [release.name for release in question.releases]
    assert (question.kind, question.limit, releases, question.against) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "slow", "slower", "slower:1.5", "slower:1.5 --runtime 1.26.0", "slower:x"),
        *("slower:1 --runtime 1.26.0,1.32.0", "slower:2 --runtime 1.26.0,1.27.0,1.32.0"),
        *("slower:2 --runtime 1.26.0,1.32.0 --against cpu", "differs:-1", "differs"),
        *("differs:1 --runtime 1.26.0,1.32.0 --against cpu", "nan:1", "nan --against cpu"),
        *("command:", "command: python check.py", "command: 'python {model}", "nan --timeout 1"),
    ],
)
def test_what_is_not_understood_is_an_error_that_says_what_is(text):
    with pytest.raises(InvalidArgumentError, match="Accepted: 'slower:1.5 --runtime A,B'"):
        read_question(text, 1.0, "cpu")


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1.6, 2, True), (0.9, 1.1, False), (1.2, 1.8, None)]
)
def test_slower_is_what_the_interval_says(low, high, expected, spec, monkeypatch):
    times = Estimate((low + high) / 2, low, high, 0.99, "5 processes")
    monkeypatch.setattr(until, "decide_slowdown", lambda *_, **__: times)
    holds, seen = ask("slower:1.5 --runtime 1.26.0,1.32.0", spec("Y = Abs (X)", X=[1]))
    assert holds is expected
    assert seen == f"1.32.0 is {times} times slower than 1.26.0 (5 processes)"


@pytest.mark.parametrize("against", ["float64", "reference", "unoptimized", "cpu"])
def test_a_difference_is_relative_to_the_largest_value(against, spec):
    model = spec("A = Add (X, L)  Y = Sub (A, L)", X=[0.25, 1], L=[2**25, 2**25])
    holds, seen = ask(f"differs:0.1 --against {against}", model)
    assert seen == f"Y differs by {1 if against == 'float64' else 0:g} of its largest value"
    assert holds == (against == "float64")


def test_releases_are_compared_with_each_other(spec, monkeypatch):
    monkeypatch.setattr(until, "parse_release", lambda name, _: Release(name))
    model = spec("Y = Abs (X)", X=[-1])
    assert ask("differs:1e-9 --runtime old,new", model) == (
        False,
        "Y differs by 0 of its largest value",
    )
    assert ask("fails --runtime old,new", model) == (False, "it runs")


def test_a_failure_is_that_of_the_last_release_and_has_the_text(spec, monkeypatch):
    releases = {"old": Release("old"), "new": Release("new", provider=Provider("cuda"))}
    monkeypatch.setattr(until, "parse_release", lambda name, _: releases[name])
    model = spec("Y = Abs (X)", X=[-1])
    assert ask("fails --runtime old,new", model)[0]
    assert ask("fails:CUDAExecution --runtime old,new", model)[0]
    assert not ask("fails:YExecution --runtime old,new", model)[0]
    holds, seen = ask("fails --runtime new,old", model)
    assert not holds
    assert "CUDAExecutionProvider" in seen


def test_nan_of_an_input_is_none_of_the_model(spec):
    assert ask("nan", spec("Y = Sqrt (X)", X=[-1, 1])) == (True, "NaN in Y")
    assert ask("nan", spec("Y = Sqrt (X)", X=[1])) == (False, "NaN in no output")
    assert ask("nan", spec("Y = Sqrt (X)", X=[np.nan])) == (False, "NaN in X already")


def test_a_command_has_the_files_and_a_time_limit(spec):
    model = spec("Y = Abs (X)", X=[1])
    code = "import os, sys; assert os.path.isfile(sys.argv[1]) and os.path.isdir(sys.argv[2])"
    command = f"command: {PYTHON} -I -S -c {shlex.quote(code)} {{model}} {{inputs}}"
    assert ask(command, model) == (True, "exit code 0")
    wait = f"command: {PYTHON} -I -S -c 'import time; time.sleep(60)' {{model}}"
    holds, seen = ask(wait, model, 0.3)
    assert not holds
    assert seen == "no answer within 0.3 s"
    holds, seen = ask("command: no-such-program {model}", model)
    assert not holds
    assert "no-such-program" in seen
    # Nothing is given to a shell.
    assert not ask(f"command: {PYTHON} -I -S -c 1/0 {{model}} || true", model)[0]
