"""Outputs in float64, operations, and the range of the results."""

import numpy as np
import pytest

from ortmeter.attribution.ranges import Overflow, find_overflow, run_float64

HEAD = '<ir_version: 10, opset_import: ["": 21]> g'
DENSE = (
    f"{HEAD} (float[m, 3] X, float[3, 2] W) => (float[m, 2] Z) {{ Y = MatMul(X, W) Z = Neg(Y) }}"
)
FEEDS = {"X": np.float32([[1, 2, 3]]), "W": np.float32([[1, 0], [0, -5], [1, 0]])}


def test_a_run_in_float64():
    found = run_float64(DENSE, FEEDS)
    assert found.outputs[0].dtype == np.float64
    assert found.outputs[0].tolist() == [[-4.0, 10.0]]
    assert found.flop == 2 * 3 * 2 + 2
    assert list(found.ranges.items()) == [
        ("X", ("input", 3.0)),
        ("W", ("input", 5.0)),
        ("Y", ("MatMul", 10.0)),
        ("Z", ("Neg", 10.0)),
    ]
    assert found.largest == 10


def test_float32_is_exceeded():
    model = f"{HEAD} (float[1] X) => (float[1] Y) {{ Y = Mul(X, X) }}"
    found = run_float64(model, {"X": np.float32([1e30])})
    assert found.outputs[0] == pytest.approx(1e60)


@pytest.mark.parametrize(
    ("body", "value", "dtype", "expected"),
    [
        ("Y = Mul(X, X)", 1, "float16", Overflow(256.0, "Mul", "Y")),
        ("Y = Mul(X, X)", 300, "float16", Overflow(1.0, "Mul", "Y")),
        ("Y = Neg(X)", 1, "float16", Overflow(65536.0, "input", "X")),
        ("A = Mul(X, X) Y = Sqrt(A)", 1, "bfloat16", Overflow(None)),
        ("Y = Tanh(X)", 0, "float16", Overflow(None)),
    ],
)
def test_the_first_overflow(body, value, dtype, expected):
    model = f"{HEAD} (float[1] X) => (float[1] Y) {{ {body} }}"
    assert find_overflow(model, {"X": np.float32([value])}, dtype) == expected


def test_numbers_that_round_to_the_largest_do_not_overflow():
    model = f"{HEAD} (float[1] X) => (float[1] Y) {{ Y = Neg(X) }}"
    assert find_overflow(model, {"X": np.float32([65519])}).factor == 2
    assert find_overflow(model, {"X": np.float32([65520])}).factor == 1
    with np.errstate(over="ignore"):
        assert np.float32([65519, 65520]).astype(np.float16).tolist() == [65504, np.inf]


def test_integers_are_not_multiplied():
    model = f"{HEAD} (float[1] X, int64[1] I) => (float[1] Y) {{ Y = Gather(X, I) }}"
    feeds = {"X": np.float32([1]), "I": np.int64([0])}
    assert find_overflow(model, feeds).operator == "input"
