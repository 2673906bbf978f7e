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


FASTER, SLOWER, SAME = "faster", "slower", "negligible"


@pytest.mark.parametrize(
    ("ratios", "shape", "verdicts", "stability", "overall"),
    [
        ((2.0, 2.1, 1.9), (1, 100), (FASTER,) * 3, "faster in 3", FASTER),
        ((0.5, 0.6), (1, 100), (SLOWER,) * 2, "slower in 2", "undecided"),  # two have no interval
        ((1.0, 1.0), (1, 100), (SAME,) * 2, "negligible in 2", "undecided"),
        (
            (1.5, 1.01, 0.5),
            (1, 100),
            (FASTER, SAME, SLOWER),
            "faster in 1, negligible in 1, slower in 1",
            "undecided",
        ),
        ((2.0,), (1, 100), (FASTER,), "faster in 1", FASTER),
        ((2.0, 2.0), (1, 12), ("undecided",) * 2, "no interval in 2", "undecided"),
        # processes that agree among themselves in each run, and differ from run to run
        ((1.3, 1.5, 1.7), (10, 5), (FASTER,) * 3, "faster in 3", "undecided"),
    ],
)
def test_the_verdicts_of_the_runs(ratios, shape, verdicts, stability, overall):
    (comparison,) = runs_of(*ratios, shape=shape).comparisons
    assert comparison.verdicts == verdicts
    assert comparison.stability == stability
    assert comparison.holds == (len(set(verdicts)) == 1)
    assert comparison.is_decided == (set(verdicts) != {"undecided"})
    assert comparison.overall.verdict == overall
    assert comparison.overall.low is None or len(ratios) != 2


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


def test_a_run_alone_keeps_the_interval_of_its_processes():
    pair = [samples(n, m, shape=(3, 20)) for n, m in (("old", 1.0), ("new", 0.8))]
    (comparison,) = report_of(outcome({"m": Comparison(pair)})).comparisons
    alone = speedup(*pair)
    assert (comparison.overall.low, comparison.overall.high) == (alone.low, alone.high)
    assert comparison.overall.how == alone.how


def test_runs_are_those_of_one_machine_that_did_not_fail():
    def ran(run, cpu="A"):
        return outcome({"m": group(run, old=1.0, new=0.5)}, cpu=cpu, run=run)

    found = report_of(ran(1), failure(run=2), ran(3), ran(4, "B")).comparisons
    assert [list(comparison.runs) for comparison in found] == [[1, 3], [4]]


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
        ([outcome({"x": 1})], "No task has measurements to compare."),
        (
            [at(2.0, shape=(1, 5)), at(2.0, run=2, shape=(1, 5))],
            "No comparison is decided.",
        ),
        ([at(2.0)], "One run of each configuration decides 1 comparisons."),
        (runs("8", 2.0, 2.1, 1.9), "1 of 1 verdicts hold in all runs."),
        (
            [*runs("8", 2.0, 2.1), *runs("16", 2.0, 1.0)],
            "1 of 2 verdicts hold in all runs.",
        ),
        (  # what has one run is not counted among what holds
            [*runs("8", 2.0, 2.1), at(2.0, "16")],
            "1 of 1 verdicts hold in all runs.",
        ),
    ],
)
def test_the_answer_says_what_holds(tasks, expected):
    assert answer(*tasks) == expected


def test_what_no_run_decides_is_not_said_to_hold():
    # An interval as wide as this one decides nothing, nor does a run of too few samples.
    pair = group(noise=0.5, old=1.0, new=0.95)
    wide = [outcome({"m": pair}, {"size": "8"}, run=run) for run in (1, 2)]
    assert answer(*wide) == "No comparison is decided."
    for tasks in (wide, [at(2.0), at(2.0, run=2, shape=(1, 12))]):
        assert answer(*tasks, *runs("16", 2.0, 2.0)) == (
            "1 of 1 verdicts hold in all runs; undecided: 1."
        )


def test_tasks_are_counted_only_when_some_have_no_result():
    done, lost, skipped = at(2.0), failure({"size": "16"}), failure({"size": "32"}, error="")
    assert not any("task" in text for text in report_of(done).conclusion)
    assert report_of(done, lost, skipped).conclusion[1] == (
        "2 of 3 tasks have no result: 1 failed, 1 did not run"
    )
