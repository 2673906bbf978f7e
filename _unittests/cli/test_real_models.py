"""Models as converters make them, through every command."""

import warnings

import numpy as np
import onnx
import pytest
from commands import report_of, save


def forest(folder):
    from skl2onnx import to_onnx
    from sklearn.datasets import make_regression
    from sklearn.ensemble import RandomForestRegressor

    features, target = make_regression(50, 4, random_state=0)
    trees = RandomForestRegressor(5, random_state=0).fit(features, target)
    onnx.save(to_onnx(trees, features[:1].astype(np.float32)), folder / "forest.onnx")
    return folder / "forest.onnx"


def quantized(folder):
    from onnxruntime.quantization import quantize_dynamic

    weights = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    text = "(float[2, 16] X) => (float[2, 8] Y) { Y = MatMul(X, W) }"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(save(folder / "plain.onnx", text, W=weights), folder / "quantized.onnx")
    return folder / "quantized.onnx"


def control_flow(folder):
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
    return save(folder / "control_flow.onnx", text)


MODELS = (forest, quantized, control_flow)


@pytest.fixture(scope="module", params=MODELS, ids=lambda make: make.__name__)
def model(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


COMMANDS = {
    "bench": ["--optimization", "none,all", "--repeat", 3, "--budget", 0.5, "--processes", 1],
    "profile": ["--baseline", "unoptimized", "--repeat", "3"],
    "diff": ["--against", "reference"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works_on_it(model, command, tmp_path, capsys):
    html = tmp_path / "report.html"
    shape = ["--shape", "X=8x4"] if model.stem == "forest" else []
    report = report_of(capsys, command, model, *shape, *COMMANDS[command], "--html", html)
    assert report["conclusion"]
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.read_text(encoding="utf-8").count("<table") >= 2
