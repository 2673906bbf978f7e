"""Tests of ortmeter.cli.diff: it tries other inputs than those of one seed."""

import numpy as np
import onnxruntime
import pytest
from commands import run, save, tables_of

from ortmeter.runtime.feeds import random_feeds


def diff(capsys, *arguments):
    budget = [] if "--search-budget" in arguments else ["--search-budget", "400"]
    return run(capsys, "diff", *arguments, *budget)[:2]


def source(report):
    return tables_of(report)["Inputs"][0][0]["from"]


@pytest.fixture
def wrapping(tmp_path):
    """Two models that differ on -128 alone, whose absolute value is no int8."""
    bodies = {"wide": "A = Cast<to = 1>(X) Y = Abs(A)", "narrow": "A = Abs(X) Y = Cast<to = 1>(A)"}
    return [
        save(tmp_path / f"{name}.onnx", f"(int8[4] X) => (float[4] Y) {{ {body} }}")
        for name, body in bodies.items()
    ]


def test_an_edge_of_8_bits_that_no_seed_draws(wrapping, capsys):
    drawn = [np.random.default_rng(seed).integers(-128, 128, 4) for seed in range(6)]
    assert not any((array == -128).any() for array in drawn)
    code, report = diff(capsys, *wrapping, "--atol", "1")
    assert code == 1
    assert "the smallest of 8 bits differ the most" in report["conclusion"][0]
    assert source(report) == "random, the smallest of 8 bits"
    assert "largest error 256" in report["conclusion"][1]  # 128 and -128


def test_another_seed(tmp_path, capsys):
    first, *others = [int(np.random.default_rng(seed).integers(10, size=1)[0]) for seed in range(6)]
    seed, value = next((s, v) for s, v in enumerate(others, 1) if v != first)
    signature = f"(int64[1] X) => (int64[1] Y) <int64 k = {{{value}}}, int64 z = {{1000}}>"
    one = save(tmp_path / "one.onnx", f"{signature} {{ Y = Identity(X) }}")
    two = save(tmp_path / "two.onnx", f"{signature} {{ E = Equal(X, k) Y = Where(E, z, X) }}")
    _, report = diff(capsys, one, two)
    assert source(report) == f"random, seed {seed}"
    assert f"seed {seed} differ the most" in report["conclusion"][0]


def test_inputs_that_are_no_worse_are_told(tmp_path, capsys):
    model = save(tmp_path / "tanh.onnx", "(float[64] X) => (float[64] Y) { Y = Tanh(X) }")
    _, report = diff(capsys, model)
    (told,) = [text for text in report["conclusion"] if "other random inputs" in text]
    assert told.endswith("zeros, 100 times larger and 5 other seeds.")
    assert source(report) == "random, seed 0"


@pytest.mark.parametrize("given", [["--value", "X=1,2,3,4"], ["--search-budget", "0"]])
def test_inputs_that_are_given_stay(wrapping, capsys, given):
    _, report = diff(capsys, *wrapping, *given)
    assert "no difference" in report["conclusion"][0]
    assert not any("random inputs" in text for text in report["conclusion"])


def test_inputs_on_which_a_model_fails_are_passed_over(tmp_path, capsys):
    """Zeros are no shape of three elements."""
    text = """(float[1] N, float[3] X) => (float[s] Y) {
        A = Abs(N) O = Div(A, A) I = Cast<to = 7>(O) T = Constant<value_ints = [3]>()
        S = Mul(I, T) R = Reshape(X, S) Y = Abs(R) }"""
    model = save(tmp_path / "m.onnx", text)
    code, report = diff(capsys, model, "--against", "reference")
    assert code == 0
    assert not any("zeros" in text for text in report["conclusion"])


def test_a_softmax_of_8_bits_that_wraps_for_two_seeds_of_six(tmp_path, capsys):
    """ONNX Runtime fuses it into QLinearSoftmax, which does not saturate (1.31.1)."""
    text = """(int8[1, 2] X) => (int8[1, 2] Y)
        <float s = {0.04}, int8 z = {0}, float t = {0.0033333334}, int8 u = {-128}> {
        D = DequantizeLinear(X, s, z) P = Softmax(D) Y = QuantizeLinear(P, t, u) }"""
    model = save(tmp_path / "softmax.onnx", text)

    def wrapped(x):
        e = np.exp(0.04 * x.astype(np.float64))
        exact = np.clip(300 * e / e.sum() - 128, -128, 127)
        (y,) = onnxruntime.InferenceSession(model).run(None, {"X": x})
        return bool((np.abs(y - exact) > 1).any())

    seeds = [random_feeds(model, seed=seed)["X"] for seed in range(6)]
    if not any(map(wrapped, seeds)):
        pytest.skip("this release of onnxruntime saturates")
    assert [wrapped(x) for x in seeds] == [False, True, False, False, False, True]
    _, report = diff(capsys, model, "--against", "unoptimized")
    assert source(report) == "random, the smallest of 8 bits"
    assert any("QDQSelectorActionTransformer" in text for text in report["conclusion"])
