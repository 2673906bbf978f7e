"""Candidates that do not compute the same; the right values are those of NumPy in float64."""

import contextlib

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import parse, report_of, tables_of

from ortmeter.attribution import optimizers
from ortmeter.cli.references import compare, tell_differences
from ortmeter.errors import ModelError
from ortmeter.runtime import sessions
from ortmeter.runtime.optimizers import Optimizer
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec, model_variants

DISABLED = "optimization.disable_specified_optimizers"
MEAN = """(float[1, 64] X) => (float[1] Y) <float n = {64}> {
S = ReduceSum <keepdims = 0> (X, axes) Y = Div (S, n) }"""
X = np.linspace(0, 1, 64, dtype=np.float32)[None]


def model(scale="64"):
    return parse(MEAN.replace("{64}", f"{{{scale}}}"), axes=np.array([1]))


def told(models, **settings):
    return list(tell_differences(model_variants(models, {"X": X}, provider="cpu", **settings)))


def test_candidates_that_agree_say_nothing():
    assert told({"a": model(), "b": model()}) == []
    assert told({"a": model()}, threads=[1, 2]) == []
    assert told({"a": model()}, optimization=["none", "all"]) == []


@pytest.mark.parametrize(("scale", "size"), [("32", "1 times"), ("16", "3 times")])
def test_the_size_of_a_difference_is_said(scale, size):
    (text,) = told({"a": model(), "b": model(scale)})
    assert text.startswith("b does not compute what a does: Y differs by ")
    assert f"{size} the largest value" in text
    assert "float64" not in text  # of which of the two models?


def test_nan_and_infinities_are_said():
    (text,) = told({"a": model(), "b": model("0")})
    assert "the largest value" not in text
    assert "Y differs by" in text


@pytest.mark.parametrize("wrong", [0, 1])
def test_float64_says_which_side_is_wrong(wrong):
    spec = SessionSpec(model(), {"X": X}, {"provider": Provider("cpu")})
    right = {"Y": X.astype(np.float64).mean(axis=1).astype(np.float32)}
    sides = [right, right]
    sides[wrong] = {"Y": right["Y"] + 2}
    (text,) = compare(dict(zip(("1.27.0", "1.31.1"), sides, strict=True)), spec)
    names = ("1.27.0", "1.31.1")
    assert f"; {names[wrong]} is the wrong one: float64 differs by " in text


def test_another_input_is_no_difference():
    specs = model_variants({"a": model(), "b": model()}, [{"X": X}, {"X": X + 1}], provider="cpu")
    assert list(tell_differences(specs)) == []


def test_a_fusion_that_makes_a_model_fail_is_left_out(tmp_path, monkeypatch, capsys):
    onnx.save(model(), tmp_path / "m.onnx")
    make = sessions._create

    def create(source, options, provider, asked, **others):
        """Refuse what a planted fusion would break, unless it is disabled."""
        with contextlib.suppress(RuntimeError):
            if "ConstantFolding" in options.get_session_config_entry(DISABLED):
                return make(source, options, provider, asked, **others)
        if options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            return make(source, options, provider, asked, **others)
        raise ModelError("Invalid model. Node input 'nm' is not there")

    monkeypatch.setattr(sessions, "_create", create)
    ran = (Optimizer("ConstantFolding", "basic", changed=True),)
    monkeypatch.setattr(optimizers, "optimizers_of", lambda *_, **__: ran)
    given = [tmp_path / "m.onnx", "--provider", "cpu"]
    first = report_of(capsys, "diff", *given, "--against", "unoptimized")["conclusion"][0]
    assert first.startswith("at optimization=all, this model runs without ConstantFolding only")
    assert "Node input 'nm' is not there" in first
    few = ["--optimization", "none,all", "--processes", 1, "--repeat", 2, "--budget", 0.1]
    told = report_of(capsys, "bench", *given, *few)
    assert "optimization=all fails, and is timed as it runs" in told["conclusion"][0]
    timed = [row["candidate"] for row in tables_of(told)["Latency"][0]]
    assert timed == ["optimization=none", "optimization=all without ConstantFolding"]
