"""Tests of the kernels that work element by element, and of the conversion of types."""

import math

import ml_dtypes
import numpy as np
import onnx
import pytest
import scipy.special
from kernel_checks import (
    assert_agrees,
    assert_same,
    case,
    run_kernel,
    run_ort,
    run_reference,
    widen,
)

from ortmeter.errors import RefusedError

RNG = np.random.default_rng(0)


SIGNED = ["int8", "int16", "int32", "int64"]


UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]


FLOATS = ["float16", "float32", "float64"]


EDGES = [-math.inf, -3, -1.5, -0.5, -0.0, 0.0, 0.5, 1, 2.5, 30, math.inf, math.nan]


def numbers(dtype, *shape):
    low = 0 if dtype.startswith("u") else -9
    return RNG.integers(low, 9, shape).astype(dtype)


def divisors(dtype, *shape):
    signs = 1 if dtype.startswith("u") else RNG.choice([-1, 1], shape)
    return (RNG.integers(1, 9, shape) * signs).astype(dtype)


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8", *FLOATS])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "Less"])
def test_binary(op_type, dtype):
    assert_agrees(case(op_type, 19, numbers(dtype, 2, 3, 4), numbers(dtype, 3, 1)), run_reference)


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8", *FLOATS])
def test_division_truncates_integers(dtype):
    x, y = numbers(dtype, 2, 3, 4), divisors(dtype, 3, 1)
    expected = np.trunc(x.astype("f8") / y.astype("f8")) if dtype not in FLOATS else x / y
    assert_same([expected.astype(dtype)], run_kernel(case("Div", 14, x, y)))


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_smallest_integer_by_minus_one_does_not_end_the_process(dtype):
    smallest = np.iinfo(dtype).min
    x, y = np.array([smallest, smallest, 7], dtype), np.array([-1, 2, -1], dtype)
    assert_same([np.array([smallest, smallest // 2, -7], dtype)], run_kernel(case("Div", 14, x, y)))
    assert_same([np.array([0, 0, 0], dtype)], run_kernel(case("Mod", 13, x, y)))


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8"])
def test_modulo_has_the_sign_of_the_divisor_or_of_the_dividend(dtype):
    x, y = numbers(dtype, 5, 4), divisors(dtype, 4)
    assert_same([np.mod(x, y)], run_kernel(case("Mod", 13, x, y)))
    assert_same([np.fmod(x, y)], run_kernel(case("Mod", 13, x, y, fmod=1)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_modulo_of_floats_at_zeros_and_infinities(dtype):
    x, y = np.array(EDGES, dtype)[:, None], np.array([-math.inf, -2, 0.0, 2, math.inf], dtype)
    got = run_kernel(case("Mod", 28, x, y))
    with np.errstate(all="ignore"):
        expected = np.mod(x, y)
    assert_same([expected], got)
    numeric = np.isfinite(expected)
    np.testing.assert_array_equal(np.signbit(got[0])[numeric], np.signbit(expected)[numeric])


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        ("float32", "int64"),
        ("float32", "float64"),
        ("float16", "float32"),
        ("int64", "float32"),
        ("float32", "uint64"),
    ],
)
def test_power_has_the_type_of_its_base(base, exponent):
    x, y = np.array([1, 2, 3], base), np.array([0, 1, 3], exponent)
    assert_agrees(case("Pow", 15, x, y), run_reference)
    # A scalar exponent does not lower the precision, nor does a scalar base.
    assert_agrees(case("Pow", 15, np.array(3, base), y), run_reference)


NUMPY = "Abs Ceil Cos Cosh Exp Floor Log Sign Sin Sinh Sqrt Tan Tanh"
FUNCTIONS = {name: getattr(np, name.lower()) for name in NUMPY.split()}
INVERSES = ("cos", "cosh", "sin", "sinh", "tan", "tanh")
FUNCTIONS |= {f"A{name}": getattr(np, f"arc{name}") for name in INVERSES}
FUNCTIONS |= {
    "Erf": scipy.special.erf,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint,
    "Sigmoid": scipy.special.expit,
    "Softplus": lambda x: np.logaddexp(0, x),
}


@pytest.mark.parametrize("dtype", [*FLOATS, "bfloat16"])
@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_functions_against_float64(op_type, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.array(EDGES, dtype)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[op_type](x.astype("f8")).astype(dtype)
    assert_same([expected], run_kernel(case(op_type, 22, x)))


def test_softplus_keeps_the_digits_of_float64():
    x = np.linspace(15, 50, 101)
    np.testing.assert_array_max_ulp(run_kernel(case("Softplus", 1, x))[0], np.logaddexp(0, x), 1)


def test_round_is_to_even_and_zeros_keep_their_sign():
    x = np.float32([0.5, 1.5, -0.5, -2.5, -0.2])
    (got,) = run_kernel(case("Round", 11, x))
    np.testing.assert_array_equal(got, [0, 2, 0, -2, 0])
    np.testing.assert_array_equal(np.signbit(got), [False, False, True, True, True])


X = RNG.standard_normal((3, 4)).astype("f4")


ACTIVATIONS = [
    case("Clip", 6, X, min=-0.5, max=0.25),
    case("Mean", 8, X, X[:1], X[:, :1]),
]


@pytest.mark.parametrize("case", ACTIVATIONS, ids=str)
def test_activations_and_selections(case):
    assert_agrees(case, run_ort)


def test_a_threshold_lets_nothing_undefined_through():
    assert run_kernel(case("ThresholdedRelu", 10, np.float32([np.nan])))[0][0] == 0


CASTS = [*SIGNED, *UNSIGNED, *FLOATS, "bool"]


@pytest.mark.parametrize("target", CASTS)
@pytest.mark.parametrize("source", CASTS)
def test_casts(source, target):
    x = np.array([0, 1, 2, 100, 3]).astype(source)
    if (source, target) == ("float64", "float16"):
        return
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    assert_same([x.astype(target)], run_kernel(case("Cast", 13, x, to=to)))


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e5m2", "float8_e8m0fnu"])
def test_what_torch_would_round_twice_or_otherwise_is_refused(target):
    """From float64 it rounds to float32 first; onnx.reference rounds once, and knows float8."""
    dtype = np.dtype("float16") if target == "float16" else np.dtype(getattr(ml_dtypes, target))
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    with pytest.raises(RefusedError, match=f"to torch.{target}; accepted: floats of 16 bits or m"):
        run_kernel(case("Cast", 24, np.float64([1]), to=to))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"])
def test_float8_is_widened(name):
    x = np.arange(2**8, dtype=np.uint8).view(getattr(ml_dtypes, name))
    got = run_kernel(case("Cast", 19, x, to=onnx.TensorProto.FLOAT))
    assert_same([widen(x).astype("f4")], got, tolerance=0)
