"""Tests of ortmeter.discrepancy.bounds."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from ortmeter.discrepancy.bounds import matmul_error_bound
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.errors import InvalidArgumentError

SHAPES = [(1, 1, 1), (2, 3, 4), (7, 64, 5), (3, 1000, 2), (16, 257, 16), (2, 0, 3)]


def operands(shape, dtype, seed=0):
    """Draw numbers of very different magnitudes and of both signs."""
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)) * 2.0 ** rng.integers(-4, 5, (m, k))
    b = rng.standard_normal((k, n)) * 2.0 ** rng.integers(-4, 5, (k, n))
    return a.astype(numpy_dtype(dtype)), b.astype(numpy_dtype(dtype))


def exact_error(got, a, b):
    """Compute |got - a @ b| in extended precision, exact enough for operands of 32 bits or less."""
    product = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return np.abs(got.astype(np.longdouble) - product)


def sequential(a, b, dtype):
    """Multiply with every operation rounded to a type, term after term: the worst order."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total = (total + (a[:, k, None] * b[k]).astype(dtype)).astype(dtype)
    return total


def truncate(x, bits):
    """Drop the last bits of float32 numbers."""
    return (np.float32(x).view(np.uint32) >> bits << bits).view(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_float32(shape, seed):
    a, b = operands(shape, "float32", seed)
    bound = matmul_error_bound(a, b, dtype="float32")
    assert bound.dtype == np.float64
    for got in (a @ b, sequential(a, b, np.float32)):
        assert (exact_error(got, a, b) <= bound).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_with_a_float32_accumulator(shape, dtype):
    a, b = operands(shape, dtype)
    total = sequential(a.astype(np.float32), b.astype(np.float32), np.float32)
    got = total.astype(numpy_dtype(dtype))
    assert (exact_error(got, a, b) <= matmul_error_bound(a, b, dtype=dtype)).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float16_accumulator(shape):
    a, b = operands(shape, "float16")
    error = exact_error(sequential(a, b, np.float16), a, b)
    assert (error <= matmul_error_bound(a, b, dtype="f16", accumulate="f16")).all()
    if shape[1] > 200:  # a narrower accumulator than the one announced is seen
        assert (error > matmul_error_bound(a, b, dtype="f16", accumulate="f32")).any()


@pytest.mark.parametrize("k", [1, 10, 100])
def test_float64_against_rational_numbers(k):
    a, b = operands((3, k, 2), "float64")
    bound = matmul_error_bound(a, b, dtype="float64", accumulate="float64")
    for i, j in np.ndindex(bound.shape):
        exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True))
        assert abs(Fraction((a @ b)[i, j]) - exact) <= bound[i, j]


def test_truncated_accumulator_of_tensor_cores():
    """Positive terms make every truncation go the same way."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.5, 1, (4, 500)).astype(np.float16).astype(np.float32)
    b = rng.uniform(0.5, 1, (500, 4)).astype(np.float16).astype(np.float32)
    total = np.zeros((4, 4), np.float32)
    for k in range(500):
        exact = total.astype(np.float64) + a[:, k, None].astype(np.float64) * b[k]
        rounded = exact.astype(np.float32)
        total = np.where(rounded > exact, np.nextafter(rounded, np.float32(0)), rounded)
    a, b = a.astype(np.float16), b.astype(np.float16)
    assert (exact_error(total, a, b) <= matmul_error_bound(a, b, dtype="float32")).all()


@pytest.mark.parametrize("k", [1, 16, 500])
def test_tf32(k):
    """Operands cut to 10 bits are seen, and accepted only when TF32 is announced."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, (8, k)).astype(np.float32)
    b = rng.uniform(1, 2, (k, 8)).astype(np.float32)
    error = exact_error(truncate(a, 13) @ truncate(b, 13), a, b)
    assert (error <= matmul_error_bound(a, b, dtype="float32", tf32=True)).all()
    assert (error > matmul_error_bound(a, b, dtype="float32")).mean() > 0.9


def test_tf32_does_not_concern_other_types():
    for dtype in ("float16", "float64"):
        a, b = operands((3, 4, 5), dtype)
        options = {"dtype": dtype, "accumulate": "float64"}
        with_tf32 = matmul_error_bound(a, b, tf32=True, **options)
        np.testing.assert_array_equal(with_tf32, matmul_error_bound(a, b, **options))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_wrong_element_is_seen(dtype):
    a, b = operands((8, 64, 8), dtype)
    got = a.astype(np.float32) @ b.astype(np.float32)
    bound = matmul_error_bound(a, b, dtype=dtype)
    got[2, 3] += 2.5 * bound[2, 3]
    wrong = exact_error(got.astype(numpy_dtype(dtype)), a, b) > bound
    np.testing.assert_array_equal(np.argwhere(wrong), [[2, 3]])


def test_a_missing_term_is_seen():
    a, b = operands((8, 64, 8), "float32")
    assert (exact_error(a[:, 1:] @ b[1:], a, b) > matmul_error_bound(a, b, dtype="f32")).all()


def test_formula():
    """The bound is its first order, up to terms of the second order."""
    a, b = operands((4, 32, 4), "float32")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    magnitude, result = np.abs(wide_a) @ np.abs(wide_b), np.abs(wide_a @ wide_b)
    u = 2.0**-24
    plain = 32 * u * magnitude + u * result
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32"), plain, rtol=1e-4)
    tf32 = (2 * 2.0**-10 + 2 * 32 * u) * magnitude + u * result
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32", tf32=True), tf32, rtol=2e-3)


def test_formula_for_tensor_cores():
    """Truncation doubles the roundoff of the accumulator, and takes over when K is large."""
    a, b = operands((4, 4096, 4), "float16")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    u = 2.0**-24
    plain = 2 * 4096 * u * (np.abs(wide_a) @ np.abs(wide_b)) + u * np.abs(wide_a @ wide_b)
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32"), plain, rtol=1e-3)


def test_no_digit_is_promised_when_the_accumulator_is_too_narrow():
    a = np.ones((1, 4096), np.float16)
    bound = matmul_error_bound(a, a.T, dtype="float32", accumulate="float16")
    assert 4096 < bound[0, 0] < np.inf
    assert sequential(a, a.T, np.float16)[0, 0] == 2048  # half of the sum is lost
    longest = np.ones((1, 100_000), numpy_dtype("bfloat16"))
    assert 1e5 < matmul_error_bound(longest, longest.T, dtype="bf16", accumulate="bf16") < np.inf


def test_underflow_is_covered():
    a = np.full((1, 3), 2.0**-20, np.float16)
    got = (a.astype(np.float32) @ a.T.astype(np.float32)).astype(np.float16)
    assert got == 0
    assert exact_error(got, a, a.T) <= matmul_error_bound(a, a.T, dtype="float16")


def test_underflow_of_the_accumulator_is_covered():
    a = np.full((1, 64), 2.0**-13, np.float16)  # every product is a quarter of the least number
    got = sequential(a, a.T, np.float16)
    assert got == 0
    bound = matmul_error_bound(a, a.T, dtype="float16", accumulate="float16")
    assert exact_error(got, a, a.T) <= bound


def test_shapes_and_libraries():
    a, b = torch.ones(5, 1, 2, 3, dtype=torch.bfloat16), torch.ones(4, 3, 6, dtype=torch.bfloat16)
    assert matmul_error_bound(a, b, dtype=torch.float32).shape == (5, 4, 2, 6)
    ones = np.ones(3, np.float32)
    assert matmul_error_bound(ones, ones, dtype="float32").shape == ()


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), {}, "accumulate='float64' or more precise"),
        (np.ones((2, 3), "f4"), np.ones((3, 2), "f2"), {}, "one type is expected"),
        (np.ones((2, 3), "i4"), np.ones((3, 2), "i4"), {}, "is not a real floating-point type"),
        (np.ones((2, 3), "f4"), np.ones((3, 2), "f4"), {"accumulate": "bf16"}, "float32"),
        (
            np.ones((2, 3), "f4"),
            np.ones((3, 2), "f4"),
            {"dtype": "int8"},
            "is not a real floating-point type",
        ),
        (np.ones((2, 3), "f4"), np.ones((2, 3), "f4"), {}, "cannot be multiplied"),
        (np.ones((2, 2, 3), "f4"), np.ones((3, 3, 2), "f4"), {}, "cannot be multiplied"),
        (np.float32(1), np.float32(1), {}, "cannot be multiplied"),
        (np.float32([np.inf]), np.float32([1]), {}, "finite"),
        (np.array([np.nan], ml_dtypes.bfloat16), np.ones(1, ml_dtypes.bfloat16), {}, "finite"),
    ],
)
def test_refused_arguments(a, b, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        matmul_error_bound(a, b, **{"dtype": "float32"} | options)


def test_the_roundoff_of_the_result_counts():
    a, b = operands((2, 2, 2), "float32")
    difference = matmul_error_bound(a, b, dtype="f16") - matmul_error_bound(a, b, dtype="f32")
    expected = unit_roundoff("f16") * np.abs(a.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_allclose(difference, expected, rtol=1e-2)
