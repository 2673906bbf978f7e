"""Tests of ortmeter.discrepancy.summation."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmeter.discrepancy.summation import exact_sum, orders
from ortmeter.errors import InvalidArgumentError


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
    narrow = np.arange(4).astype(ml_dtypes.bfloat16)
    assert [orders(narrow, count, None).shape for count in (1, 2)] == [(1, 4), (2, 4)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_sum([1.0, math.nan]), "finite"),
        (lambda: exact_sum([1.7e308, 1.7e308]), "overflows float64"),
    ],
)
def test_refused_arguments(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()
