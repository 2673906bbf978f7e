import json

import numpy as np
import onnx
import pytest

import ortmeter
from ortmeter.cli import main
from ortmeter.models import layer_norm_matmul

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
SIZES = ["--dim", "a=2", "--dim", "b=3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of models that differ by one weight, or by their outputs."""
    folder = tmp_path_factory.mktemp("models")
    norm = layer_norm_matmul(16)
    onnx.save(norm, folder / "norm.onnx")
    weights = {tensor.name: tensor for tensor in norm.graph.initializer}
    moved = onnx.numpy_helper.to_array(weights["add_b"]) + np.float32(0.5)
    weights["add_b"].CopyFrom(onnx.numpy_helper.from_array(moved, "add_b"))
    onnx.save(norm, folder / "moved.onnx")
    norm.graph.output[0].name = norm.graph.node[-1].output[0] = "renamed"
    onnx.save(norm, folder / "renamed.onnx")
    onnx.save(ortmeter.sample_cnn(size=16), folder / "cnn.onnx")
    two = f"{HEADER} g (float[4] X) => (float[4] Y, float[4] Z) {{ Y = Exp(X) Z = Abs(X) }}"
    onnx.save(onnx.parser.parse_model(two), folder / "two.onnx")
    return folder


def run(capsys, *arguments):
    code = main(["diff", *map(str, arguments), "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


def tables(report):
    return [section["tables"][0] for section in report["sections"] if section["tables"]]


def test_two_models_that_differ_by_a_constant(models, capsys):
    code, report, _ = run(capsys, models / "norm.onnx", models / "moved.onnx", *SIZES)
    assert code == 0
    ((row,),) = tables(report)
    assert row["output"] == "Z"
    assert row["absolute"] == pytest.approx(0.5, rel=1e-4)
    assert row["elements"] == 2 * 3 * 16


def test_outputs_with_other_names_are_compared_by_rank(models, capsys):
    code, report, _ = run(capsys, models / "norm.onnx", models / "renamed.onnx", *SIZES)
    assert code == 0
    assert tables(report)[0][0]["absolute"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("against", ["torch", "reference", "float64", "cpu"])
def test_a_model_is_compared_to_another_way_to_run_it(models, capsys, tmp_path, against):
    html = tmp_path / "report.html"
    options = ["--provider", "cpu", "--against", against, "--html", html]
    code, report, _ = run(capsys, models / "norm.onnx", *SIZES, *options)
    assert code == 0
    first, *others = tables(report)
    assert 0 <= first[0]["absolute"] < 1e-3
    if against == "cpu":
        assert first[0]["absolute"] == 0
        assert others == []
        return
    nodes, runs = others
    assert {row["node"] for row in nodes} == {"norm", "matmul", "add"}
    assert any("run twice" in row["what"] for row in runs)
    assert "<svg" in html.read_text(encoding="utf-8")


def test_the_tolerance_gives_the_exit_code(models, capsys):
    pair = [models / "norm.onnx", models / "moved.onnx", *SIZES]
    code, report, _ = run(capsys, *pair, "--atol", "0.4")
    assert code == 1
    assert report["conclusion"][-1] == "beyond the tolerance: Z."
    code, report, _ = run(capsys, *pair, "--atol", "0.6")
    assert code == 0
    assert report["conclusion"][-1] == "all outputs are within the tolerance."


def test_a_large_model_is_not_searched(models, capsys):
    options = ["--against", "torch", "--max-nodes", "5"]
    code, report, _ = run(capsys, models / "cnn.onnx", *options)
    assert code == 0
    assert len(tables(report)) == 1
    assert "the 14 nodes were not searched: --max-nodes is 5." in report["conclusion"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cnn.onnx", "two.onnx"], "the models have 1 and 2 outputs: output and Y, Z"),
        (["cnn.onnx", "cnn.onnx", "cnn.onnx"], "got 3 models and --against None. Accepted: one"),
        (["cnn.onnx", "cnn.onnx", "--against", "torch"], "got 2 models and --against torch"),
        (["cnn.onnx", "--against", "paper"], "paper"),
        (["cnn.onnx", "--atol", "-1"], "atol=-1.0. Accepted: a number >= 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(models, capsys, arguments, message):
    paths = [str(models / name) if name.endswith(".onnx") else name for name in arguments]
    assert main(["diff", *paths]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ortmeter diff: ")
    assert message in line
