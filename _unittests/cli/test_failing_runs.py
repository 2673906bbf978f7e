"""A model that fails when it runs: one line and exit code 2, in every command."""

import numpy as np
import pytest
from commands import QUICK, save

from ortmeter.cli import main

FAILING = {
    "Reshape": ("(float[4] X, int64[2] S) => (float[a, b] Y)", "Y = Reshape(X, S)", {"S": [3, 2]}),
    "Gather": ("(float[4] X, int64[1] I) => (float[1] Y)", "Y = Gather(X, I)", {"I": [9]}),
    "Add": ("(float[4] X, float[n] Z) => (float[m] Y)", "Y = Add(X, Z)", {"Z": np.zeros(3, "f4")}),
    "Div": ("(int32[4] X) => (int32[4] Y)", "Z = Sub(X, X) Y = Div(X, Z)", {"X": np.ones(4, "i4")}),
    "SequenceAt": (
        "(float[4] X, int64 I) => (float[4] Y)",
        "S = SequenceConstruct(X) Y = SequenceAt(S, I)",
        {"I": np.int64(3)},
    ),
    "Reshape in If": (
        "(float[4] X, bool C) => (float[n] Y)",
        """Y = If (C) <
            then_branch = t () => (float[n] A) {
                S = Constant <value_ints = [3]> ()  Z = Abs(X)  A = Reshape(Z, S) },
            else_branch = e () => (float[n] B) { B = Abs(X) }
        >""",
        {"C": np.array(True)},
    ),
}


@pytest.fixture(params=FAILING)
def failing(request, tmp_path):
    """A model and its inputs, and the operator that fails."""
    signature, body, feeds = FAILING[request.param]
    save(tmp_path / "model.onnx", f"{signature} {{ {body} }}")
    given = {"X": np.arange(4, dtype=np.float32), **feeds}
    np.savez(tmp_path / "feeds.npz", **{k: np.asarray(v) for k, v in given.items()})
    arguments = [tmp_path / "model.onnx", "--provider", "cpu", "--feeds", tmp_path / "feeds.npz"]
    return [str(argument) for argument in arguments], request.param.split()[0]


@pytest.mark.parametrize("command", QUICK)
def test_one_line_and_exit_code_2(failing, command, capfd, tmp_path):
    arguments, operator = failing
    html = tmp_path / "report.html"
    assert main([command, *arguments, *QUICK[command], "--html", str(html)]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith(f"ortmeter {command}: The model failed on cpu: ")
    assert operator in line
    assert "Traceback" not in line
    assert "onnxruntime_src" not in line
    assert not html.exists()


@pytest.mark.parametrize("against", ["float64", "torch", "reference", "cpu"])
def test_the_same_whatever_it_is_compared_with(failing, against, capfd):
    arguments, _ = failing
    assert main(["diff", *arguments, "--against", against]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_what_no_expected_kernel_runs_is_an_error_too(tmp_path, capfd):
    """ONNX Runtime has a kernel for float32 only: nothing computes it in float64."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1, 1, 2, 2] X) => (float[1, 1, 2, 2] Y)
        { C = Constant <value = float[1, 1, 1, 1] {2}> ()  Y = com.microsoft.FusedConv(X, C) }"""
    save(tmp_path / "model.onnx", text)
    assert main(["diff", str(tmp_path / "model.onnx"), "--provider", "cpu"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ortmeter diff: No kernel runs node 'Y' (com.microsoft.FusedConv)")


def test_a_search_that_fails_keeps_the_table_of_outputs(tmp_path, capfd, monkeypatch):
    def too_large(*_args, **_options):
        raise MemoryError

    save(tmp_path / "model.onnx", "(float[4] X) => (float[4] Y) { Y = Exp(X) }")
    monkeypatch.setattr("ortmeter.cli.diff.explain_session", too_large)
    assert main(["diff", str(tmp_path / "model.onnx"), "--provider", "cpu"]) == 0
    told = capfd.readouterr().out
    assert "nodes are not searched: MemoryError." in told
    assert "float64, output Y: " in told
