"""The oracle is Student's interval of the logarithms."""

import numpy as np
import pytest
from scipy import stats

from ortmeter.evidence import Estimate
from ortmeter.timing.statistics import estimate_ratio, geometric_mean


def test_the_mean_is_geometric_and_its_interval_a_little_wider_than_students():
    values = np.random.default_rng(0).lognormal(1, 0.2, 10)
    found = geometric_mean(values)
    assert found.value == pytest.approx(stats.gmean(values))
    logs = np.log(values)
    # 99.4%: the rest of the error is spent on stopping when the interval is narrow
    expected = np.exp(stats.t.interval(0.994, 9, logs.mean(), stats.sem(logs)))
    assert found.interval == pytest.approx(tuple(expected))


def test_a_ratio_is_that_of_pairs():
    found = estimate_ratio([[2.0], [4.0], [6.0]], [[1.0], [2.0], [3.0]], 0.99)
    assert (found.value, found.interval) == (pytest.approx(2), pytest.approx((2, 2)))


@pytest.mark.parametrize(
    ("estimate", "text", "seconds"),
    [
        (Estimate(2.0), "2", "2 s"),
        (Estimate(0.0012345), "0.00123", "1.23 ms"),
        (Estimate(2e-6, 1e-6, 12345e-6), "2e-06 [1e-06, 0.0123]", "2 [1, 12300] µs"),
    ],
)
def test_an_estimate_is_written_with_three_digits(estimate, text, seconds):
    assert (estimate.text, estimate.seconds) == (text, seconds)


def test_two_values_have_no_interval():
    assert geometric_mean([1.0, 4.0]).interval is None


@pytest.mark.parametrize("half", [Estimate(2.0, low=1.0), Estimate(2.0, high=3.0)])
def test_half_an_interval_is_none(half):
    assert (half.interval, half.exceeds(1.5), half.text) == (None, None, "2")


@pytest.mark.parametrize(
    ("bound", "verdict"), [(0.5, True), (0.9, True), (1.0, None), (1.1, None), (1.2, False)]
)
def test_an_interval_tells_on_which_side_of_a_bound_it_is(bound, verdict):
    assert Estimate(1.0, 0.9, 1.1).exceeds(bound) is verdict
    assert Estimate(1.0).exceeds(bound) is None
