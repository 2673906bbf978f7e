"""Does a verdict hold from run to run: planted runs, and scipy as the oracle."""

import math

import numpy as np
import pytest
from scipy import stats
from sweep_samples import failure, group, outcome, report_of, samples

from ortmeter.sweep.comparison import conclude
from ortmeter.timing import Comparison, Comparisons, speedup


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
    assert comparison.within is None
    assert comparison.runs_differ is None


def test_the_spread_between_runs_is_the_standard_deviation_of_the_logarithms():
    report = runs_of(1.0, 1.1, 1.3)
    (comparison,) = report.comparisons
    assert comparison.ratios == pytest.approx([1.0, 1.1, 1.3], rel=0.01)
    assert comparison.between == pytest.approx(np.std(np.log(comparison.ratios), ddof=1))
    (row,) = report.spread.to_dict("records")
    assert row["between runs (%)"] == pytest.approx(100 * math.expm1(comparison.between), rel=0.05)
    assert row["run 2"] == pytest.approx(1.1, rel=0.01)
    assert report.spread.columns[:3].tolist() == ["run 1", "run 2", "run 3"]


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


def test_the_width_within_a_run_is_that_of_its_interval():
    (comparison,) = runs_of(1.0, 1.0, noise=0.02).comparisons
    halves = [math.log(c.high / c.ratio) for c in comparison.runs.values()]
    assert comparison.within == pytest.approx(np.mean(halves))


def test_runs_that_differ_only_by_their_samples_are_seldom_said_to_differ():
    found = [
        report_of(
            *(
                outcome({"m": group(seed + k, noise=0.02, old=1.0, new=1.0)}, run=k)
                for k in range(3)
            )
        ).comparisons[0]
        for seed in range(0, 90, 3)
    ]
    assert sum(c.runs_differ for c in found) == 0
    assert all(runs_of(1.0, 1.0 + d, 1.0).comparisons[0].runs_differ for d in (0.1, 0.5))


def test_one_run_has_no_spread():
    report = runs_of(2.0)
    assert report.spread.empty
    assert report.comparisons[0].between is None
    assert not any("run to run" in sentence for sentence in report.conclusion)


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


def claims(*outcomes):
    return conclude(outcomes, report_of(*outcomes).comparisons)[1:]


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


def test_a_claim_stands_on_all_the_runs_together():
    claim, _ = claims(*runs("8", 2.0, 2.1, 1.9))
    assert (claim.subject, claim.baseline, claim.verdict) == ("new", "old", "faster")
    assert claim.how == "3 runs"


def test_tasks_are_counted_only_when_some_have_no_result():
    done, lost, skipped = at(2.0), failure({"size": "16"}), failure({"size": "32"}, error="")
    assert not any("task" in text for text in report_of(done).conclusion)
    assert str(claims(done, lost, skipped)[0]) == (
        "2 of 3 tasks have no result: 1 failed, 1 did not run"
    )


def test_a_few_places_are_named():
    found = report_of(at(2.0, "8"), at(0.5, "16")).conclusion[1]
    assert found.startswith("new is faster than old at size 8 (2.00 [")
    assert "; new is slower than old at size 16 (0.50 [" in found


def test_many_places_are_counted():
    tasks = [at(1 + n / 10, str(n)) for n in range(2, 8)]
    assert str(claims(*tasks)[0]) == (
        "candidate new, baseline old: of 6 cases, faster in 6 (1.20 to 1.70)"
    )


def test_groups_and_pages_are_named_where_there_are_several():
    data = {"m": group(old=1.0, new=0.5), "n": group(old=1.0, new=2.0)}
    found = claims(outcome(data), outcome(data, page="plot_other"))
    assert [(dict(c.where), c.verdict) for c in found[:4]] == [
        ({"page": page, "group": name}, verdict)
        for page in ("plot_planted", "plot_other")
        for name, verdict in (("m", "faster"), ("n", "slower"))
    ]


def test_the_spread_is_said():
    (spread,) = [c for c in claims(*runs("8", 1.0, 1.2)) if c.topic == "spread"]
    assert spread.values["most"] == pytest.approx(0.2 / 2**0.5, rel=0.1)
    assert str(spread).endswith("in 1 of 1 cases, the intervals of two runs do not overlap")


def test_axes_are_places():
    data = {"m": Comparisons({n: group(old=1.0, new=0.5) for n in (8, 16)}, "size")}
    assert "at size 8 (2.00 [" in report_of(outcome(data)).conclusion[1]
