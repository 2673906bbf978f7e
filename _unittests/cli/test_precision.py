"""Tests of ortmeter.cli.conversion: what `ortmeter bench --precision` adds."""

import numpy as np
import onnx
import pytest
from commands import convert

from ortmeter.cli import conversion
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.runtime.precision import convert_precision

MODEL = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}


def add(*given, models=None, feeds=FEEDS):
    return convert(given, models or {"m": MODEL}, feeds)


def test_converted_models_are_added_with_their_size_and_difference():
    asked = ["float16", "QDQ U8S8", "float16"]
    found, report, _ = add(*(part for name in asked for part in ("--precision", name)))
    assert list(found) == ["m", "float16", "QDQ U8S8"]
    (section,) = report.sections
    (table,) = report.to_dict()["sections"][0]["tables"]
    assert section.title == "Models of --precision: errors on other random inputs, seed 1"
    rows = {row["candidate"]: row for row in table}
    assert 5e-5 < rows["float16"]["largest error / largest value"] < 2e-3
    assert 3e-3 < rows["QDQ U8S8"]["largest error / largest value"] < 5e-2
    assert 48 < rows["float16"]["size (%)"] < 56
    assert 25 < rows["QDQ U8S8"]["size (%)"] < 36
    assert {row["timed"] for row in rows.values()} == {"yes"}
    weights = {tensor.data_type for tensor in found["QDQ U8S8"].model.graph.initializer}
    assert onnx.TensorProto.INT8 in weights


def test_errors_are_those_of_inputs_that_did_not_calibrate():
    """Ranges of inputs near zero clip all others; the sample itself would show no error."""
    near = {"A0": np.full((8, 64), 1e-3, np.float32)}
    for given, least, most in (((), 0.5, np.inf), (("--feeds", "near.npz"), 0, 0.1)):
        _, report, _ = add("--precision", "QDQ U8S8", *given, feeds=near)
        ((row,),) = report.to_dict()["sections"][0]["tables"]
        assert least <= row["largest error / largest value"] <= most
    assert report.sections[0].title.endswith("errors on the sample that gave the ranges")


def test_several_models_are_named():
    found, *_ = add("--precision", "float16", models={"a": MODEL, "b": MODEL}, feeds=[FEEDS] * 2)
    assert list(found) == ["a", "b", "a, float16", "b, float16"]


def test_names_are_separated_by_commas_as_in_other_options():
    found, *_ = add("--precision", "float16, QDQ U8S8", "--precision", "weights 4 bits,float16")
    assert list(found) == ["m", "float16", "QDQ U8S8", "weights 4 bits"]


def test_what_is_made_is_kept(tmp_path):
    kept = tmp_path / "kept.onnx"
    _, report, _ = add("--precision", "float16", "--save-model", str(kept))
    (file,) = tmp_path.iterdir()
    types = {tensor.data_type for tensor in onnx.load(file).graph.initializer}
    assert (file, types) == (kept, {onnx.TensorProto.FLOAT16})
    assert report.sentences == [f"float16 is in {kept}."]
    add("--precision", "float16,dynamic U8S8", "--save-model", str(kept), "--force")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"kept.onnx", "kept-float16.onnx", "kept-dynamic-U8S8.onnx"}


def test_what_cannot_be_added_is_refused():
    cnn, feeds = sample_cnn(size=8), {"input": np.ones((1, 3, 8, 8), np.float32)}
    both = "weights 4 bits: no: nothing to convert in .*; weights 8 bits: no: nothing to convert"
    with pytest.raises(ModelError, match=f"--precision {both}"):
        add("--precision", "weights 4 bits,weights 8 bits", models={"cnn": cnn}, feeds=feeds)
    with pytest.raises(InvalidArgumentError, match="--precision: got 'int8'. Accepted: .*float16"):
        add("--precision", "float16,int8")
    with pytest.raises(InvalidArgumentError, match="--precision: got 'float16,', expected values"):
        add("--precision", "float16,")


def test_what_fails_is_said_in_full_and_the_others_go_on(monkeypatch):
    reason = "the tool fails " + "a long reason " * 40 + "end"

    def convert(model, way, samples):
        if way == "QDQ U8S8":
            raise ModelError(f"precision={way!r}: {reason}")
        made = convert_precision(model, way, samples)
        if way == "dynamic U8U8":
            made.graph.node[0].op_type = "Unknown"
        return made

    monkeypatch.setattr(conversion, "convert_precision", convert)
    found, report, _ = add("--precision", "QDQ U8S8,float16,dynamic U8U8")
    assert list(found) == ["m", "float16"]
    assert f"QDQ U8S8 is not timed: {reason}." in report.sentences
    assert any(s.startswith("dynamic U8U8 is not timed: ONNX Runtime") for s in report.sentences)
    assert " ".join(report.to_text().split()).count("a long reason") >= 40


def test_a_model_that_gets_larger_and_an_opset_that_is_raised_are_said():
    small = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 12]>
    g (float[8, 64] A0) => (float[8, 2] Y) { T = Transpose(W)
      P = MatMul(A0, W)  Q = MatMul(P, T)  Y = MatMul(Q, W) }""")
    small.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 2), "f"), "W"))
    _, report, _ = add("--precision", "weights 8 bits,QDQ channels", models={"m": small})
    larger = next(told for told in report.sentences if told.startswith("weights 8 bits makes"))
    assert 100 < float(larger.partition(": ")[2].partition("%")[0]) < 400
    assert "QDQ channels needs opset 13: the model was raised from 12." in report.sentences
