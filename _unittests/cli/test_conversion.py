"""Tests of ortmeter.cli.conversion: what is made of a model is compared, timed and kept."""

import re
import sys

import numpy as np
import onnx
import pytest
from commands import convert, parse, refused, report_of, tables_of

import ortmeter
from ortmeter.cli import conversion
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import rewriting
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.runtime.precision import convert_precision

PRODUCT = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
PRODUCT.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
ERROR = "largest error / largest value"


@pytest.fixture
def model(tmp_path):
    onnx.save(PRODUCT, tmp_path / "m.onnx")
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
    wide, half = (
        next(iter(run_session(ortmeter.make_session(m, provider="cpu"), FEEDS).values()))
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
    (table,) = tables_of(report_of(capsys, "profile", model, *given))["Time by operator"]
    assert onnx.TensorProto.INT8 in weights(kept)
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
    ],
)
def test_one_model_is_made_of_one(model, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(model.parent)
    assert message in refused(capsys, "diff", "m.onnx", *arguments)


@pytest.mark.parametrize(
    ("option", "names", "message"),
    [
        ("--precision", "float16,int8", "--precision: got 'int8'. Accepted: .*float16"),
        ("--precision", "float16,", "--precision: got 'float16,', expected values"),
        ("--rewrite", "none,simplify", "got 'simplify'. Accepted: none, onnxsim"),
        ("--rewrite", "none,", "--rewrite: got 'none,', expected values"),
    ],
)
def test_names_that_are_not_known_are_refused(option, names, message):
    with pytest.raises(InvalidArgumentError, match=message):
        convert([option, names], PRODUCT, FEEDS)


def convert_product(*given, feeds=FEEDS):
    """Add conversions to candidates; return these, the report, and its rows by candidate."""
    found, report, _ = convert(given, {"m": PRODUCT}, feeds)
    return found, report, rows(report)


def rows(report):
    (table,) = report.to_dict()["sections"][0]["tables"]
    return {row["candidate"]: row for row in table}


def test_converted_models_are_added_with_their_size_and_difference():
    asked = ("--precision", "float16, QDQ U8S8", "--precision", "weights 4 bits,float16")
    found, report, told = convert_product(*asked)
    assert list(found) == ["m", "float16", "QDQ U8S8", "weights 4 bits"]
    (section,) = report.sections
    assert section.title == "Models of --precision: errors on other random inputs, seed 1"
    assert 5e-5 < told["float16"][ERROR] < 2e-3
    assert 3e-3 < told["QDQ U8S8"][ERROR] < 5e-2
    assert 48 < told["float16"]["size (%)"] < 56
    assert 25 < told["QDQ U8S8"]["size (%)"] < 36
    assert {row["timed"] for row in told.values()} == {"yes"}
    kinds = {tensor.data_type for tensor in found["QDQ U8S8"].model.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds


def test_errors_are_those_of_inputs_that_did_not_calibrate():
    """Ranges of inputs near zero clip all others; the sample itself would show no error."""
    near = {"A0": np.full((8, 64), 1e-3, np.float32)}
    for given, least, most in (((), 0.5, np.inf), (("--feeds", "near.npz"), 0, 0.1)):
        _, report, told = convert_product("--precision", "QDQ U8S8", *given, feeds=near)
        assert least <= told["QDQ U8S8"][ERROR] <= most
    assert report.sections[0].title.endswith("errors on the sample that gave the ranges")


def test_several_models_are_named():
    found, *_ = convert(["--precision", "float16"], {"a": PRODUCT, "b": PRODUCT}, [FEEDS] * 2)
    assert list(found) == ["a", "b", "a, float16", "b, float16"]


def test_what_is_made_is_kept(tmp_path):
    kept = tmp_path / "kept.onnx"
    _, report, _ = convert_product("--precision", "float16", "--save-model", str(kept))
    assert [*tmp_path.iterdir()] == [kept]
    assert weights(kept) == {onnx.TensorProto.FLOAT16}
    assert report.sentences == [f"float16 is in {kept}."]
    several = ("--precision", "float16,dynamic U8S8", "--save-model", str(kept), "--force")
    convert_product(*several)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"kept.onnx", "kept-float16.onnx", "kept-dynamic-U8S8.onnx"}


def test_what_cannot_be_added_is_refused():
    cnn, feeds = sample_cnn(size=8), {"input": np.ones((1, 3, 8, 8), np.float32)}
    both = "weights 4 bits: no: nothing to convert in .*; weights 8 bits: no: nothing to convert"
    with pytest.raises(ModelError, match=f"--precision {both}"):
        convert(["--precision", "weights 4 bits,weights 8 bits"], cnn, feeds)


def test_what_fails_is_said_in_full_and_the_others_go_on(monkeypatch):
    reason = "the tool fails " + "a long reason " * 40 + "end"

    def fail(model, way, samples):
        if way == "QDQ U8S8":
            raise ModelError(f"precision={way!r}: {reason}")
        made = convert_precision(model, way, samples)
        if way == "dynamic U8U8":
            made.graph.node[0].op_type = "Unknown"
        return made

    monkeypatch.setattr(conversion, "convert_precision", fail)
    found, report, _ = convert_product("--precision", "QDQ U8S8,float16,dynamic U8U8")
    assert list(found) == ["m", "float16"]
    assert f"QDQ U8S8 is not timed: {reason}." in report.sentences
    assert any(s.startswith("dynamic U8U8 is not timed: ONNX Runtime") for s in report.sentences)
    assert " ".join(report.to_text().split()).count("a long reason") >= 40


def test_a_model_that_gets_larger_and_an_opset_that_is_raised_are_said():
    text = """<ir_version: 8, opset_import: ["": 12]>
    g (float[8, 64] A0) => (float[8, 2] Y) { T = Transpose(W)
      P = MatMul(A0, W)  Q = MatMul(P, T)  Y = MatMul(Q, W) }"""
    small = parse(text, W=np.ones((64, 2), np.float32))
    _, report, _ = convert(["--precision", "weights 8 bits,QDQ channels"], small, FEEDS)
    larger = next(told for told in report.sentences if told.startswith("weights 8 bits makes"))
    assert 100 < float(larger.partition(": ")[2].partition("%")[0]) < 400
    assert "QDQ channels needs opset 13: the model was raised from 12." in report.sentences


MODEL = parse("(float[4] X) => (float[4] Y) { Z = Identity(X)  Y = Abs(Z) }")
OTHER = {
    "near": "(float[4] Y) <float c = {1e-5}> { Z = Abs(X)  Y = Add(Z, c) }",  # 1e-7 of 100
    "far": "(float[4] Y) <float c = {1}> { Z = Abs(X)  Y = Add(Z, c) }",  # 0.01
    "NaN": "(float[4] Y) { Z = Log(X)  Y = Exp(Z) }",
    "longer": "(float[8] Y) { Z = Abs(X)  Y = Concat<axis = 0>(Z, Z) }",
    "refused": "(float[4] Y) { Y = Unknown(X) }",
    "exact": "(float[4] Y) { Y = Identity(X) }",
}


@pytest.fixture
def others(monkeypatch):
    known = {n: lambda _, t=text: parse(f"(float[4] X) => {t}") for n, text in OTHER.items()}
    for module in (rewriting, conversion):
        monkeypatch.setattr(module, "REWRITERS", {**rewriting.REWRITERS, **known})


def rewrite(*given, model=MODEL, x=(1, -2, 3, -100)):
    return convert(given, {"m": model}, {"X": np.float32(x)})


def test_nothing_changes_unless_it_is_asked_for():
    found, report, variants = rewrite()
    assert found is variants
    assert not report.sections


def test_what_computes_the_same_is_timed_in_the_order_asked():
    found, report, variants = rewrite("--rewrite", "none, onnx_ir,onnxscript")
    assert list(found) == ["none", "onnx_ir", "onnxscript"]
    assert [row["nodes"] for row in rows(report).values()] == [2, 1, 1]
    assert {row["timed"] for row in rows(report).values()} == {"yes"}
    assert found["onnx_ir"].feeds is variants["m"].feeds


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("far", "no"),
        ("NaN", "no; beyond any tolerance: Y (.*NaN"),
        ("longer", "no; beyond any tolerance: Y (.*shape"),
        ("refused", "no: .*Unknown"),
    ],
)
def test_what_differs_or_fails_is_told_and_not_timed(others, name, why):
    found, report, _ = rewrite("--rewrite", f"none,near,{name}")
    assert list(found) == ["none", "near"]
    told = rows(report)[name]["timed"]
    assert told.startswith(why.partition(" (")[0].partition(".*")[0])
    assert why.rpartition(".*")[2].lower() in told.lower()
    assert rows(report)["near"][ERROR] == pytest.approx(1e-7, rel=0.5)
    assert rows(report)[name][ERROR] == {"far": 0.01}.get(name)  # inf is null


def test_without_any_candidate_left_there_is_an_error(others):
    with pytest.raises(ModelError, match="--rewrite far: no"):
        rewrite("--rewrite", "far")


def test_what_float64_is_as_far_from_is_timed(others):
    """The original is the one that rounds: to 1/128, beside 100000."""
    text = "(float[4] X) => (float[4] Y) <float big = {1e5}> { A = Add(X, big)  Y = Sub(A, big) }"
    x = [0.503, 0.2514, 0.1259, 1]
    found, report, _ = rewrite("--rewrite", "exact", model=parse(text), x=x)
    assert list(found) == ["exact"]
    assert 1e-3 < rows(report)["exact"][ERROR] < 1 / 128
    assert report.sentences[0].endswith("but the original is as far from float64.")


def test_an_optimizer_that_is_not_installed_leaves_the_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    missing = r'onnxsim .* "ortmeter\[rewrite\]"'
    with pytest.raises(ModelError, match=missing):
        rewrite("--rewrite", "onnxsim")
    found, report, _ = rewrite("--rewrite", "onnxsim,onnx_ir")
    assert list(found) == ["onnx_ir"]
    assert re.search(f"onnxsim is not timed: {missing}", report.sentences[-1])
