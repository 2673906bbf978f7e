"""A model with control flow, through every command."""

import pytest
from commands import report_of, save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    text = """(float[4] X) => (float[4] Z)
    <int64 n = {3}, bool yes = {1}, float one = {1}> {
        big = ReduceMax<keepdims = 0>(X)
        positive = Greater(big, one)
        Y = If (positive) <
            then_branch = a () => (float[4] A) { A = Exp(X) },
            else_branch = b () => (float[4] B) { B = Abs(X) }
        >
        Z = Loop (n, yes, Y) <
            body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
                d = Identity(c) w = Sqrt(v)
            }
        >
    }"""
    return save(tmp_path_factory.mktemp("model") / "control_flow.onnx", text)


COMMANDS = {
    "bench": ["--optimization", "none,all", "--repeat", 3, "--budget", 0.5, "--processes", 1],
    "profile": ["--baseline", "unoptimized", "--repeat", "3"],
    "diff": ["--against", "reference"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works_on_it(model, command, tmp_path, capsys):
    html = tmp_path / "report.html"
    report = report_of(capsys, command, model, *COMMANDS[command], "--html", html)
    assert report["conclusion"]
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.read_text(encoding="utf-8").count("<table") >= 2
