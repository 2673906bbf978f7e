"""The conclusion of the page on sweeps follows planted processes."""

import dataclasses
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from page_runner import run_page

from ortmeter.results import load
from ortmeter.timing import Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_sweep")


def measured(seed, medians):
    """Candidates whose medians are known."""
    rng = np.random.default_rng(seed)
    noise = {name: 0.002 * rng.standard_normal((1, 30)) for name in medians}
    return {n: Measurement(n, m * np.exp(noise[n])) for n, m in medians.items()}


def planted(page, *rows):
    """Record of the page whose runs have these ratios over two Adds: type, size, ratios."""
    tasks = [
        {
            "type": kind,
            "size": size,
            "run": run,
            "measured": measured(
                run, {"two Adds": 1.0, "one Sum": 1 / ratio, "Concat then ReduceSum": 10 / 6}
            ),
            "sentences": ("planted.",),
        }
        for kind, size, ratios in rows
        for run, ratio in enumerate(ratios, 1)
    ]
    return dataclasses.replace(page["here"], data={"tasks": tasks})


def sentences(page, *rows):
    return page["conclusion"](planted(page, *rows)).sentences


def test_the_sweep_ran_for_real(page):
    assert len(page["result"].done) == 2
    assert {o.task.run for o in page["result"].done} == {1, 2}
    (first, second) = (o.record.data["measured"] for o in page["result"].done)
    assert list(first) == list(page["BODIES"]) == list(page["MOVED"])
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)


def test_what_is_recorded_gives_the_report_of_the_sweep(page):
    directly, rebuilt = page["result"].report(), page["rebuild"](page["here"]).report()
    assert str(rebuilt) == str(directly)


def test_the_sweep_is_rebuilt_from_a_file(page, tmp_path):
    here = page["here"]
    there = load(here.save(page["conclusion"](here), tmp_path))
    assert page["conclusion"](there) == page["conclusion"](here)


def test_ratios_that_follow_the_moves(page):
    found = sentences(page, ("float", 64, (1.0, 1.0)), ("float", 256, (1.45, 1.55)))
    start = "prediction, the moves of one Sum make 1.50 at the largest size: "
    assert any(s.startswith(f"{start}within the interval in 1 of 1 cases") for s in found)
    assert any("the moves of Concat then ReduceSum make 0.60 at" in s for s in found)
    (sentence,) = [s for s in sentences(page, ("float", 64, (1.0, 1.0))) if "of one Sum" in s]
    assert "within the interval in 0 of 1 cases, measured 1.00 (1.00 to 1.0" in sentence


def test_a_verdict_far_from_1_that_changes_is_said(page):
    start = "prediction, a verdict beyond 15% holds in every process: "
    held = sentences(page, ("float", 64, (1.5, 1.5, 1.6)), ("float", 256, (1.0, 1.1, 1.0)))
    assert f"{start}not contradicted in 3 of 3 cases." in held
    lost = sentences(page, ("float", 64, (1.5, 1.0, 1.6)), ("double", 64, (1.5, 1.4, 1.6)))
    assert f"{start}wrong in 1 of 4 cases." in lost
    assert "one Sum over two Adds at float changes: faster in 2, no difference in 1." in lost


def test_nothing_far_from_1_is_said(page):
    record = planted(page, ("float", 64, (1.0, 1.1)))
    (comparison, _) = page["rebuild"](record).report().comparisons
    far, _ = page["judge_runs"]([comparison])
    assert far.endswith("no ratio is that far from 1.")


@pytest.mark.parametrize(
    ("ratios", "beyond"),
    [((1.0, 1.2, 1.4), 1), ((1.2, 1.2, 1.2), 0)],
)
def test_the_spread_of_the_runs_is_judged(page, ratios, beyond):
    comparisons = page["rebuild"](planted(page, ("float", 64, ratios))).report().comparisons
    (one_sum,) = [c for c in comparisons if c.candidate == "one Sum"]
    _, spread = page["judge_runs"]([one_sum])
    assert spread == (
        "prediction, runs differ more than their samples promise: "
        f"right, beyond chance, in {beyond} of 1 cases."
    )


def test_one_run_has_no_spread(page):
    assert not any("samples promise" in s for s in sentences(page, ("float", 64, (1.5,))))


def test_the_table_and_the_plot_of_another_machine_are_its_own(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (2.0, 2.0)))
    table, figure, spread, conclusion = page["report"](record)
    assert table.loc[(256, "one Sum"), "speedup"] == pytest.approx(2, rel=0.01)
    assert figure.axes[0].get_xlabel() == "size"
    assert spread.loc[(64, "one Sum"), "run 2"] == pytest.approx(1.5, rel=0.01)
    assert "one Sum is faster than two Adds" in conclusion.sentences[1]


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
