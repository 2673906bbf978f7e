"""The conclusions of the page on sweeps, from planted processes."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter import random_feeds
from ortmeter.evidence import Prediction
from ortmeter.study import Writer
from ortmeter.timing import Comparison, Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_sweep")


def planted(page, *rows):
    """A record whose processes have these ratios of two Adds over one Sum: type, size, ratios."""
    tasks = {}
    for kind, size, ratios in rows:
        for run, ratio in enumerate(ratios, 1):
            rng = np.random.default_rng(run)
            medians = {"two Adds": 1.0, "one Sum": 1 / ratio, "Concat then ReduceSum": 10 / 6}
            measured = Comparison(
                Measurement(name, median * np.exp(0.002 * rng.standard_normal((1, 100))))
                for name, median in medians.items()
            )
            shares = dict.fromkeys(medians, run / 8)
            place = {"type": kind, "size": size, "run": run}
            tasks[f"{kind} {size} {run}"] = {**place, "measured": measured, "shares": shares}
    data = {"tasks": tasks, "legend": "planted"}
    return dataclasses.replace(page["study"].here, data=data, fast=False)


def concluded(page, *rows):
    return page["study"].concluded(planted(page, *rows))


def test_the_sweep_ran_for_real_and_left_nothing(page):
    first, second = (task["measured"] for task in page["study"].data.tasks.values())
    assert list(first) == list(second) == list(page["TRAFFIC"])
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)
    assert not Path(page["folder"]).exists()


def test_the_page_compares_processes_as_a_sweep_does(page, tmp_path):
    result = page["sweep_sums"](tmp_path)
    tasks = {str(done.task): page["read_outcome"](done) for done in result.done}
    here = page["compare"](SimpleNamespace(tasks=tasks))
    assert [case.ratios for case in here] == [case.ratios for case in result.report().comparisons]


def test_a_candidate_that_computes_something_else_is_refused(page):
    right = page["write_models"](8, "float")
    wrong = "g (float[1, 8, 8] X, float[1, 8, 8] Y, float[1, 8, 8] Z) => (float[1, 8, 8] R)"
    wrong = f'<ir_version: 10, opset_import: ["": 21]> {wrong} {{ R = Sum(X, Y, Y) }}'
    feeds, options = random_feeds(right["one Sum"]), {"provider": "cpu", "threads": 1}
    assert all(0 < page["check"](model, feeds, options) <= 1 for model in right.values())
    with pytest.raises(AssertionError, match="outside of its bound"):
        page["check"](wrong, feeds, options)


BIG, SMALL, MIXED = (1.5, 1.5, 1.5), (1.1, 1.0, 1.1), (1.5, 1.5, 1.0)


@pytest.mark.parametrize(
    ("rows", "lead", "label"),
    [
        ([(64, BIG), (256, BIG)], "One process is enough here: 4 of 4 verdicts", "4 of 4 hold"),
        (
            [(64, SMALL), (256, BIG)],
            "Over 15% apart? One process is enough: 3 of 3 verdicts",
            "3 of 4 hold",
        ),
        ([(64, BIG), (256, MIXED)], "Measure in several processes: 3 of 4 ver", "3 of 4 hold"),
        ([(64, (1.5,))], "Not shown here: measure yours with the command below", "undecided"),
    ],
)
def test_the_answer_says_whether_one_process_is_enough(page, rows, lead, label):
    answer = concluded(page, *(("float", *row) for row in rows)).answer
    assert str(answer).startswith(lead)
    assert answer.label == label
    assert len(str(answer).split()) <= 35


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({64: BIG}, ""),
        ({64: BIG, 256: BIG}, "keeps its verdict"),
        ({64: BIG, 256: (1.0, 1.0, 1.0)}, "changes its verdict"),
        # Undecided where processes are far apart: neither kept, nor changed.
        ({64: BIG, 256: (1.1, 1.3, 1.6)}, "is undecided"),
        ({64: (1.1, 1.3, 1.6), 256: (1.1, 1.3, 1.6)}, "is undecided"),
    ],
)
def test_verdicts_are_followed_from_one_size_to_another(page, sizes, told):
    for kinds, name in ((("float",), "one Sum"), (("float", "double"), "one Sum float")):
        rows = [(kind, size, ratios) for kind in kinds for size, ratios in sizes.items()]
        say = Writer()
        page["follow_sizes"](page["compare"](SimpleNamespace(**planted(page, *rows).data)), say)
        start = told and f"From one size to another, {name} {told}"
        assert say.written.small_print.startswith(start)
        assert bool(say.written.small_print) == bool(told)


@pytest.mark.parametrize(
    ("ratios", "verdicts"),
    [  # traffic of one Sum, verdicts far from 1, intervals that do not meet
        ((*[1.5] * 5, 1.6), ["right", "right", "right"]),
        ((1.0, 1.0, 1.0), ["wrong", "right", "undecided"]),  # none here: some may exist
        ((2.5, 2.7, 2.47), ["wrong", "right", "right"]),
        ((1.2, 1.8, 1.0), ["undecided", "wrong", "right"]),
        ((1.5, 1.5), ["undecided", "right", "undecided"]),
    ],
)
def test_the_predictions_are_judged(page, ratios, verdicts):
    found = concluded(page, ("float", 64, (1.0,) * len(ratios)), ("float", 256, ratios)).claims
    assert all(isinstance(claim, Prediction) for claim in found)
    assert [found[i].verdict for i in (0, 2, 3)] == verdicts


def test_the_tables_and_the_plot_of_another_machine_are_its_own(page):
    record = planted(page, ("float", 64, (1.5, 1.5)), ("float", 256, (2.0, 1.0)))
    errors, axes, verdicts, found = page["study"].replay(record)
    assert errors.frame.loc[256].tolist() == [25] * 3
    assert verdicts.frame.loc[(64, "one Sum"), "speedup"] == pytest.approx(1.5, rel=0.01)
    assert verdicts.frame.loc[(256, "one Sum"), "each process"] == "faster in 1, negligible in 1"
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["process 1", "process 2", "2 pooled"]
    assert axes.get_ylim() == pytest.approx((0.85, 2.3), rel=0.01)
    plt.close(axes.figure)
    # The bars are the processes that do not agree.
    assert found.answer.axis == "speedup over two Adds, one Sum at size 256"
    assert [bar.value for bar in found.answer.bars] == pytest.approx([2, 1], rel=0.01)
