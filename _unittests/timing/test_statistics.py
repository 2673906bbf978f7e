"""The oracle is scipy.stats, and samples whose ratio is known."""

import numpy as np
import pytest
from scipy import stats
from verdict_coverage import correlated

from ortmeter.timing import Comparison, Measurement, comparison, speedup
from ortmeter.timing.processes import processes_needed
from ortmeter.timing.statistics import (
    _inflation,
    estimate_mean,
    estimate_ratio,
    geometric_mean,
    log_ratio,
    ratio_of_means,
)

TRIALS = 400


def covers(draw):
    """Share of the intervals that hold a ratio of 1.1; none says nothing wrong."""
    held = 0
    for seed in range(TRIALS):
        baseline, candidate = draw(np.random.default_rng(seed))
        log, half = log_ratio(1.1 * baseline, candidate, 0.99)
        held += half is None or abs(log - np.log(1.1)) <= half
    return held / TRIALS


def test_several_processes_give_student_s_interval():
    rng = np.random.default_rng(0)
    a, b = np.exp(0.05 * rng.standard_normal((2, 5, 12)))
    logs = np.median(np.log(a / b), axis=1)
    log, half = log_ratio(a, b, 0.99)
    # 99.4%: the rest of the error is spent on stopping when the interval is narrow
    low, high = stats.t.interval(0.994, df=4, loc=logs.mean(), scale=stats.sem(logs))
    assert (log - half, log + half) == pytest.approx((low, high))


def test_the_machine_in_two_modes_moves_no_ratio():
    """While the machine is slow, both are: the medians of each may fall on either side."""
    rng = np.random.default_rng(0)
    slow = rng.random((400, 3, 13)) < 0.5
    begins = slow ^ (rng.random(slow.shape) < 0.1)  # between the samples of a round
    noise = np.exp(0.01 * rng.standard_normal((2, *slow.shape)))
    both = noise * np.where([slow, begins], 1.6, 1.0) * np.reshape([1.085, 1.0], (2, 1, 1, 1))
    found = np.array([log_ratio(*each, 0.99)[0] for each in both.swapaxes(0, 1)])
    assert np.abs(np.exp(found) - 1.085).max() < 0.02
    medians = np.log(np.median(both, axis=3)).mean(axis=2)
    assert np.std(medians[0] - medians[1]) > 0.05  # of the ratio of two medians
    pair = Comparison([Measurement(name, x) for name, x in zip("ab", both[:, 0], strict=True)])
    assert pair["a"].median / pair["b"].median == pytest.approx(pair.speedup("b", "a").ratio ** -1)


@pytest.mark.parametrize("count", [12, 20, 60])
def test_sets_of_sessions_give_the_interval_of_wilcoxon(count):
    """The ends are the last shifts that the test of signed ranks of SciPy does not refuse."""
    logs = 0.02 * np.random.default_rng(count).standard_t(3, count) + 0.01
    seconds = np.repeat(np.exp(logs).reshape(4, -1), 3, axis=1)
    pair = (Measurement("", x, sets=count // 4) for x in (seconds, np.ones_like(seconds)))
    log, half = comparison.log_ratio(*pair, 0.99)
    i, j = np.triu_indices(count)
    assert log == pytest.approx(np.median((logs[i] + logs[j]) / 2))
    refused = [
        stats.wilcoxon(logs - log - side * half * share, method="exact").pvalue < 0.006
        for side in (-1, 1)
        for share in (0.999, 1.001)
    ]
    assert refused[1::2] == [True, True]
    assert False in refused[0::2]  # as far as the farther end of the two


@pytest.mark.parametrize(("processes", "sets"), [(4, 2), (2, 10)])
def test_few_sets_or_processes_have_no_interval(processes, sets):
    noise = 0.01 * np.random.default_rng(0).standard_normal((2, processes, 2 * sets))
    pair = (Measurement("", each, sets=sets) for each in np.exp(noise))
    assert comparison.log_ratio(*pair, 0.99)[1] is None


@pytest.mark.parametrize("processes", [3, 5, 10])
def test_the_effect_of_processes_is_covered(processes):
    def draw(rng):
        noise = 0.03 * rng.standard_normal((2, processes, 12))
        return np.exp(noise + 0.05 * rng.standard_normal((2, processes, 1)))

    assert covers(draw) >= 0.975


@pytest.mark.parametrize(("correlation", "rounds"), [(0.0, 100), (0.5, 100), (0.8, 200)])
def test_correlated_samples_of_one_process_are_covered(correlation, rounds):
    def draw(rng):
        shared = correlated(rng, rounds, 0.1, 0.9)
        own = [correlated(rng, rounds, 0.08, correlation) for _ in range(2)]
        return np.exp(shared + np.array(own))[:, None, :]

    assert covers(draw) >= 0.975


@pytest.mark.parametrize("shape", [(1, 99), (2, 500), (1, 3)])
def test_too_few_samples_have_no_interval(shape):
    log, half = log_ratio(np.full(shape, 3.0), np.full(shape, 2.0), 0.99)
    assert half is None
    assert log == pytest.approx(np.log(1.5))


@pytest.mark.parametrize(
    ("logs", "seen"),
    # The products of neighbours over the sum of squares, the mean is 1/2: by hand.
    [([0, 0, 1, 1], 1 / 4), ([0, 0, 0, 1, 1, 1], 3 / 6), ([0, 1, 1, 0, 1, 0], -3 / 6)],
)
def test_a_correlation_that_few_batches_show_is_corrected_for_its_bias(logs, seen):
    """Kendall's: what is seen in n values of correlation r is r - (1 + 3 r) / n on average."""
    correlation = max(seen + (1 + 3 * max(seen, 0)) / len(logs), 0)
    expected = (1 + correlation) / (1 - correlation)
    assert _inflation(np.array(logs, float)) == pytest.approx(expected)


def test_the_interval_of_a_mean_is_a_little_wider_than_students():
    values = np.random.default_rng(0).normal(3, 1, 12)
    found = estimate_mean(values, 0.99)
    assert found.value == pytest.approx(values.mean())
    expected = stats.t.interval(0.994, 11, values.mean(), stats.sem(values))
    assert found.interval == pytest.approx(expected)
    assert str(estimate_mean([1.0, 2.0], unit="s")) == "1.5 s"


def test_the_ratio_of_means_of_turns_of_two_speeds_is_in_its_interval():
    """Ten turns each, a third of them half as fast: two geometric means differ more."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        speeds = np.where(rng.random((2, 10)) < 1 / 3, 0.5, 1.0) * rng.lognormal(0, 0.02, (2, 10))
        found = ratio_of_means(1.1 * speeds[0], speeds[1])
        assert found.value == pytest.approx(1.1 * speeds[0].sum() / speeds[1].sum())
        held += found.low <= 1.1 <= found.high
    assert held / TRIALS >= 0.985
    assert ratio_of_means([2.0, 2.0], [1.0, 1.0]).interval is None


def test_the_mean_is_geometric_and_its_interval_a_little_wider_than_students():
    values = np.random.default_rng(0).lognormal(1, 0.2, 10)
    found = geometric_mean(values)
    assert found.value == pytest.approx(stats.gmean(values))
    logs = np.log(values)
    # 99.4%: the rest of the error is spent on stopping when the interval is narrow
    expected = np.exp(stats.t.interval(0.994, 9, logs.mean(), stats.sem(logs)))
    assert found.interval == pytest.approx(tuple(expected))
    assert geometric_mean([1.0, 4.0]).interval is None


def test_a_ratio_is_that_of_pairs_and_says_how_sure_it_is():
    found = estimate_ratio([[2.0], [4.0], [6.0]], [[1.0], [2.0], [3.0]], 0.9, "3 processes")
    assert (found.value, found.interval) == (pytest.approx(2), pytest.approx((2, 2)))
    assert (found.confidence, found.how, found.unit) == (0.9, "3 processes", "")


@pytest.mark.parametrize(
    ("ratio", "deviation", "sets"), [(1.0, 0.02, 4), (1.03, 0.05, 1), (1.2, 0.1, 4)]
)
def test_as_many_processes_as_told_decide_in_nine_runs_of_ten(ratio, deviation, sets):
    """Runs of 5 processes say how many more there must be; so many are drawn again."""
    rng = np.random.default_rng(7)

    def draw(count):
        return np.exp(np.log(ratio) + deviation * rng.standard_normal((count, sets)))

    decided = []
    for _ in range(TRIALS):
        first = draw(5)
        pair = (Measurement("", x, sets=sets) for x in (first, np.ones_like(first)))
        count = processes_needed(*pair, 0.99, 0.05)
        if count is not None:
            again = Measurement("b", draw(count), sets=sets)
            found = speedup(again, Measurement("a", np.ones((count, sets)), sets=sets))
            decided.append(found.verdict != "undecided")
    assert len(decided) > 0.9 * TRIALS
    assert np.mean(decided) > 0.88
    noisy = np.exp([[-5.0], [5.0], [-5.0], [5.0], [0.0]])
    pair = (Measurement("", x) for x in (noisy, np.ones_like(noisy)))
    assert processes_needed(*pair, 0.99, 0.05) is None


def test_a_wide_interval_is_kept_where_it_decides():
    """Of three processes each: beyond ten times the ratio, it says something if 1 is out."""
    spread = np.exp([[-0.5], [0.0], [0.5]])
    for ratio, is_kept in ((100.0, True), (3.0, False)):
        found = estimate_ratio(ratio * spread, np.ones((3, 1)), 0.99)
        assert (found.interval is not None) is is_kept
    logs = np.log(100.0) + np.array([-0.5, 0.0, 0.5])
    expected = stats.t.interval(0.994, 2, logs.mean(), stats.sem(logs))
    kept = estimate_ratio(100.0 * spread, np.ones((3, 1)), 0.99)
    assert np.log(kept.interval) == pytest.approx(expected)
