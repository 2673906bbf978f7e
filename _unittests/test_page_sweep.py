"""The conclusion of the page on sweeps follows planted processes."""

import dataclasses
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from page_runner import run_page

from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.claims import JUDGED, Answer


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
                "measured": found,
                "answer": dataclasses.asdict(Answer("planted.", found.ranking().claims)),
            }
    return dataclasses.replace(page["here"], data={"tasks": tasks})


def sentences(page, *rows, **options):
    return page["conclusion"](planted(page, *rows, **options)).sentences


def predictions(page, *rows, **options):
    """Verdicts on the predictions: far verdicts, spread, moves of one Sum and of Concat."""
    claims = page["conclusion"](planted(page, *rows, **options)).claims
    return [claim.verdict for claim in claims if claim.verdict in JUDGED][:4]


def test_the_sweep_ran_for_real(page):
    assert len(page["result"].done) == 2
    assert {o.task.run for o in page["result"].done} == {1, 2}
    (first, second) = (o.record.data["measured"] for o in page["result"].done)
    assert list(first) == list(page["BODIES"]) == list(page["MOVED"])
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)


def test_what_is_recorded_gives_the_report_of_the_sweep(page):
    directly, rebuilt = page["result"].report(), page["rebuild"](page["here"]).report()
    assert str(rebuilt) == str(directly)


def test_the_answer_is_on_processes_and_sizes(page):
    found = sentences(page, ("float", 64, (1.5, 1.5, 1.5)), ("float", 256, (1.5, 1.5, 1.0)))
    assert found[0] == "3 of 4 verdicts hold in all runs, 1 of 2 over the whole grid."


def test_too_few_samples_decide_nothing(page):
    rows = [("float", 64, (1.5, 1.5, 1.5))]
    assert sentences(page, *rows, repeat=5)[0] == "Too few samples: no run gives an interval."
    # The moves are judged by the interval over processes, which there is.
    assert predictions(page, *rows, repeat=5) == ["undecided", "undecided", "right", "right"]


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
def test_the_moves_are_judged_at_the_largest_size(page, ratios, verdict):
    rows = ("float", 64, (1.0, 1.0, 1.0)), ("float", 256, ratios)
    assert predictions(page, *rows)[2] == verdict
    (sentence,) = [s for s in sentences(page, *rows) if "moves predict 1.50 for one Sum" in s]
    if verdict == "wrong":
        mean = np.exp(np.mean(np.log(ratios)))
        assert f"at the largest size; measured {mean:.2f}, " in sentence


@pytest.mark.parametrize(
    ("rows", "verdict", "count"),
    [
        ([("float", 64, (1.5, 1.5, 1.6)), ("float", 256, (1.0, 1.1, 1.0))], "right", "3 of 3"),
        ([("float", 64, (1.5, 1.0, 1.6)), ("double", 64, (1.5, 1.4, 1.6))], "wrong", "3 of 4"),
        ([("float", 64, (1.5,))], "undecided", "0 of 0"),
    ],
)
def test_verdicts_far_from_1_are_judged(page, rows, verdict, count):
    assert predictions(page, *rows)[0] == verdict
    text = f"verdicts beyond 15% are the same in every process, {count}"
    assert any(text in sentence for sentence in sentences(page, *rows))


@pytest.mark.parametrize(
    ("ratios", "verdict"), [((1.0, 1.2, 1.4), "right"), ((1.2, 1.2, 1.2), "wrong")]
)
def test_the_spread_of_the_runs_is_judged(page, ratios, verdict):
    assert predictions(page, ("float", 64, ratios))[1] == verdict


def test_the_claims_of_the_tasks_come_from_their_records(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (1.5, 0.5)))
    claims = page["rebuild"](record).report().claims
    assert claims.loc[("plot_sums", "two Adds over one Sum: slower"), "where"] == (
        "size 64; size 256, 1 of 2 runs"
    )
    text = "the 4 tasks end on 4 different claims, none common to all"
    assert text in page["conclusion"](record).sentences


def test_the_table_and_the_plot_of_another_machine_are_its_own(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (2.0, 2.0)))
    table, figure, spread, conclusion = page["report"](record)
    assert table.loc[(256, "one Sum"), "speedup"] == pytest.approx(2, rel=0.01)
    assert figure.axes[0].get_xlabel() == "size"
    assert spread.loc[(64, "one Sum"), "run 2"] == pytest.approx(1.5, rel=0.01)
    pairs = [claim for claim in conclusion.claims if claim.topic == "pair"]
    assert [claim.ratio for claim in pairs[:2]] == pytest.approx([1.5, 2.0], rel=0.01)


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
