"""Models as exporters make them, through every command."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime.quantization
import pytest

from ortmeter.cli import main

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def transformer(folder):
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
        program = torch.onnx.export(
            *(layer, (torch.zeros(2, 5, 16),)), dynamo=True, verbose=False, opset_version=20
        )
    program.save(str(folder / "transformer.onnx"))
    return folder / "transformer.onnx"


def convolutions(folder):
    import torch

    network = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()),
        *(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 2)),
    ).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            *(network, (torch.zeros(1, 3, 8, 8),)), dynamo=True, verbose=False, opset_version=20
        )
    program.save(str(folder / "convolutions.onnx"))
    return folder / "convolutions.onnx"


def forest(folder):
    from skl2onnx import to_onnx
    from sklearn.datasets import make_regression
    from sklearn.ensemble import RandomForestRegressor

    features, target = make_regression(50, 4, random_state=0)
    trees = RandomForestRegressor(5, random_state=0).fit(features, target)
    onnx.save(to_onnx(trees, features[:1].astype(np.float32)), folder / "forest.onnx")
    return folder / "forest.onnx"


def quantized(folder):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[2, 16] X) => (float[2, 8] Y) {{ Y = MatMul(X, W) }}"
    )
    weights = rng.standard_normal((16, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    onnx.save(model, folder / "plain.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnxruntime.quantization.quantize_dynamic(folder / "plain.onnx", folder / "quantized.onnx")
    return folder / "quantized.onnx"


def control_flow(folder):
    model = onnx.parser.parse_model(f"""{HEADER} g (float[4] X) => (float[4] Z)
    <int64 n = {{3}}, bool yes = {{1}}, float one = {{1}}> {{
        big = ReduceMax<keepdims = 0>(X)
        positive = Greater(big, one)
        Y = If (positive) <
            then_branch = a () => (float[4] A) {{ A = Exp(X) }},
            else_branch = b () => (float[4] B) {{ B = Abs(X) }}
        >
        Z = Loop (n, yes, Y) <
            body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {{
                d = Identity(c) w = Sqrt(v)
            }}
        >
    }}""")
    onnx.save(model, folder / "control_flow.onnx")
    return folder / "control_flow.onnx"


SLOW = [pytest.param(make, marks=pytest.mark.slow) for make in (transformer, convolutions)]
MODELS = (*SLOW, forest, quantized, control_flow)


@pytest.fixture(scope="module", params=MODELS, ids=lambda make: make.__name__)
def model(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


COMMANDS = {
    "bench": ["--optimization", "none,all", "--repeat", "3", "--budget", "0.5"],
    "profile": ["--baseline", "unoptimized", "--repeat", "3"],
    "diff": ["--against", "reference"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works_on_it(model, command, tmp_path, capsys):
    html = tmp_path / "report.html"
    shape = ["--shape", "X=8x4"] if model.stem == "forest" else []
    code = main([command, str(model), *shape, *COMMANDS[command], "--json", "--html", str(html)])
    told = capsys.readouterr()
    assert code == 0, told.err
    report = json.loads(told.out)
    assert report["conclusion"]
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.read_text(encoding="utf-8").count("<table") >= 2
