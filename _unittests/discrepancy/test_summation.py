"""Tests of ortmeter.discrepancy.summation."""

import math

import ml_dtypes
import numpy as np
import pytest

from ortmeter.discrepancy.summation import orders
from ortmeter.errors import InvalidArgumentError


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


def test_refused_terms():
    with pytest.raises(InvalidArgumentError, match="finite"):
        orders([1.0, math.nan], 2, None)
