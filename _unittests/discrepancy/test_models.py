"""Tests of ortmeter.discrepancy.models: the outputs of onnx.reference are the expected figures."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import ortmeter
from ortmeter.discrepancy import Tolerance
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.runtime.feeds import shared_feeds

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
TWO = "(float[n] X) => (float[n] Y, float[n] Z)"


def model(signature, body):
    return f"{HEADER} g {signature} {{ {body} }}"


def reference(text, feeds):
    parsed = onnx.parser.parse_model(text)
    return dict(
        zip(
            [output.name for output in parsed.graph.output],
            ReferenceEvaluator(parsed).run(None, feeds),
            strict=True,
        )
    )


@pytest.mark.parametrize("as_path", [False, True])
def test_the_figures_are_those_of_the_reference(tmp_path, as_path):
    half = "C = Constant<value_float = 0.5>()"
    texts = [
        model(TWO, "Y = Abs(X) Z = Neg(X)"),
        model(TWO, f"{half} A = Abs(X) Y = Add(A, C) Z = Mul(X, C)"),
    ]
    feeds = {"X": np.float32([-4, 1, 0, 7])}
    expected, got = (reference(text, feeds) for text in texts)
    if as_path:
        for i, text in enumerate(texts):
            onnx.save(onnx.parser.parse_model(text), tmp_path / f"{i}.onnx")
        texts = [tmp_path / "0.onnx", tmp_path / "1.onnx"]
    found = ortmeter.diff(*texts, feeds, provider="cpu")
    for name, diff in found.outputs.items():
        error = np.abs(got[name].astype(np.float64) - expected[name])
        assert (diff.abs, diff.sum, diff.n) == (error.max(), error.sum(), 4)
        assert diff.worst == (expected[name][error.argmax()], got[name][error.argmax()])
    assert (found.worst, list(found.outputs)) == ("Z", ["Z", "Y"])  # 1.5 times 7, and 0.5
    assert (found.by_name, found.by_rank, found.alone) == (("Y", "Z"), (), ())
    assert found.to_frame()["absolute"].tolist() == [10.5, 0.5]


def test_the_verdict_is_that_of_numpy():
    texts = model(TWO, "Y = Exp(X) Z = Abs(X)"), model(TWO, "A = Exp(X) Y = Mul(A, A) Z = Abs(X)")
    feeds = {"X": np.float32([0, 0.01])}
    expected, got = (reference(text, feeds)["Y"] for text in texts)
    for rtol in (1e-3, 0.009, 0.012):
        found = ortmeter.diff(*texts, feeds, tolerance=Tolerance(rtol=rtol), provider="cpu")
        close = np.allclose(got, expected, rtol=rtol, atol=0)
        assert found.passed == found.verdicts["Y"].passed == close
        assert found.verdicts["Z"]
        (said,) = found.conclusions()
        assert said.startswith("all outputs are within" if close else "beyond the tolerance rtol=")


def test_both_models_read_the_same_inputs_that_are_drawn():
    texts = (
        model("(float[8] A, float[8] B) => (float[8] Y)", "Y = Sub(A, B)"),
        model("(float[8] B, float[8] A) => (float[8] Y)", "Y = Sub(A, B)"),
    )
    found = ortmeter.diff(*texts, tolerance=Tolerance(), provider="cpu")
    assert found.passed
    assert set(found.shared_inputs) == {"A", "B"}
    assert str(found) == (
        "output Y: no difference in 8 values; all outputs are within the tolerance equality"
    )


def test_sizes_and_names_of_each_model():
    texts = (
        model("(float[n] X) => (float[n] Y)", "Y = Abs(X)"),
        model("(float[m] I) => (float[m] O)", "O = Abs(I)"),
    )
    with pytest.raises(FeedError, match="no size for 'n'"):
        ortmeter.diff(*texts)
    feeds = shared_feeds(texts, dims={"n": 3, "m": 3})
    found = ortmeter.diff(*texts, feeds, provider="cpu")
    assert (found.by_rank, found.shared_inputs, list(found.outputs)) == (
        ("Y / O",),
        ("X / I",),
        ["Y / O"],
    )
    other = [feeds[0], {"I": feeds[1]["I"] + 1}]
    assert str(ortmeter.diff(*texts, other, provider="cpu")).endswith("inputs not shared: X")
    with pytest.raises(InvalidArgumentError, match="3 feeds for 2 models"):
        ortmeter.diff(*texts, [*feeds, {}])


def test_the_output_with_the_most_mismatches_is_the_worst():
    expected = {name: np.ones(4, np.float32) for name in "ABC"}
    values = {"A": [np.nan, 1, 1, 9], "B": [np.nan, np.inf, np.inf, 1], "C": [1, 1, np.inf, np.inf]}
    found = compare_outputs(expected, {name: np.float32(row) for name, row in values.items()})
    assert list(found.outputs) == ["B", "C", "A"]


def test_without_a_tolerance_only_what_none_accepts_is_a_difference():
    expected = {"Y": np.float32([1, 2]), "Z": np.float32([1, 2])}
    large, nan, longer = np.float32([9, 2]), np.float32([np.nan, 2]), np.float32([1, 2, 3])
    for got, passed in ((large, True), (nan, False), (longer, False)):
        found = compare_outputs(expected, {"Y": got, "Z": large})
        assert found.passed is passed
        assert passed or found.worst == "Y"  # before Z, whose error is larger
        assert [told.partition(":")[0] for told in found.conclusions()] == (
            [] if passed else ["beyond any tolerance"]
        )


def test_outputs_of_one_model_only():
    one, two = {"Y": np.ones(2)}, {"Y": np.ones(2), "B": np.ones(2)}
    found = compare_outputs(one, two, Tolerance())
    assert not found.passed
    assert found.conclusions() == ["outputs of one model only: B"]
    with pytest.raises(InvalidArgumentError, match="the models have 1 and 2 outputs: A and Y, B"):
        compare_outputs({"A": 1.0}, two)
