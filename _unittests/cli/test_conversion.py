"""Tests of ``--rewrite`` and ``--precision``: what is made of a model is compared and kept."""

import re
import sys
from argparse import ArgumentParser

import numpy as np
import onnx
import pytest
from cli_runs import HEADER, refused, report

import ortmeter
from ortmeter.cli import conversion
from ortmeter.cli.inputs import add_feeds
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import rewriting
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.runtime.precision import convert_precision
from ortmeter.timing.candidates import model_variants

STACK = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
ABS = f"{HEADER} g (float[4] X) => (float[4] Y) {{ Z = Identity(X)  Y = Abs(Z) }}"
OF_ABS = {"X": np.float32([1, -2, 3, -100])}
ERROR = "largest error / largest value"


def add(*given, models=STACK, feeds=FEEDS):
    """Apply options to models that have these names, one is named m; return a table by name."""
    parser = ArgumentParser()
    conversion.add_options(parser, "")
    parser.add_argument("--force", action="store_true")
    add_feeds(parser)
    told = Report("bench")
    named = models if isinstance(models, dict) else {"m": models}
    variants = model_variants(named, feeds, provider="cpu")
    found = conversion.read_conversion(parser.parse_args(given)).apply(told, variants)
    tables = [section["tables"][0] for section in told.to_dict()["sections"]]
    rows = {row["candidate"]: row for table in tables for row in table}
    return found, rows, told, variants


def weights(file):
    return {tensor.data_type for tensor in onnx.load(file).graph.initializer}


def test_nothing_changes_unless_it_is_asked_for():
    found, rows, _, variants = add()
    assert (found is variants, rows) == (True, {})


def test_converted_models_are_added_with_their_size_and_difference():
    found, rows, told, _ = add("--precision", "float16, QDQ U8S8")
    assert list(found) == ["m", "float16", "QDQ U8S8"]
    title = "Models of --precision: errors on other random inputs, seed 1"
    assert [section.title for section in told.sections] == [title]
    assert 5e-5 < rows["float16"][ERROR] < 2e-3
    assert 3e-3 < rows["QDQ U8S8"][ERROR] < 5e-2
    assert 48 < rows["float16"]["size (%)"] < 56
    assert 25 < rows["QDQ U8S8"]["size (%)"] < 36
    assert {row["timed"] for row in rows.values()} == {"yes"}
    types = {tensor.data_type for tensor in found["QDQ U8S8"].model.graph.initializer}
    assert onnx.TensorProto.INT8 in types


def test_errors_are_those_of_inputs_that_did_not_calibrate():
    """Ranges of inputs near zero clip all others; the sample itself would show no error."""
    near = {"A0": np.full((8, 64), 1e-3, np.float32)}
    for given, least, most in (((), 0.5, np.inf), (("--feeds", "near.npz"), 0, 0.1)):
        _, rows, told, _ = add("--precision", "QDQ U8S8", *given, feeds=near)
        assert least <= rows["QDQ U8S8"][ERROR] <= most
    assert told.sections[0].title.endswith("errors on the sample that gave the ranges")


@pytest.mark.parametrize(
    ("option", "name", "kept"), [("--precision", "float16", "ab"), ("--rewrite", "none", "")]
)
def test_several_models_are_named(option, name, kept):
    found, *_ = add(option, name, models={"a": STACK, "b": STACK}, feeds=[FEEDS] * 2)
    assert list(found) == [*kept, f"a, {name}", f"b, {name}"]


def test_what_is_made_is_kept(tmp_path):
    kept = tmp_path / "kept.onnx"
    _, _, told, _ = add("--precision", "float16", "--save-model", str(kept))
    assert list(tmp_path.iterdir()) == [kept]
    assert weights(kept) == {onnx.TensorProto.FLOAT16}
    assert told.sentences == [f"float16 is in {kept}."]
    add("--precision", "float16,dynamic U8S8", "--save-model", str(kept), "--force")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"kept.onnx", "kept-float16.onnx", "kept-dynamic-U8S8.onnx"}


def test_what_cannot_be_made_is_refused(monkeypatch):
    cnn, feeds = sample_cnn(size=8), {"input": np.ones((1, 3, 8, 8), np.float32)}
    both = "weights 4 bits: no: nothing to convert in .*; weights 8 bits: no: nothing to convert"
    with pytest.raises(ModelError, match=f"--precision {both}"):
        add("--precision", "weights 4 bits,weights 8 bits", models=cnn, feeds=feeds)
    for option, name, first in (("--precision", "float16", "float"), ("--rewrite", "none", "none")):
        with pytest.raises(
            InvalidArgumentError, match=f"{option}: got 'int8'. Accepted: .*{first}"
        ):
            add(option, f"{name},int8")
        with pytest.raises(InvalidArgumentError, match=f"{option}: got '{name},', expected values"):
            add(option, f"{name},")
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    missing = r'onnxsim .* "ortmeter\[rewrite\]"'
    found, _, told, _ = add("--rewrite", "onnxsim,onnx_ir", models=ABS, feeds=OF_ABS)
    assert list(found) == ["onnx_ir"]
    assert re.search(f"onnxsim is not timed: {missing}", told.sentences[-1])


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
    found, _, told, _ = add("--precision", "QDQ U8S8,float16,dynamic U8U8")
    assert list(found) == ["m", "float16"]
    assert f"QDQ U8S8 is not timed: {reason}." in told.sentences
    assert any(s.startswith("dynamic U8U8 is not timed: ONNX Runtime") for s in told.sentences)
    assert " ".join(told.to_text().split()).count("a long reason") >= 40


def test_a_model_that_gets_larger_and_an_opset_that_is_raised_are_said():
    small = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 12]>
    g (float[8, 64] A0) => (float[8, 2] Y) { T = Transpose(W)
      P = MatMul(A0, W)  Q = MatMul(P, T)  Y = MatMul(Q, W) }""")
    small.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 2), "f"), "W"))
    _, _, told, _ = add("--precision", "weights 8 bits,QDQ channels", models=small)
    larger = next(text for text in told.sentences if text.startswith("weights 8 bits makes"))
    assert 100 < float(larger.partition(": ")[2].partition("%")[0]) < 400
    assert "QDQ channels needs opset 13: the model was raised from 12." in told.sentences


@pytest.fixture
def others(monkeypatch):
    """Plant rewritings of the absolute value."""
    bodies = {
        "near": "<float c = {1e-5}> { Z = Abs(X)  Y = Add(Z, c) }",  # 1e-7 of 100
        "far": "<float c = {1}> { Z = Abs(X)  Y = Add(Z, c) }",  # 0.01
        "NaN": "{ Z = Log(X)  Y = Exp(Z) }",
        "longer": "{ Z = Abs(X)  Y = Concat<axis = 0>(Z, Z) }",
        "refused": "{ Y = Unknown(X) }",
        "exact": "{ Y = Identity(X) }",
    }

    def parse(name):
        ends = f"(float[4] X) => (float[{8 if name == 'longer' else 4}] Y)"
        return onnx.parser.parse_model(f"{HEADER} g {ends} {bodies[name]}")

    known = {name: lambda _, name=name: parse(name) for name in bodies}
    for module in (rewriting, conversion):
        monkeypatch.setattr(module, "REWRITERS", {**rewriting.REWRITERS, **known})


def test_what_computes_the_same_is_timed_in_the_order_asked():
    found, rows, _, variants = add(
        "--rewrite", "none, onnx_ir,onnxscript", models=ABS, feeds=OF_ABS
    )
    assert list(found) == ["none", "onnx_ir", "onnxscript"]
    assert [row["nodes"] for row in rows.values()] == [2, 1, 1]
    assert {row["timed"] for row in rows.values()} == {"yes"}
    assert found["onnx_ir"].feeds is variants["m"].feeds


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("far", "no: the largest error is 0.01"),
        ("NaN", "no; beyond any tolerance: Y (.*NaN"),
        ("longer", "no; beyond any tolerance: Y (.*shape"),
        ("refused", "no: .*Unknown"),
    ],
)
def test_what_differs_or_fails_is_told_and_not_timed(name, why):
    found, rows, *_ = add("--rewrite", f"none,near,{name}", models=ABS, feeds=OF_ABS)
    assert list(found) == ["none", "near"]
    assert re.match(why.replace("(", r"\("), rows[name]["timed"])
    assert rows["near"][ERROR] == pytest.approx(1e-7, rel=0.5)
    assert rows[name][ERROR] == {"far": 0.01}.get(name)  # inf is null
    with pytest.raises(ModelError, match=f"--rewrite {name}: no"):  # no candidate is left
        add("--rewrite", name, models=ABS, feeds=OF_ABS)


@pytest.mark.usefixtures("others")
def test_what_float64_is_as_far_from_is_timed():
    """The original is the one that rounds: to 1/128, beside 100000."""
    ends = "(float[4] X) => (float[4] Y) <float big = {100000}>"
    rounding = f"{HEADER} g {ends} {{ A = Add(X, big)  Y = Sub(A, big) }}"
    feeds = {"X": np.float32([0.503, 0.2514, 0.1259, 1])}
    found, rows, told, _ = add("--rewrite", "exact", models=rounding, feeds=feeds)
    assert list(found) == ["exact"]
    assert 1e-3 < rows["exact"][ERROR] < 1 / 128
    assert told.sentences[0].endswith("but the original is as far from float64.")


@pytest.fixture
def model(tmp_path):
    made = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_model_is_compared_with_what_is_made_of_it(model, tmp_path):
    kept = tmp_path / "half.onnx"
    given = ["--precision", "float16", "--save-model", kept, "--search-budget", "0"]
    found = report("diff", model, *given)
    assert found.told[0].startswith("m float16.onnx against m.onnx, output ")
    assert weights(kept) == {onnx.TensorProto.FLOAT16}
    wide, half = (
        next(iter(run_session(ortmeter.make_session(m, provider="cpu"), FEEDS).values()))
        for m in (model, kept)
    )
    (row, *_) = next(iter(found.tables.values()))
    assert row["absolute"] == pytest.approx(np.abs(wide - half).max(), rel=1e-3)


def test_ranges_are_not_those_of_the_inputs_that_are_compared(model, tmp_path):
    kept = tmp_path / "eight.onnx"
    report("diff", model, "--precision", "QDQ U8S8", "--save-model", kept, "--search-budget", "0")
    other = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(kept).graph.initializer}
    (scale,) = [v for name, v in scales.items() if name.startswith("A0") and "scale" in name]
    assert float(scale) == pytest.approx((other.max() - other.min()) / 255, rel=1e-5)


def test_what_is_made_is_profiled(model, tmp_path):
    kept = tmp_path / "eight.onnx"
    given = ["--precision", "dynamic U8S8", "--save-model", kept, "--repeat", "2"]
    found = report("profile", model, *given)
    assert onnx.TensorProto.INT8 in weights(kept)
    assert any("DynamicQuantize" in row["op"] for row in found.tables["Time by operator"])


@pytest.mark.parametrize("command", ["bench", "diff", "profile"])
def test_a_file_of_somebody_is_not_lost(model, tmp_path, command):
    (tmp_path / "mine.onnx").write_text("mine")
    given = ["--precision", "float16", "--save-model", tmp_path / "mine.onnx"]
    told = "mine.onnx exists: choose another name, or replace it with --force"
    assert told in refused(command, model, *given)
    assert (tmp_path / "mine.onnx").read_text() == "mine"
    told = "no model is made. Accepted: with --precision or --rewrite"
    assert told in refused(command, model, "--save-model", tmp_path / "other.onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "--precision", "float16", "--against", "cpu"], "one model, without --against"),
        (["diff", "m.onnx", "--rewrite", "onnx_ir"], "one model, without --against"),
        (["diff", "--precision", "float16,dynamic U8S8"], "--precision: got float16, dynamic U8S8"),
        (["bench", "--rewrite", "none", "--save", "k.json"], "--rewrite and --precision do not go"),
        (["bench", "--precision", "float16", "--save", "k.json"], "do not go with --save"),
    ],
)
def test_what_does_not_go_together_is_refused(model, monkeypatch, arguments, message):
    monkeypatch.chdir(model.parent)
    command, *rest = arguments
    assert message in refused(command, "m.onnx", *rest)
