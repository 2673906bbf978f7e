"""Does a verdict hold from run to run: planted runs, with scipy as the oracle of the statistics."""

import math

import numpy as np
import pytest
from scipy import stats
from sweep_samples import failure, group, outcome, samples, sweep

from ortmeter.sweep._cells import pool
from ortmeter.sweep.comparison import Comparison, _chi_square_quantile
from ortmeter.sweep.report import sweep_report
from ortmeter.timing import Measurement, Speedup, speedup


def runs_of(*ratios, noise=0.002):
    """One comparison whose runs have these speedups."""
    tasks = [
        outcome({"m": group(seed, noise=noise, old=1.0, new=1 / ratio)}, run=seed + 1)
        for seed, ratio in enumerate(ratios)
    ]
    return sweep_report(sweep(*tasks))


@pytest.mark.parametrize(
    ("ratios", "words", "stability"),
    [
        ((2.0, 2.1, 1.9), ("faster",) * 3, "holds in 3 of 3 runs"),
        ((0.5, 0.6), ("slower",) * 2, "holds in 2 of 2 runs"),
        ((1.0, 1.01, 0.99), ("no difference",) * 3, "holds in 3 of 3 runs"),
        (
            (1.5, 1.0, 0.5),
            ("faster", "no difference", "slower"),
            "changes: faster in 1, no difference in 1, slower in 1",
        ),
        (
            (1.5, 1.0, 1.5),
            ("faster", "no difference", "faster"),
            "changes: faster in 2, no difference in 1",
        ),
        ((2.0,), ("faster",), "one run"),
    ],
)
def test_the_verdicts_of_the_runs(ratios, words, stability):
    (comparison,) = runs_of(*ratios).comparisons
    assert comparison.words == words
    assert comparison.stability == stability
    assert comparison.holds == (len(set(words)) == 1)
    assert comparison.is_reversed == ({"faster", "slower"} <= set(words))


def test_the_spread_between_runs_is_the_standard_deviation_of_the_logarithms():
    report = runs_of(1.0, 1.1, 1.3)
    (comparison,) = report.comparisons
    assert comparison.ratios == pytest.approx([1.0, 1.1, 1.3], rel=0.01)
    assert comparison.between == pytest.approx(np.std(np.log(comparison.ratios), ddof=1))
    (row,) = report.spread.to_dict("records")
    assert row["between runs (%)"] == pytest.approx(100 * math.expm1(comparison.between), rel=0.05)
    assert row["run 2"] == pytest.approx(1.1, rel=0.01)
    assert report.spread.columns[:3].tolist() == ["run 1", "run 2", "run 3"]


def test_the_spread_within_a_run_is_the_standard_error_of_its_ratio():
    noise, repeat, count = 0.02, 400, 20
    found = [_within(seed, noise, repeat) for seed in range(count)]
    # The median of n normal samples has a standard error of sqrt(pi / 2 n) times their deviation.
    expected = noise * math.sqrt(2 * math.pi / (2 * repeat))
    assert np.mean(found) == pytest.approx(expected, rel=0.15)


def _within(seed, noise, repeat):
    one, two = (samples(n, 1.0, seed=seed, noise=noise, shape=(1, repeat)) for n in ("old", "new"))
    (comparison,) = sweep_report(sweep(outcome({"m": {"old": one, "new": two}}))).comparisons
    return comparison.within


def test_runs_that_differ_only_by_their_samples_are_not_said_to_differ():
    said = 0
    for seed in range(0, 30, 3):
        tasks = [
            outcome({"m": group(seed + k, noise=0.02, old=1.0, new=1.0)}, run=k) for k in range(3)
        ]
        said += sweep_report(sweep(*tasks)).comparisons[0].process_matters
    assert said <= 2
    assert all(runs_of(1.0, 1.0 + d, 1.0).comparisons[0].process_matters for d in (0.05, 0.5))


def test_runs_without_any_noise():
    still = [outcome({"m": group(noise=0, old=1.0, new=0.5)}, run=k) for k in (1, 2)]
    assert sweep_report(sweep(*still)).comparisons[0].excess == 0
    moved = outcome({"m": group(noise=0, old=1.0, new=0.4)}, run=3)
    assert sweep_report(sweep(*still, moved)).comparisons[0].excess == math.inf


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_the_quantile_is_that_of_scipy(freedom):
    assert _chi_square_quantile(freedom) == pytest.approx(stats.chi2.ppf(0.99, freedom), rel=0.01)


def test_one_run_has_no_spread():
    report = runs_of(2.0)
    assert report.spread.empty
    assert report.comparisons[0].between is None
    assert not report.comparisons[0].process_matters
    assert not any("run" in sentence for sentence in report.conclusion.sentences)


def test_the_overall_interval_covers_what_changes_from_run_to_run():
    same, moved = runs_of(1.5, 1.5, 1.5).comparisons[0], runs_of(1.3, 1.5, 1.7).comparisons[0]
    assert same.overall.high / same.overall.low < 1.02
    assert moved.overall.low < 1.35
    assert moved.overall.high > 1.65


def test_a_pool_has_one_row_per_run_whatever_its_processes():
    one = Measurement("a", np.arange(1.0, 7).reshape(2, 3))
    two = Measurement("a", np.arange(1.0, 9).reshape(2, 4))
    assert pool([one, two]).seconds.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]
    assert pool([two]) is two


def test_a_run_alone_keeps_the_interval_of_its_processes():
    pair = {n: samples(n, m, shape=(3, 20)) for n, m in (("old", 1.0), ("new", 0.8))}
    (comparison,) = sweep_report(sweep(outcome({"m": pair}))).comparisons
    assert comparison.overall == speedup(pair["old"], pair["new"])


def test_a_run_that_failed_leaves_the_others():
    tasks = [outcome({"m": group(k, old=1.0, new=0.5)}, run=k) for k in (1, 3)]
    report = sweep_report(sweep(tasks[0], failure(run=2), tasks[1]))
    (comparison,) = report.comparisons
    assert comparison.stability == "holds in 2 of 2 runs"
    assert list(comparison.runs) == [1, 3]


def test_runs_on_two_machines_are_not_runs_of_one():
    tasks = [
        outcome({"m": group(old=1.0, new=0.5)}, cpu=cpu, run=k) for k, cpu in ((1, "A"), (2, "B"))
    ]
    assert [len(c.runs) for c in sweep_report(sweep(*tasks)).comparisons] == [1, 1]


@pytest.mark.parametrize("spread", [1.5, 2.0, 2.3, 4.0])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_whether_runs_differ_beyond_chance_is_cochrans_test(spread, count):
    error = 0.01
    half = stats.norm.ppf(0.995) * error
    logs = np.linspace(-1, 1, count)
    logs *= spread * error / np.std(logs, ddof=1)
    runs = {
        run: Speedup("old", "new", *np.exp([log, log - half, log + half]))
        for run, log in enumerate(logs)
    }
    found = Comparison("plot_x", "m", {}, runs, runs[0])
    assert found.within == pytest.approx(error)
    statistic = np.sum((logs - logs.mean()) ** 2) / error**2
    assert found.process_matters == (stats.chi2.sf(statistic, count - 1) < 0.01)
