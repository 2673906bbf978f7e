"""The conclusion of the page on sweeps follows planted processes."""

import dataclasses
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter.evidence import JUDGED
from ortmeter.sweep import Outcome, SweepResult, Task
from ortmeter.timing import Comparison, Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_sweep")


def measured(seed, medians, repeat):
    """Candidates whose medians are known."""
    rng = np.random.default_rng(seed)
    noise = {name: 0.002 * rng.standard_normal((1, repeat)) for name in medians}
    return Comparison(Measurement(n, m * np.exp(noise[n])) for n, m in medians.items())


def planted(page, *rows, repeat=100):
    """Record of the page whose runs have these ratios over two Adds: type, size, ratios."""
    tasks = {}
    for kind, size, ratios in rows:
        for run, ratio in enumerate(ratios, 1):
            medians = {"two Adds": 1.0, "one Sum": 1 / ratio, "Concat then ReduceSum": 10 / 6}
            found = measured(run, medians, repeat)
            tasks[f"{kind} {size} {run}"] = {
                "type": kind,
                "size": size,
                "run": run,
                "seconds": 1000.0,
                "shares": dict.fromkeys(medians, run / 8),
                "measured": found,
            }
    return dataclasses.replace(page["here"], data={"tasks": tasks}, fast=False)


def answer(page, *rows, **options):
    return page["conclusion"](planted(page, *rows, **options)).answer


def claims(page, *rows, **options):
    return page["conclusion"](planted(page, *rows, **options)).claims


def predictions(page, *rows, **options):
    """Verdicts on the predictions: traffic of one Sum and of Concat, far verdicts, spread."""
    return [c.verdict for c in claims(page, *rows, **options) if c.verdict in JUDGED]


def test_the_sweep_ran_for_real(page):
    assert len(page["result"].done) == 2
    assert {o.task.run for o in page["result"].done} == {1, 2}
    (first, second) = (o.record.data["measured"] for o in page["result"].done)
    assert list(first) == list(page["BODIES"]) == list(page["MOVED"])
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)


def test_what_is_recorded_gives_the_report_of_the_sweep(page):
    assert str(page["rebuild"](page["here"])) == str(page["result"].report())


def test_the_answer_counts_the_verdicts_that_hold_in_all_processes(page):
    rows = ("float", 64, (1.5, 1.5, 1.5)), ("float", 256, (1.5, 1.5, 1.0))
    found = answer(page, *rows)
    assert str(found).startswith(
        "Not always: 3 of 4 verdicts hold in all 3 processes, among them 3 of 4 on differences "
        "beyond 15%. 1 of 2 candidates keeps its verdict at every size: Concat then ReduceSum is "
        "1.67 times slower than two Adds [1.6"
    )
    assert str(found).endswith("] at size 256.")
    assert len(str(found).split()) <= 45
    assert found.label == "3 of 4 hold"
    # The bars are the processes that do not agree.
    assert [bar.value for bar in found.bars] == pytest.approx([1.5, 1.5, 1.0], rel=0.01)
    assert found.axis == "speedup over two Adds, one Sum at size 256"


def test_a_process_without_interval_is_named_in_the_table(page):
    cases = page["rebuild"](planted(page, ("float", 64, (1.5, 1.5)), repeat=5)).comparisons
    assert page["each_process"](cases[0]) == "no interval in 2"


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([(64, (1.1, 1.0, 1.1))], "among them the only one on differences beyond 15%."),
        ([(64, (1.1, 1.0, 1.1)), (256, (1.0, 1.0, 1.0))], "among them both on differences"),
    ],
)
def test_few_large_differences_are_counted_in_words(page, rows, held):
    assert held in str(answer(page, *(("float", *row) for row in rows)))


def test_small_differences_that_change_are_told_from_large_ones(page):
    text = str(answer(page, ("float", 64, (1.1, 1.0, 1.1)), ("float", 256, (1.5, 1.5, 1.5))))
    assert "3 of 4 verdicts hold in all 3 processes, among them all 3 on differences" in text


def test_the_answer_names_the_type(page):
    rows = [(kind, size, (1.5, 1.5, 1.0)) for kind in ("float", "double") for size in (64, 256)]
    text = str(answer(page, *rows))
    assert "4 of 8 verdicts hold" in text
    assert "] at size 256, double." in text


def test_every_verdict_may_hold(page):
    text = str(answer(page, ("float", 64, (1.5, 1.5, 1.5)), ("float", 256, (1.5, 1.5, 1.5))))
    assert text.startswith(
        "Yes, between processes: 4 of 4 verdicts hold in all 3 processes. 2 of 2 candidates keep"
    )


def test_undecided_everywhere_is_no_verdict_that_a_candidate_keeps(page):
    rows = [("float", size, (1.1, 1.3, 1.6)) for size in (64, 256)]
    assert "1 of 2 candidates keeps its verdict at every size: Concat" in str(answer(page, *rows))


def test_one_size_does_not_tell_about_sizes(page):
    found = answer(page, ("float", 64, (1.5, 1.5, 1.5)))
    assert str(found) == (
        "Yes, between processes: 2 of 2 verdicts hold in all 3 processes. One size was measured."
    )


def test_too_few_samples_decide_nothing(page):
    rows = [("float", 64, (1.5, 1.5, 1.5))]
    found = answer(page, *rows, repeat=5)
    assert str(found) == "Too few samples: no run gives an interval."
    assert found.label == "undecided"
    # The traffic is judged by the interval over processes, which there is.
    assert predictions(page, *rows, repeat=5) == ["right", "right", "undecided", "undecided"]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.5, 1.51, 1.49), "right"),
        ((1.0, 1.01, 0.99), "wrong"),
        ((2.5, 2.51, 2.49), "wrong"),
        ((1.2, 1.8, 1.5), "undecided"),
        ((1.5, 1.5), "undecided"),
    ],
)
def test_the_traffic_is_judged_at_the_largest_size(page, ratios, verdict):
    first, *_ = claims(page, ("float", 64, (1.0, 1.0, 1.0)), ("float", 256, ratios))
    assert first.verdict == verdict
    mean = np.exp(np.mean(np.log(ratios)))
    text = f"{verdict.capitalize()}: traffic predicts 1.50 for one Sum at size 256; measured"
    assert str(first).startswith(f"{text} {mean:.2f}")


@pytest.mark.parametrize(
    ("rows", "verdict", "count"),
    [
        ([("float", 64, (1.5, 1.5, 1.6)), ("float", 256, (1.0, 1.1, 1.0))], "right", "3 of 3"),
        ([("float", 64, (1.5, 1.0, 1.6)), ("double", 64, (1.5, 1.4, 1.6))], "wrong", "3 of 4"),
        ([("float", 64, (1.5,))], "undecided", "0 of 0"),
    ],
)
def test_verdicts_far_from_1_are_judged(page, rows, verdict, count):
    assert predictions(page, *rows)[2] == verdict
    text = f"verdicts on differences beyond 15% hold in every process ({count})"
    assert any(text in str(claim) for claim in claims(page, *rows))


def test_large_differences_without_an_interval_are_not_counted_as_kept(page):
    found = page["judge_runs"](
        page["rebuild"](planted(page, ("float", 64, (1.5, 1.6)), repeat=5)).comparisons
    )
    first = next(iter(found))
    assert first.verdict == "undecided"
    assert str(first).endswith("(0 of 0, 2 with a process without an interval)")


@pytest.mark.parametrize(
    ("ratios", "verdict", "count"),
    [((1.0, 1.2, 1.4), "right", "1 of 2"), ((1.2, 1.2, 1.2), "wrong", "0 of 2")],
)
def test_the_spread_of_the_processes_is_judged(page, ratios, verdict, count):
    found = claims(page, ("float", 64, ratios))[3]
    assert found.verdict == verdict
    assert str(found).endswith(f"the intervals of two processes do not overlap ({count})")


def test_all_together_may_be_undecided_where_each_process_is_not_and_it_is_explained(page):
    *_, found = claims(page, ("double", 64, (1.1, 1.3, 1.6)), ("double", 8, (1.0, 1.0, 1.0)))
    assert str(found).startswith(
        "one Sum at size 64 is faster in each of the 3 processes, undecided when they are pooled: "
        "3 speedups from 1.10 to 1.60 give the interval [0."
    )
    assert len(claims(page, ("double", 64, (1.3, 1.3, 1.3)))) == 4


def test_the_conclusion_is_short(page):
    assert len(claims(page, ("float", 64, (1.1, 1.3, 1.6)), ("float", 256, (1.1, 1.3, 1.6)))) <= 5


def test_the_claims_of_the_tasks_come_from_their_records(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (1.5, 0.5)))
    claims = page["rebuild"](record).claims
    assert claims.loc[("plot_sums", "two Adds over one Sum: slower"), "where"] == (
        "size 64; size 256, 1 of 2 runs"
    )


def test_the_tables_and_the_plot_of_another_machine_are_its_own(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (2.0, 1.0)))
    agreement, verdicts, axes, conclusion = page["report"](record)
    assert agreement.frame.loc[256].tolist() == [25] * 3
    row = verdicts.frame.loc[(256, "one Sum")]
    assert verdicts.frame.loc[(64, "one Sum"), "speedup"] == pytest.approx(1.5, rel=0.01)
    assert row["each process"] == "faster in 1, equivalent in 1"
    assert "float on CPU, threads=1, 2 processes of 100 samples for each size" in str(conclusion)
    assert conclusion.answer == answer(page, ("float", 64, (1.5, 1.5)), ("float", 256, (2.0, 1.0)))
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["process 1", "process 2", "2 pooled"]
    assert axes.get_ylim() == pytest.approx((0.85, 2.3), rel=0.01)
    plt.close(axes.figure)


def test_the_time_of_the_measurement_in_a_process_is_computed(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), repeat=100)
    times = page["time_table"](record.data["tasks"].values()).frame
    # 100 rounds of 1 s, 1 / 1.5 s and 10 / 6 s.
    assert times.loc[64, "measurement (s)"] == pytest.approx(100 * (1 + 2 / 3 + 5 / 3), rel=0.01)
    assert times.loc[64, "process (s)"] == 1000


def test_the_nodes_that_ran_on_the_cpu_in_the_processes_are_collected(page):
    where = ("3 nodes run on the CPU", "1 node runs on the CPU")
    records = [dataclasses.replace(page["here"], on_cpu=own) for own in (where, where[:1])]
    outcomes = [Outcome(Task("plot_sums", {}, i), "m", record=r) for i, r in enumerate(records, 1)]
    assert page["gather_cpu_nodes"](SweepResult(tuple(outcomes), Path())) == where
    found = dataclasses.replace(planted(page, ("float", 64, (1.5, 1.5, 1.5))), on_cpu=where)
    conclusion = page["conclusion"](found)
    assert "Not all of it ran on CUDA" in str(conclusion.answer)
    assert where[1] in conclusion.sentences


def test_the_small_page_refuses_candidates_that_disagree(page, tmp_path, monkeypatch):
    wrong = dict(page["MODELS"])
    wrong["one Sum"] = wrong["one Sum"].replace("Sum(X, Y, Z)", "Sum(X, Y, Y)")
    script = tmp_path / "plot_sums.py"
    script.write_text(f"MODELS = {wrong!r}\n{page['SCRIPT']}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(script), "--size", "8"])
    with pytest.raises(AssertionError, match="one Sum is outside of its bound"):
        runpy.run_path(str(script))


def test_nothing_is_left_of_the_sweep(page):
    assert not Path(page["folder"]).exists()
