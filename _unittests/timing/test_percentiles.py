"""The oracle is scipy's quantile test, and samples whose percentiles are known."""

import numpy as np
import pytest
from percentile_coverage import queue
from scipy import stats
from verdict_coverage import correlated

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.percentiles import (
    LEVELS,
    _effective_size,
    _ranks,
    percentile_rows,
    percentiles,
    why_missing,
)

TRIALS = 200


def held(draw, true):
    """For each level, shares of the trials whose interval is wrong, and that have one."""
    wrong, found = np.zeros(len(LEVELS)), np.zeros(len(LEVELS))
    for seed in range(TRIALS):
        for i, p in enumerate(percentiles(draw(np.random.default_rng(seed)))):
            found[i] += p.low is not None
            wrong[i] += p.low is not None and not p.low <= true[i] <= p.high
    return wrong / TRIALS, found / TRIALS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [8, 105, 528, 5000])
def test_the_ranks_are_those_of_a_quantile_test(count, level):
    ordered = np.arange(1.0, count + 1)
    expected = stats.quantile_test(ordered, p=level / 100).confidence_interval(0.99)
    ranks = _ranks(count, count, level / 100, 0.99)
    if ranks is None:
        assert np.isnan(expected.low) or np.isnan(expected.high)
    else:
        assert ranks == (expected.low, expected.high)


def test_fewer_samples_have_no_interval():
    assert _ranks(528, 528, 0.99, 0.99) is not None
    assert _ranks(527, 527, 0.99, 0.99) is None
    assert _ranks(7, 7, 0.5, 0.99) is None
    (p99,) = percentiles(np.random.default_rng(0).standard_normal(400), [99])
    assert p99.low is None
    assert p99.cell(1) == "-"


@pytest.mark.parametrize(
    ("count", "correlation"), [(100, 0.0), (100, 0.8), (1000, 0.0), (1000, 0.5), (2000, 0.9)]
)
def test_intervals_hold_the_percentile_of_correlated_samples(count, correlation):
    true = stats.norm.ppf(np.array(LEVELS) / 100)
    wrong, found = held(lambda rng: correlated(rng, count, 1.0, correlation), true)
    assert wrong.max() <= 0.025
    assert found.min() >= 0.95 or (count, correlation) != (1000, 0.0)


def test_intervals_hold_the_percentiles_of_a_queue():
    """Latencies of M/M/1 are exponential: the true percentiles are known."""
    true = stats.expon(scale=1 / 0.5).ppf(np.array(LEVELS) / 100)
    wrong, found = held(lambda rng: queue(rng, 7500, 0.5), true)
    assert wrong.max() <= 0.03
    assert found[:3].min() >= 0.95


def test_processes_that_differ_widen_the_interval():
    def draw(rng):
        return [rng.standard_normal(300) + 0.6 * rng.standard_normal() for _ in range(10)]

    true = stats.norm(scale=np.sqrt(1.36)).ppf(np.array(LEVELS) / 100)
    wrong, found = held(draw, true)
    assert wrong.max() <= 0.025
    assert found[0] > 0.9
    # Taken as one process, they are said to be better known than they are.
    rows = draw(np.random.default_rng(0))
    isolated, mixed = percentiles(rows, [50])[0], percentiles(np.array(rows).T.ravel(), [50])[0]
    assert isolated.high - isolated.low > 2 * (mixed.high - mixed.low)


def test_a_cluster_of_slow_samples_is_one_event():
    rng = np.random.default_rng(0)
    slow = np.zeros(1500)
    slow[700:730] = 10.0
    seconds = 1 + 0.01 * rng.standard_normal(1500)
    assert percentiles(seconds + slow, [99])[0].low is None
    assert percentiles(seconds + rng.permutation(slow), [99])[0].low is not None


def test_a_tail_is_not_better_known_than_what_is_below():
    """Long spells at two speeds, and rare samples that are slower: the machine is not steady."""
    rng = np.random.default_rng(0)
    spells = np.repeat(rng.permutation([1.0, 2.0] * 5), 300)
    found = percentiles(spells + 0.01 * rng.standard_normal(3000) + (rng.random(3000) < 0.02))
    assert found[3].low is None
    assert percentiles(spells, [99]) == percentiles(spells)[3:]


def test_equal_samples_have_a_narrow_interval():
    (p,) = percentiles(np.full(100, 2.0), [50])
    assert (p.value, p.low, p.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "arguments", [([],), ([1.0], [100]), ([1.0], [0]), ([[1.0], [[2.0]]], [50])]
)
def test_what_has_no_percentile_is_refused(arguments):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        percentiles(*arguments)


def test_the_table_has_a_dash_for_means_of_several_calls():
    rng = np.random.default_rng(0)
    seconds = 0.01 * rng.uniform(1, 2, (1, 1000))
    found = Comparison([Measurement("one", seconds), Measurement("several", seconds, number=3)])
    rows = percentile_rows(found)
    assert list(rows["one"]) == ["p90 (ms)", "p95 (ms)", "p99 (ms)"]
    assert all("[" in text for text in rows["one"].values())
    assert set(rows["several"].values()) == {"-"}
    assert why_missing(found).endswith("or means of several calls")
    assert percentile_rows(Comparison([found["several"]])) == {}


def test_processes_that_differ_count_as_few_samples():
    """The variance of the mean of the processes, widened by Student's quantile over the normal."""
    rows = [np.full(10, value) for value in (1.0, 2.0, 3.0)]
    of_mean = np.var([1.0, 2.0, 3.0], ddof=1) / 3
    widened = of_mean * (stats.t.ppf(0.995, 2) / stats.norm.ppf(0.995)) ** 2
    assert _effective_size(rows, 0.99) == pytest.approx(np.var(rows) / widened)


def test_many_samples_that_depend_on_each_other_have_a_value_without_interval():
    slow_spells = np.repeat(np.random.default_rng(0).uniform(1, 2, 10), 100)
    (p90,) = percentiles(slow_spells, [90])
    assert p90.interval is None
    assert float(p90.cell(1.0)) == pytest.approx(np.percentile(slow_spells, 90), rel=0.01)
    (p99,) = percentiles(slow_spells[:200], [99])
    assert p99.cell(1.0) == "-"
