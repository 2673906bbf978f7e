"""Tests of ortmeter.discrepancy._pieces."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest

from ortmeter.discrepancy import _pieces, max_diff
from ortmeter.dtypes import numpy_dtype


def without_sums(diff):
    return dataclasses.replace(diff, sum=0, sum_ulp=0)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[::2, ::-1]])
@pytest.mark.parametrize("dtype", ["float32", ">f4", "int64", "bfloat16"])
def test_pieces_do_not_change_the_figures(monkeypatch, view, dtype):
    rng = np.random.default_rng(1)
    dtype = np.dtype(dtype) if dtype.startswith(">") else numpy_dtype(dtype)
    expected = view((rng.standard_normal((31, 17)) * 100).astype(dtype))
    got = view((rng.standard_normal((31, 17)) * 100).astype(dtype))
    if dtype.kind == "f":
        got[::5, 0], got[::5, 1] = math.nan, math.inf
    error = np.abs(expected.astype(np.float64) - got.astype(np.float64))
    whole = max_diff(expected, got)
    assert (whole.n_nan, whole.n_inf) == (np.isnan(error).sum(), np.isinf(error).sum())
    error[~np.isfinite(error)] = 0
    assert whole.abs == error.max()
    assert whole.argmax == np.unravel_index(error.argmax(), error.shape)
    monkeypatch.setattr(_pieces, "_LENGTH", 7)
    monkeypatch.setattr(_pieces, "_LENGTH_WITHOUT_BUFFERS", 7)
    pieces = max_diff(expected, got)
    assert pieces.sum == pytest.approx(whole.sum, rel=1e-12)
    assert pieces.sum_ulp == pytest.approx(whole.sum_ulp, rel=1e-12)
    assert without_sums(pieces) == without_sums(whole)
    monkeypatch.setattr(_pieces, "usable_cores", lambda: 1)
    assert max_diff(expected, got) == pieces  # sums included


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
def test_temporary_memory_is_bounded(monkeypatch, step, dtype):
    expected = np.zeros((1 << 23) * step, dtype)[::step]
    got = np.ones((1 << 23) * step, dtype)[::step]
    monkeypatch.setattr(_pieces, "usable_cores", lambda: 2)
    tracemalloc.start()
    try:
        max_diff(expected, got)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20  # a copy of each side in float64 takes 128 MiB


def test_sums_are_exact_to_the_last_rounding_between_pieces(monkeypatch):
    monkeypatch.setattr(_pieces, "_LENGTH", 1)
    errors = np.array([1.0, 1e100, 1.0, 1e-20] * 10)
    assert max_diff(np.zeros(40), errors).sum == math.fsum(errors)


def test_the_first_of_equal_errors_is_told_whoever_finds_it(monkeypatch):
    monkeypatch.setattr(_pieces, "_LENGTH", 1)
    monkeypatch.setattr(_pieces, "usable_cores", lambda: 3)
    got = np.zeros(40)
    got[5:8] = 1  # found by the third thread, the first one, the second one
    assert max_diff(np.zeros(40), got).argmax == (5,)
