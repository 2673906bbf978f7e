"""Outputs in float64, operations, and the range of the results."""

import numpy as np
import pytest

from ortmeter.attribution.ranges import run_float64

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


def test_float32_is_exceeded():
    model = f"{HEAD} (float[1] X) => (float[1] Y) {{ Y = Mul(X, X) }}"
    found = run_float64(model, {"X": np.float32([1e30])})
    assert found.outputs[0] == pytest.approx(1e60)
