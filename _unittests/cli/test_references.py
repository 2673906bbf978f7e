"""Candidates that do not compute the same; the right values are those of NumPy in float64."""

import numpy as np
import onnx
import pytest
from cli_runs import HEADER

from ortmeter.cli.references import compare, tell_differences
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec, model_variants

MEAN = f"""{HEADER} g (float[1, 64] X) => (float[1] Y) <float n = {{64}}> {{
S = ReduceSum <keepdims = 0> (X, axes) Y = Div (S, n) }}"""
X = np.linspace(0, 1, 64, dtype=np.float32)[None]


def model(scale="64"):
    proto = onnx.parser.parse_model(MEAN.replace("{64}", f"{{{scale}}}"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    return proto


def told(models, **settings):
    return list(tell_differences(model_variants(models, {"X": X}, provider="cpu", **settings)))


def test_candidates_that_agree_say_nothing():
    assert told({"a": model(), "b": model()}) == []
    assert told({"a": model()}, threads=[1, 2]) == []
    assert told({"a": model()}, optimization=["none", "all"]) == []


@pytest.mark.parametrize(
    ("scale", "size"),
    [
        ("32", ["100% of the largest value", "1 times the largest value"]),
        ("16", ["3 times the largest value"]),
        ("0", ["1 mismatched inf"]),
    ],
)
def test_the_size_of_a_difference_is_said(scale, size):
    (text,) = told({"a": model(), "b": model(scale)})
    assert text.startswith("b does not compute what a does: Y differs by ")
    assert any(part in text for part in size)
    assert "float64" not in text  # of which of the two models?


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
