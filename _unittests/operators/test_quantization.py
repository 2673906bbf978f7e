"""Quantization."""

import ml_dtypes
import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from kernel_checks import (
    assert_agrees,
    assert_same,
    case,
    run_kernel,
    run_ort,
    run_reference,
)

from ortmeter.errors import RefusedError
from ortmeter.evaluator import Evaluator, to_float64
from ortmeter.evaluator.float64 import exact_feeds

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


def test_quantization_to_float8_is_that_of_the_reference():
    x, zero = np.float32([0.1, 449, -1e9, 3.3]), np.zeros((), ml_dtypes.float8_e4m3fn)
    called = case("QuantizeLinear", 19, x, np.float32(0.5), zero)
    with pytest.raises(RefusedError, match="to torch.float8_e4m3fn; accepted: integers of 8 and"):
        run_kernel(called)
    (got,) = run_reference(called)
    (back,) = run_kernel(case("DequantizeLinear", 19, got, np.float32(0.5), zero))
    np.testing.assert_array_equal(back, got.astype("f4") * 0.5)


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
]


@pytest.mark.parametrize("case", QUANTIZED, ids=str)
def test_quantized_products(case):
    assert_agrees(case, run_ort)


def pack(codes, bits):
    """Pack rows of codes into bytes, the lowest bits first, one by one."""
    per_byte = 8 // bits
    rows = np.zeros((len(codes), -(-codes.shape[1] // per_byte)), np.uint8)
    for (row, place), code in np.ndenumerate(codes):
        rows[row, place // per_byte] |= np.uint8(code << bits * (place % per_byte))
    return rows


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("size", "zeros", "more"),
    [
        (16, None, ()),
        (32, "packed", ()),
        (32, "floats", ()),
        (16, "packed", ("bias",)),
        (16, None, ("bias", "groups")),
        (16, "packed", ("groups",)),
    ],
)
@pytest.mark.parametrize("k", [64, 40])
def test_a_product_of_few_bits_is_that_of_numpy_and_of_onnxruntime(bits, size, zeros, more, k):
    n, blocks = 6, -(-k // size)
    rng = np.random.default_rng(k + bits)
    codes = rng.integers(0, 2**bits, (n, blocks * size))
    middle = rng.integers(0, 2**bits, (n, blocks))
    scales = (rng.random((n, blocks)) + 0.5).astype("f4")
    x, bias = (rng.standard_normal(shape).astype("f4") for shape in ((3, k), n))
    group = rng.permutation(np.arange(k) // size).astype("i4")
    stored = {None: None, "packed": pack(middle, bits), "floats": middle.astype("f4")}[zeros]
    bias = bias if "bias" in more else None
    group = group if "groups" in more else None
    packed = pack(codes, bits).reshape((n, blocks, -1))
    inputs = {"a": x, "b": packed, "s": scales, "z": stored, "g": group, "c": bias}
    weights = np.empty((k, n))
    for row in range(n):
        for i in range(k):
            block = i // size if group is None else group[i]
            zero = 2 ** (bits - 1) if zeros is None else middle[row, block]
            weights[i, row] = (codes[row, i] - float(zero)) * float(scales[row, block])
    expected = x.astype("f8") @ weights + (0 if bias is None else bias)
    given = {name: array for name, array in inputs.items() if array is not None}
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[m, {k}] a) => (float[m, {n}] y) {{ y = com.microsoft.MatMulNBits
        <K = {k}, N = {n}, bits = {bits}, block_size = {size}, accuracy_level = 1>
        ({", ".join(name if name in given else "" for name in inputs).rstrip(", ")}) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in given.items() if name != "a"
    )
    double = to_float64(model)
    (got,) = Evaluator(double).run(None, exact_feeds(model, double, {"a": x}))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    (single,) = Evaluator(model, sources=("reference",)).run(None, {"a": x})
    assert single.dtype == np.float32
    # ONNX Runtime 1.31.1 has no kernel, or differs where groups are those without any.
    if bits == 8 and (zeros == "floats" or "groups" in more):
        return
    if "groups" in more and (bits == 2 or zeros == "packed"):
        return
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (there,) = session.run(None, {"a": x})
    np.testing.assert_allclose(there, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
