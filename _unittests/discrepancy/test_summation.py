"""Tests of ortmeter.discrepancy.summation."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmeter.discrepancy.summation import SUMMATIONS, exact_sum, orders, simulated_sum
from ortmeter.errors import InvalidArgumentError

# Types whose sums of two terms are rounded the same through float64, and float64 itself.
DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
SIZES = [1, 2, 3, 8, 17, 100, 256, 257, 700]


def draw(n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * 2.0 ** rng.integers(-4, 5, n)).astype(DTYPES[dtype])


def add(a, b, dtype):
    """Add two numbers, with one rounding to a type."""
    return float(DTYPES[dtype](a + b))


def naive(terms, dtype):
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term, dtype)
    return total


def pairwise(terms, dtype):
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [add(*pair, dtype) if len(pair) == 2 else pair[0] for pair in pairs]
    return terms[0]


def blocked(terms, dtype):
    return pairwise([naive(terms[i::256], dtype) for i in range(min(256, len(terms)))], dtype)


def kahan(terms, dtype):
    total = error = 0.0
    for term in terms:
        corrected = add(term, error, dtype)
        previous, total = total, add(total, corrected, dtype)
        error = add(add(previous, -total, dtype), corrected, dtype)
    return total


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_addition_is_rounded_in_the_order_announced(n, dtype):
    values = draw(n, dtype)
    terms = values.astype(np.float64).tolist()
    expected = {
        "naive": naive(terms, dtype),
        "blocked": blocked(terms, dtype),
        "pairwise": pairwise(terms, dtype),
        "kahan": kahan(terms, dtype),
        "exact": float(DTYPES[dtype](math.fsum(terms))),
    }
    assert tuple(expected) == SUMMATIONS
    for name, value in expected.items():
        got = simulated_sum(values, name)
        assert got.dtype == values.dtype
        assert got.shape == ()
        assert float(got) == value, name


def test_the_orders_are_told_apart():
    """The oracles above would see one summation computed as another."""
    values = draw(5000, "float16").reshape(10, 500)
    assert len({str(simulated_sum(values, name).tolist()) for name in SUMMATIONS}) == 5


@pytest.mark.parametrize("summation", SUMMATIONS)
def test_rows_are_summed_apart(summation):
    values = draw(60, "float32").reshape(3, 4, 5)
    got = simulated_sum(values, summation)
    assert got.shape == (3, 4)
    for i, j in np.ndindex(3, 4):
        assert got[i, j] == simulated_sum(values[i, j], summation)


@pytest.mark.parametrize("summation", SUMMATIONS)
def test_no_term_and_no_row(summation):
    assert simulated_sum(np.zeros((2, 0), np.float16), summation).tolist() == [0, 0]
    assert simulated_sum(np.zeros((0, 2), np.float16), summation).shape == (0,)


def test_an_overflow_is_an_infinity_that_depends_on_the_order():
    values = np.float16([60000, 60000, -60000, -60000])
    assert simulated_sum(values, "naive") == np.inf
    assert simulated_sum(values[[0, 2, 1, 3]], "naive") == 0
    assert np.isnan(simulated_sum(values, "pairwise"))  # inf - inf
    assert simulated_sum(values, "exact") == 0
    assert simulated_sum(values[:2], "exact") == np.inf


def test_arrays_of_other_libraries():
    got = simulated_sum(torch.ones(5, dtype=torch.bfloat16), "naive")
    assert (got, got.dtype) == (5, ml_dtypes.bfloat16)


@given(
    st.lists(st.floats(-1e300, 1e300, allow_subnormal=True), max_size=30),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_the_exact_sum_is_the_rational_one_in_any_order(values, random):
    expected = float(sum(map(Fraction, values)))
    assert exact_sum(values) == expected
    random.shuffle(values)
    assert exact_sum(values) == expected


def test_exact_sums_of_rows():
    values = np.array([[1e16, 1, -1e16], [1, 2, 3]])
    np.testing.assert_array_equal(exact_sum(values), [1, 6])
    assert exact_sum(np.zeros((2, 3, 0))).shape == (2, 3)
    assert exact_sum(np.zeros((0, 3))).shape == (0,)


def test_orders():
    values = np.float16([3, 1, 2, 5, 4])
    found = orders(values, 20, np.random.default_rng(0))
    assert (found.shape, found.dtype) == ((20, 5), np.int64)
    assert values[found[0]].tolist() == [1, 2, 3, 4, 5]
    assert values[found[1]].tolist() == [5, 4, 3, 2, 1]
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(5), (20, 1)))
    assert len(np.unique(found, axis=0)) > 15
    np.testing.assert_array_equal(found, orders(values, 20, np.random.default_rng(0)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_orders(count):
    assert orders(draw(4, "bfloat16"), count, np.random.default_rng(0)).shape == (count, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulated_sum(np.ones(2), "sorted"), "'naive', 'blocked', 'pairwise'"),
        (lambda: simulated_sum(np.ones(2, np.int64), "naive"), "not a real floating-point type"),
        (lambda: simulated_sum(np.float32(1), "naive"), r"shape \(..., n\)"),
        (lambda: simulated_sum(np.float16([1, np.inf]), "naive"), "finite"),
        (lambda: exact_sum([1.0, math.nan]), "finite"),
        (lambda: exact_sum([1.7e308, 1.7e308]), "overflows float64"),
        (lambda: orders(np.ones((2, 2)), 3, np.random.default_rng(0)), "of a vector"),
        (lambda: orders(np.ones(2), 0, np.random.default_rng(0)), "1 or more"),
    ],
)
def test_refused_arguments(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()
