"""Does a verdict hold from run to run: planted runs, and scipy as the oracle."""

import math

import numpy as np
import pytest
from scipy import stats
from sweep_samples import failure, group, outcome, report_of, samples

from ortmeter.timing import Comparison, speedup


def runs_of(*ratios, noise=0.002, shape=(1, 100)):
    """One comparison whose runs have these speedups."""
    tasks = [
        outcome({"m": group(seed, noise=noise, shape=shape, old=1.0, new=1 / r)}, run=seed + 1)
        for seed, r in enumerate(ratios)
    ]
    return report_of(*tasks)


@pytest.mark.parametrize(
    ("ratios", "verdicts", "stability"),
    [
        ((2.0, 2.1, 1.9), ("faster",) * 3, "faster in 3"),
        ((0.5, 0.6), ("slower",) * 2, "slower in 2"),
        ((1.0, 1.0), ("negligible",) * 2, "negligible in 2"),
        ((1.5, 1.01, 0.5), ("faster", "negligible", "slower"), None),
        ((1.5, 1.0, 1.5), ("faster", "negligible", "faster"), "faster in 2, negligible in 1"),
        ((2.0,), ("faster",), "faster in 1"),
    ],
)
def test_the_verdicts_of_the_runs(ratios, verdicts, stability):
    (comparison,) = runs_of(*ratios).comparisons
    assert comparison.verdicts == verdicts
    assert comparison.stability == (stability or "faster in 1, negligible in 1, slower in 1")
    assert comparison.holds == (len(set(verdicts)) == 1)


def test_runs_without_an_interval_decide_nothing():
    (comparison,) = runs_of(2.0, 2.0, shape=(1, 12)).comparisons
    assert comparison.verdicts == ("undecided", "undecided")
    assert comparison.stability == "no interval in 2"
    assert not comparison.is_decided


@pytest.mark.parametrize("count", [3, 5, 20])
def test_the_interval_of_several_runs_is_students_over_runs(count):
    ratios = np.exp(0.05 * np.random.default_rng(count).standard_normal(count))
    (comparison,) = runs_of(*ratios, noise=0.0).comparisons
    logs = np.log(ratios)
    low, high = np.exp(stats.t.interval(0.99, count - 1, logs.mean(), stats.sem(logs)))
    overall = comparison.overall
    assert overall.ratio == pytest.approx(stats.gmean(ratios))
    # As wide as Student's, and a little wider: sampling stops when an interval is narrow.
    assert overall.low < low < high < overall.high
    assert math.log(overall.high / overall.low) < 1.3 * math.log(high / low)
    assert overall.how == f"{count} runs"


def test_two_runs_have_no_interval():
    (comparison,) = runs_of(2.0, 2.0).comparisons
    assert comparison.verdicts == ("faster", "faster")
    assert (comparison.overall.verdict, comparison.overall.low) == ("undecided", None)


def test_the_processes_of_a_run_are_not_runs():
    """Runs of 10 processes that agree among themselves, and differ from each other."""
    found = runs_of(1.3, 1.5, 1.7, shape=(10, 5)).comparisons[0]
    assert set(found.verdicts) == {"faster"}
    assert found.overall.verdict == "undecided"


def test_a_run_alone_keeps_the_interval_of_its_processes():
    pair = [samples(n, m, shape=(3, 20)) for n, m in (("old", 1.0), ("new", 0.8))]
    (comparison,) = report_of(outcome({"m": Comparison(pair)})).comparisons
    alone = speedup(*pair)
    assert (comparison.overall.low, comparison.overall.high) == (alone.low, alone.high)
    assert comparison.overall.how == alone.how


def test_a_run_that_failed_leaves_the_others():
    tasks = [outcome({"m": group(k, old=1.0, new=0.5)}, run=k) for k in (1, 3)]
    report = report_of(tasks[0], failure(run=2), tasks[1])
    (comparison,) = report.comparisons
    assert comparison.stability == "faster in 2"
    assert list(comparison.runs) == [1, 3]


def test_runs_on_two_machines_are_not_runs_of_one():
    tasks = [
        outcome({"m": group(old=1.0, new=0.5)}, cpu=cpu, run=k) for k, cpu in ((1, "A"), (2, "B"))
    ]
    assert [len(c.runs) for c in report_of(*tasks).comparisons] == [1, 1]


def answer(*outcomes):
    return report_of(*outcomes).conclusion[0]


def at(ratio, size="8", run=1, shape=(1, 100)):
    pair = group(run, shape=shape, old=1.0, new=1 / ratio)
    return outcome({"m": pair}, {"size": size}, run=run)


def runs(size, *ratios):
    return [at(ratio, size, run) for run, ratio in enumerate(ratios, 1)]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([], "No task has measurements to compare."),
        ([failure()], "No task has measurements to compare."),
        ([outcome({"x": 1})], "No task has measurements to compare."),
        (
            [at(2.0, shape=(1, 5)), at(2.0, run=2, shape=(1, 5))],
            "No comparison is decided.",
        ),
        ([at(2.0)], "One run of one configuration decides 1 comparisons."),
        ([at(2.0, "8"), at(1.5, "16")], "1 of 1 verdicts hold over the whole grid."),
        ([at(2.0, "8"), at(0.5, "16")], "0 of 1 verdicts hold over the whole grid."),
        (runs("8", 2.0, 2.1, 1.9), "1 of 1 verdicts hold in all runs."),
        (
            [*runs("8", 2.0, 2.1), *runs("16", 2.0, 1.0)],
            "1 of 2 verdicts hold in all runs, 0 of 1 over the whole grid.",
        ),
        (  # what has one run is not counted among what holds
            [*runs("8", 2.0, 2.1), at(2.0, "16")],
            "1 of 1 verdicts hold in all runs, 1 of 1 over the whole grid.",
        ),
    ],
)
def test_the_answer_says_what_holds(tasks, expected):
    assert answer(*tasks) == expected


def test_what_no_run_decides_is_not_said_to_hold():
    # An interval as wide as this one decides nothing.
    pair = group(noise=0.5, old=1.0, new=0.95)
    tasks = [outcome({"m": pair}, {"size": "8"}, run=run) for run in (1, 2)]
    assert answer(*tasks) == "No comparison is decided."
    assert answer(*tasks, *runs("16", 2.0, 2.0)) == (
        "1 of 1 verdicts hold in all runs, 0 of 1 over the whole grid; undecided: 1."
    )


def test_a_run_with_too_few_samples_changes_no_verdict():
    short = at(2.0, "8", run=2, shape=(1, 12))
    assert answer(at(2.0, "8"), short, *runs("16", 2.0, 2.0)) == (
        "1 of 1 verdicts hold in all runs, 0 of 1 over the whole grid; undecided: 1."
    )


def test_tasks_are_counted_only_when_some_have_no_result():
    done, lost, skipped = at(2.0), failure({"size": "16"}), failure({"size": "32"}, error="")
    assert not any("task" in text for text in report_of(done).conclusion)
    assert report_of(done, lost, skipped).conclusion[1] == (
        "2 of 3 tasks have no result: 1 failed, 1 did not run"
    )
