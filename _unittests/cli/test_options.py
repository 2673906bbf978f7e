"""What is given to the options, and what they refuse before anything is done."""

import argparse
from argparse import Namespace

import onnx
import pytest
from commands import QUICK, parse, report_of, save

from ortmeter.cli import main
from ortmeter.cli import options as cli_options
from ortmeter.cli.options import describe_session, number, split, thread_count
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider, resolve_provider


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e400", "", "x", "0x1"])
@pytest.mark.parametrize("kind", [int, float])
def test_a_number_that_is_none_is_refused(text, kind):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a"):
        number(0, kind=kind)(text)


def test_the_bounds_of_a_number_are_accepted():
    assert [number(0, 3)(text) for text in ("0", "3")] == [0, 3]
    assert number(0, kind=float)("1e-3") == 1e-3
    with pytest.raises(argparse.ArgumentTypeError, match="got '4', expected an integer from 0 to"):
        number(0, 3)("4")
    with pytest.raises(argparse.ArgumentTypeError, match="got '-1', expected a number >= 0"):
        number(0, kind=float)("-1")


@pytest.mark.parametrize(
    "line",
    [
        "bench m.onnx --budget=nan",
        "diff m.onnx --rtol=inf",
        "operators --processes=0",
        "profile m.onnx --seed=-1",
        "reduce m.onnx --timeout=0",
        "sweep plot_x.py --timeout=nan",
        "tune m.onnx --cores=1.5",
    ],
)
def test_every_command_refuses_what_is_no_such_number(line, capsys):
    assert main(line.split()) == 2
    option, _, text = line.split()[-1].partition("=")
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: got '{text}', expected a" in told


@pytest.mark.parametrize("text", ["99999999999", "-1", "1025", "many", "1.5", "nan"])
def test_threads_that_no_machine_has_are_refused(text):
    with pytest.raises(InvalidArgumentError, match=f"--threads: got '{text}', expected an integer"):
        split("--threads", f"1,{text}", thread_count)


def test_an_element_that_is_refused_says_why():
    with pytest.raises(InvalidArgumentError, match="provider='gpu' is not known. Accepted: auto"):
        split("--provider", "cpu,gpu", resolve_provider)


@pytest.mark.parametrize(
    ("provider", "option", "told"),
    [
        ("cpu", "", "threads=2"),
        ("cpu,cuda", "", "threads=2"),
        ("cpu,webgpu", "", "threads=2 (not controlled on webgpu)"),
        ("cpu,openvino", "num_of_threads", "threads=2"),
    ],
)
def test_the_header_says_where_threads_are_not_controlled(provider, option, told, monkeypatch):
    monkeypatch.setattr(Provider, "threads", option)
    monkeypatch.setattr(cli_options, "resolve_provider", Provider.parse)
    given = Namespace(provider=provider, optimization="all", threads="2", spinning="off")
    for name in cli_options._PAIRS:
        setattr(given, name, [])
    expected = f"provider={provider}, optimization=all, {told}, spinning=off"
    assert describe_session(given) == expected
    given.runtime = "onnxruntime-openvino"  # which is not tried here
    assert "not controlled" not in describe_session(given)


@pytest.mark.parametrize(
    "text", ["installed,installed", "1.31.1,", ",", "", "a,,b", "a, a", "1.31.1,1.30.0, 1.31.1"]
)
def test_a_list_with_nothing_or_the_same_twice_is_refused(text):
    message = f"--runtime: got '{text}', expected values separated by commas, each one once"
    with pytest.raises(InvalidArgumentError, match=message):
        split("--runtime", text)
    assert split("--runtime", " 1.31.1 ,1.30.0") == ["1.31.1", "1.30.0"]


def test_a_path_of_a_library_may_have_a_comma():
    text = "cpu, a=/x,y/l.so,b:1=z/l.so"
    assert split("--provider", text) == ["cpu", "a=/x,y/l.so", "b:1=z/l.so"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("texts.onnx", "(string[n] X) => (string[n] Y) { Y = Identity(X) }")
    model = parse("(float[n] X) => (float[n] Y) { Y = Abs(X) }")
    onnx.save(model, "abs.onnx")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, "no rank.onnx")
    save("int4.onnx", "(int4[n] X) => (float[n] Y) { Y = Cast <to = 1> (X) }")


@pytest.mark.parametrize(
    "arguments",
    [
        ["texts.onnx", "--dim", "n=3"],
        ["no rank.onnx", "--shape", "X=2x3"],
        ["int4.onnx", "--dim", "n=5"],
    ],
)
def test_inputs_that_are_not_the_usual_ones_are_measured(files, arguments, capsys):
    report_of(capsys, "bench", *arguments, "--provider", "cpu", *QUICK["bench"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abs.onnx", "--dim", "n=3", "--dim", "n=4"], "--dim is given twice for 'n'"),
        (["abs.onnx", "--dim", "n=3", "--html", ""], "cannot be written"),
        (["abs.onnx", "--feeds", ""], "input_*.pb"),
        (
            ["no rank.onnx"],
            (
                "no size for X: f32[...], which has no rank. Accepted: shapes={name: shape} in "
                "Python, for instance --shape X=1x128 on the command line"
            ),
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(files, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(
        "ortmeter.cli.bench.measure_variants", lambda *_, **__: pytest.fail("measured")
    )
    assert main(["bench", *arguments, "--provider", "cpu"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
