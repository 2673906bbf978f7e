"""Kernels on NaN, infinities, denormals, extremes of types, no element: what no sweep judges."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from kernel_checks import assert_same, case, one_node, run_kernel, run_reference

from ortmeter.errors import RefusedError
from ortmeter.evaluator import Evaluator

RNG = np.random.default_rng(0)
HALF = np.float16
NARROW = [np.dtype(HALF), np.dtype(ml_dtypes.bfloat16)]


def floats(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


def only(called, n=0):
    return run_kernel(called)[n].astype(np.float64)


@pytest.mark.parametrize(
    "called",
    [
        case("Hardmax", 13, floats(4, 0)),
        case("InstanceNormalization", 22, floats(0, 2, 1, 3), floats(2), floats(2)),
        case("LRN", 13, floats(0, 5, 3, 2), size=3),
    ],
    ids=str,
)
def test_nothing_gives_nothing(called):
    assert_same([called.inputs[0]], run_kernel(called))


@pytest.mark.parametrize(
    "called",
    [
        case("AveragePool", 22, floats(1, 1, 1), kernel_shape=[2]),
        case("LpPool", 22, floats(1, 1, 1), kernel_shape=[2]),
        case("AveragePool", 22, floats(1, 1, 5, 2), kernel_shape=[2, 2], dilations=[1, 2]),
    ],
    ids=str,
)
def test_a_window_that_fits_nowhere_goes_to_the_next_source(called):
    with pytest.raises(RefusedError, match="a window inside"):
        run_kernel(called)
    model, feeds = one_node(called)
    got = Evaluator(model, sources=("torch", "reference")).run(None, feeds)
    assert_same(run_reference(called), got)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_error_function_of_small_numbers(dtype):
    x = np.geomspace(1e-7, 1, 64).astype(dtype)
    expected = np.array([math.erf(float(v)) for v in x])
    spacing = np.maximum(expected * float(ml_dtypes.finfo(dtype).eps), 2.0**-24)
    assert (np.abs(only(case("Erf", 13, x)) - expected) <= spacing).all()


def test_squares_of_halves_do_not_overflow():
    x = (floats(2, 6, 3, 2) * 1e4).astype(HALF)
    wide = x.astype("f8")
    padded = np.pad(wide**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    expected = wide / (1 + 1e-4 / 3 * sums) ** 0.75
    np.testing.assert_allclose(only(case("LRN", 13, x, size=3)), expected, rtol=2e-3)
    expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    got = only(case("LpNormalization", 22, x, axis=1))
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6)
    expected = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    got = only(case("MeanVarianceNormalization", 13, x))
    np.testing.assert_allclose(got, expected, rtol=4e-3, atol=2e-3)


def test_the_norm_of_denormals_is_not_rounded():
    tiny = np.full(2, 2**-24, HALF)
    got = only(case("LpNormalization", 22, tiny, axis=0))
    np.testing.assert_allclose(got, [0.5**0.5] * 2, rtol=1e-3)


def test_the_mean_of_extremes_does_not_overflow():
    largest = np.array([65504, -65504], HALF)
    assert_same([largest], run_kernel(case("Mean", 13, *[largest] * 3)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_means_of_infinities(value):
    """As in numpy, which has no other answer for the sum of an infinity and finite numbers."""
    x = floats(2, 3, 4)
    x[0, 1, 2] = value
    layer = case("LayerNormalization", 17, x, np.ones(4, "f4"), n_outputs=3)
    np.testing.assert_allclose(only(layer, 1), x.astype("f8").mean(-1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4"])
def test_means_and_norms_of_integers_whose_sums_overflow(dtype):
    """Python integers and decimals do not."""
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max, (40, 3), dtype, endpoint=True)
    x[0], x[1] = limits.max, limits.min
    means = [int(Fraction(sum(row), len(row))) for row in x.tolist()]  # truncated
    assert_same(
        [np.array(means, dtype)], run_kernel(case("ReduceMean", 18, x, np.int64([1]), keepdims=0))
    )
    x //= 4
    norms = [float(Decimal(sum(v * v for v in row)).sqrt()) for row in x.tolist()]
    (got,) = run_kernel(case("ReduceL2", 18, x, np.int64([1]), keepdims=0))
    np.testing.assert_allclose(got.astype("f8"), norms, rtol=1e-15, atol=1)
