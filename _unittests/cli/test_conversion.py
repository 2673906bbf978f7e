"""Tests of ortmeter.cli.conversion: what is made of a model is compared, profiled and kept."""

import numpy as np
import onnx
import pytest
from commands import refused, report_of

import ortmeter
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import freeze_inputs, layer_stack


@pytest.fixture
def model(tmp_path):
    made = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def weights(path):
    return {tensor.data_type for tensor in onnx.load(path).graph.initializer}


def test_a_model_is_compared_with_what_is_made_of_it(model, capsys, tmp_path):
    kept = tmp_path / "half.onnx"
    given = ["--precision", "float16", "--save-model", kept, "--search-budget", 0]
    report = report_of(capsys, "diff", model, *given)
    assert report["conclusion"][0].startswith("m float16.onnx against m.onnx, output ")
    assert weights(kept) == {onnx.TensorProto.FLOAT16}
    outputs = report["sections"][0]["tables"][0]
    feeds = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
    wide, half = (
        next(iter(run_session(ortmeter.make_session(m, provider="cpu"), feeds).values()))
        for m in (model, kept)
    )
    assert outputs[0]["absolute"] == pytest.approx(np.abs(wide - half).max(), rel=1e-3)


def test_ranges_are_not_those_of_the_inputs_that_are_compared(model, capsys, tmp_path):
    kept = tmp_path / "eight.onnx"
    report_of(capsys, "diff", model, "--precision", "QDQ U8S8", "--save-model", kept)
    other = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(kept).graph.initializer}
    (scale,) = [
        value for name, value in scales.items() if name.startswith("A0") and "scale" in name
    ]
    assert float(scale) == pytest.approx((other.max() - other.min()) / 255, rel=1e-5)


def test_what_is_made_is_profiled(model, capsys, tmp_path):
    kept = tmp_path / "eight.onnx"
    given = ["--precision", "dynamic U8S8", "--save-model", kept, "--repeat", "5"]
    report = report_of(capsys, "profile", model, *given)
    assert onnx.TensorProto.INT8 in weights(kept)
    (table,) = [s["tables"][0] for s in report["sections"] if s["title"] == "Time by operator"]
    assert any("DynamicQuantize" in row["op"] for row in table)


@pytest.mark.parametrize("command", ["bench", "diff", "profile"])
def test_a_file_of_somebody_is_not_lost(model, capsys, tmp_path, command):
    (tmp_path / "mine.onnx").write_text("mine")
    kept = ["--save-model", tmp_path / "mine.onnx"]
    told = refused(capsys, command, model, "--precision", "float16", *kept)
    assert "mine.onnx exists: choose another name, or replace it with --force" in told
    assert (tmp_path / "mine.onnx").read_text() == "mine"
    told = refused(capsys, command, model, "--save-model", tmp_path / "other.onnx")
    assert "no model is made. Accepted: with --precision or --rewrite" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "float16", "--against", "cpu"], "one model, without --against"),
        (["m.onnx", "--rewrite", "onnx_ir"], "one model, without --against"),
        (["--precision", "float16,dynamic U8S8"], "--precision: got float16, dynamic U8S8"),
        (["--precision", "float17"], "Accepted: "),
    ],
)
def test_what_is_refused(model, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(model.parent)
    assert message in refused(capsys, "diff", "m.onnx", *arguments)
