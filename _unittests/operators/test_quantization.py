"""Quantization."""

import ml_dtypes
import numpy as np
import pytest
from kernel_checks import (
    assert_agrees,
    assert_same,
    case,
    one_node,
    run_kernel,
    run_ort,
    run_reference,
)

from ortmeter.evaluator import Evaluator

RNG = np.random.default_rng(0)


def floats(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


def integers(dtype, low, high, *shape):
    return RNG.integers(low, high, shape).astype(dtype)


BYTES = [("uint8", 0), ("int8", -99), ("uint16", 0), ("int16", -99)]


@pytest.mark.parametrize(("dtype", "low"), BYTES)
def test_quantization_by_tensor_axis_and_block(dtype, low):
    x, stored = floats(3, 5) * 9, integers(dtype, low, 99, 3, 5)
    for scale, zero, options in (
        (np.float32(0.1), np.array(5, dtype), {}),
        (np.float32([0.1, 0.2, 0.3]), integers(dtype, 0, 9, 3), {"axis": 0}),
        (np.abs(floats(5)) + 0.1, integers(dtype, 0, 9, 5), {"axis": -1}),
        (np.abs(floats(3, 3)) + 0.1, integers(dtype, 0, 9, 3, 3), {"axis": 1, "block_size": 2}),
    ):
        for op_type, given in (("QuantizeLinear", x), ("DequantizeLinear", stored)):
            assert_agrees(case(op_type, 21, given, scale, zero, **options), run_reference)


def test_quantization_rounds_to_even_and_saturates():
    x = np.float32([0.5, 1.5, 2.5, -0.5, 1e9, -1e9, 3.5])
    got = run_kernel(case("QuantizeLinear", 13, x, np.float32(1)))
    assert_same([np.uint8([0, 2, 2, 0, 255, 0, 4])], got)


def test_quantization_to_float8():
    x = np.float32([0.1, 449, -1e9, 3.3])
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    (got,) = run_kernel(case("QuantizeLinear", 19, x, np.float32(0.5), zero))
    expected = np.clip(x / 0.5, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert_same([expected], [got], tolerance=0)
    (back,) = run_kernel(case("DequantizeLinear", 19, got, np.float32(0.5), zero))
    np.testing.assert_array_equal(back, expected.astype("f4") * 0.5)


QUANTIZED = [
    case("QuantizeLinear", 10, floats(3, 4) * 9, np.float32(0.1)),
    case("DequantizeLinear", 13, integers("i4", -99, 99, 3, 4), np.float32([0.1, 0.2, 0.3, 0.4])),
    case(
        "ConvInteger",
        10,
        integers("u1", 0, 255, 1, 2, 5, 5),
        integers("u1", 0, 255, 3, 2, 2, 2),
        np.uint8(5),
        np.uint8(9),
        pads=[1, 1, 1, 1],
    ),
    case(
        "QLinearConv",
        10,
        integers("u1", 0, 255, 1, 2, 5, 5),
        np.float32(0.1),
        np.uint8(100),
        integers("u1", 0, 255, 3, 2, 2, 2),
        np.float32([0.1, 0.2, 0.3]),
        np.uint8([90, 100, 110]),
        np.float32(2),
        np.uint8(128),
        integers("i4", -99, 99, 3),
    ),
    case(
        "QLinearMatMul",
        10,
        integers("u1", 0, 255, 3, 4),
        np.float32(0.1),
        np.uint8(9),
        integers("u1", 0, 255, 4, 2),
        np.float32(0.2),
        np.uint8(100),
        np.float32(3),
        np.uint8(110),
    ),
]


@pytest.mark.parametrize("case", QUANTIZED, ids=str)
def test_quantized_products(case):
    assert_agrees(case, run_ort)


def test_a_quantized_convolution_has_a_geometry_in_a_model():
    called = next(one for one in QUANTIZED if one.op_type == "QLinearConv")
    called = case("QLinearConv", 10, *called.inputs, pads=[0, 1, 1, 0], strides=[2, 1])
    model, feeds = one_node(called)
    evaluator = Evaluator(model, sources=("torch",))
    assert_same(run_ort(called), evaluator.run(None, feeds))
    assert evaluator.assignment["source"].tolist() == ["torch"]
