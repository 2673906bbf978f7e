"""Softmax, normalizations and losses."""

import ml_dtypes
import numpy as np
import pytest
from kernel_checks import (
    assert_agrees,
    assert_same,
    case,
    run_kernel,
    run_ort,
    run_reference,
)

RNG = np.random.default_rng(0)


def floats(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


X = floats(2, 3, 4)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 11, 12, 13])
def test_softmax_before_and_after_opset_13(op_type, opset):
    assert_agrees(case(op_type, opset, X.round()), run_ort)  # with equals
    for axis in (0, 1, 2):
        assert_agrees(case(op_type, opset, X, axis=axis), run_ort)
    if opset >= 11:
        assert_agrees(case(op_type, opset, X, axis=-1), run_ort)


HALVES = ["float16", "bfloat16"]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def normalized(x, axis, epsilon=1e-5):
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    deviation = 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (x - mean) * deviation, mean, deviation


@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES])
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization_and_its_statistics(axis, dtype):
    x = (X * 3 + 20).astype(dtype_of(dtype))
    scale, bias = floats(*X.shape[axis:]).astype(x.dtype), floats(*X.shape[axis:]).astype(x.dtype)
    called = case("LayerNormalization", 17, x, scale, bias, n_outputs=3, axis=axis)
    y, mean, deviation = normalized(x.astype("f8"), axis)
    y = (y * scale.astype("f8") + bias.astype("f8")).astype(x.dtype)
    # Statistics are computed, and given, in float32: 20 has one digit after the point in bfloat16.
    got = run_kernel(called)
    assert_same([y], got[:1], tolerance={"float32": 1e-4, "float64": 1e-9}.get(dtype, 2e-2))
    assert_same([mean.astype("f4"), deviation.astype("f4")], got[1:], tolerance=1e-5)


def test_layer_normalization_of_one_row_is_as_exact_as_its_type():
    """A mean in float16 would lose 1 of 2048: the sums are in float32."""
    x = (np.arange(64) % 2 + 2048).astype(np.float16)[None] * np.float16(1)
    x[:, ::2] -= np.float16(4)
    (got,) = run_kernel(case("LayerNormalization", 17, x, np.ones(64, np.float16)))
    expected = normalized(x.astype("f8"), -1)[0]
    np.testing.assert_allclose(got.astype("f8"), expected, rtol=1e-3)


NORMALIZATIONS = [
    case("LayerNormalization", 17, X, floats(4), floats(1), axis=1),  # broadcast scale
    case("InstanceNormalization", 6, X, floats(3), floats(3)),
    case("MeanVarianceNormalization", 9, floats(2, 3, 4, 5), axes=[0, 1]),
    case("LpNormalization", 1, X, axis=1, p=2),
]


BATCH = [floats(2, 3, 4, 5), floats(3), floats(3), floats(3), np.abs(floats(3))]


@pytest.mark.parametrize("case", NORMALIZATIONS, ids=str)
def test_normalizations(case):
    assert_agrees(case, run_reference)


@pytest.mark.parametrize(
    "case",
    [
        case("LpNormalization", 1, X, axis=1, p=1),
        case("LRN", 13, floats(2, 5, 4, 3), size=3, alpha=0.5, beta=0.6, bias=2.0),
        *(case("BatchNormalization", opset, *BATCH, epsilon=1e-3) for opset in (7, 9, 14, 15)),
    ],
    ids=str,
)
def test_normalizations_that_onnx_reference_computes_otherwise(case):
    assert_agrees(case, run_ort)


def test_normalization_across_an_even_number_of_channels():
    x = floats(1, 6, 2)
    (got,) = run_kernel(case("LRN", 13, x, size=4))
    squares = x.astype("f8") ** 2
    sums = np.stack([squares[:, max(0, c - 1) : c + 3].sum(1) for c in range(6)], 1)
    np.testing.assert_allclose(got, x / (1 + 1e-4 / 4 * sums) ** 0.75, rtol=1e-6)


def test_batch_normalization_of_halves_by_statistics_in_float32():
    x, scale, bias = (value.astype(np.float16) for value in BATCH[:3])
    exact = [value.astype("f8") for value in (x, scale, bias, *BATCH[3:])]
    (expected,) = run_reference(case("BatchNormalization", 15, *exact))
    got = run_kernel(case("BatchNormalization", 15, x, scale, bias, *BATCH[3:]))
    assert_same([expected.astype(np.float16)], got)
