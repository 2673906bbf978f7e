"""Tests of ortmeter.discrepancy._figures: each figure sees what it is for."""

import dataclasses
import math

import numpy as np
import pytest

from ortmeter.discrepancy import Discrepancy, max_diff

ERRORS = {"abs", "rel", "ulp", "ulp_at_max", "sum", "sum_ulp", "quantiles", "histogram"}


ERRORS |= {"argmax", "worst"}


BASE = (np.array([1.0, 2.0, -4.0, 0.5]), np.array([1.0, 2.0, -4.0, 0.5]))


@pytest.mark.parametrize(
    ("index", "value", "changed"),
    [
        (0, 1.0 + 2**-40, ERRORS),
        (0, 3.0, ERRORS),
        (1, math.nan, {"n_nan", "n_nan_got", "n_finite"}),
        (3, -math.inf, {"n_inf", "n_inf_got", "n_finite"}),
    ],
)
def test_every_figure_sees_a_perturbation(index, value, changed):
    expected, got = BASE
    got = got.copy()
    got[index] = value
    before, after = max_diff(expected, expected), max_diff(expected, got)
    names = {field.name for field in dataclasses.fields(Discrepancy)}
    assert {name for name in names if getattr(before, name) != getattr(after, name)} == changed


@pytest.mark.parametrize(
    ("expected", "got", "changed"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], {"n_nan_expected", "n_nan_got"}),
        ([1.0, -math.inf], [1.0, -math.inf], {"n_inf_expected", "n_inf_got"}),
        ([math.nan, 1.0], [1.0, 1.0], {"n_nan", "n_nan_expected"}),
        ([1.0, math.inf], [1.0, 1.0], {"n_inf", "n_inf_expected"}),
        ([4.0, 1.0], [4.0, 1.0], {"largest"}),
        ([1.0, 1.0], np.float32([1, 1]), {"dtype_got", "differences"}),
        (np.float16([1, 1]), [1.0, 1.0], {"dtype_expected", "differences"}),
        ([1.0] * 3, [1.0] * 3, {"n", "shape"}),
    ],
)
def test_every_other_figure_sees_a_perturbation(expected, got, changed):
    base = max_diff(np.ones(2), np.ones(2))
    after = max_diff(np.asarray(expected), np.asarray(got))
    names = {field.name for field in dataclasses.fields(Discrepancy)} - {"n_finite"}
    assert {name for name in names if getattr(base, name) != getattr(after, name)} == changed


def test_histogram_and_quantiles():
    rng = np.random.default_rng(0)
    error = np.exp(rng.normal(-3, 4, 10_000))
    error[::7] = 0
    diff = max_diff(np.zeros_like(error), -error, thresholds=[1, 0, 0.5])
    assert diff.histogram == {t: np.count_nonzero(error > t) for t in (0.0, 0.5, 1.0)}
    assert list(diff.histogram) == [0, 0.5, 1]
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = np.quantile(error, share, method="inverted_cdf")
        assert exact / (1 + 1 / 16) < diff.quantiles[name] <= exact


def test_quantiles_of_a_sample():
    error = np.random.default_rng(0).exponential(size=300_000)
    found = max_diff([np.zeros_like(error), 0.0], [error, 1e9]).quantiles
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        close = np.quantile(error, [share - 0.002, share + 0.002])
        assert close[0] / (1 + 1 / 16) < found[name] < close[1]


def test_a_small_array_weighs_less_than_a_sample():
    large, small = np.zeros(200_000), np.ones(40_000)
    diff = max_diff([large, np.zeros_like(small)], [large, small])
    assert (diff.quantiles["p50"], diff.quantiles["p90"]) == (0, 1)
    assert max_diff([large, large], [large, large + 1]).quantiles["p90"] == 1


@pytest.mark.parametrize("size", [3, 999, 1001, 200_000])
def test_thresholds_are_strict_at_every_size(size):
    got = np.zeros(size)
    got[1], got[2] = 0.25, 0.5
    diff = max_diff(np.zeros(size), got, thresholds=(0, 0.25, 0.5))
    assert diff.histogram == {0: 2, 0.25: 1, 0.5: 0}


@pytest.mark.parametrize(
    ("error", "quantile"), [(0, 0), (7.0, 7.0), (1e-30, 1e-30), (1e300, 1e300), (1e-70, 0)]
)
def test_quantiles_of_one_error(error, quantile):
    for value in max_diff(0.0, error).quantiles.values():
        assert quantile / (1 + 1 / 16) <= value <= quantile


def test_quantile_of_an_overflow():
    largest = np.finfo(np.float64).max
    assert max_diff(largest, -largest).quantiles["p50"] == math.inf


def test_means_are_over_finite_positions():
    diff = max_diff(np.float32([1, 2, np.nan, 4]), np.float32([1, 3, 1, 4]))
    assert (diff.mean_abs, diff.mean_ulp) == (1 / 3, 2**22 / 3)
    assert max_diff(np.zeros(0), np.zeros(0)).mean_ulp == 0


def test_figures_of_a_perturbation():
    diff = max_diff(np.float32([0.5, 4.0]), np.float32([0.75, 4.0]))
    assert (diff.abs, diff.rel, diff.sum, diff.mean_abs) == (0.25, 0.5, 0.25, 0.125)
    assert (diff.ulp, diff.ulp_at_max) == (2.0**22, 2.0**19)
    assert max_diff(np.float32([0]), np.float32([1e-9])).rel == math.inf
