"""The views of the page on processes, from planted ones, and its sweep for real."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter import random_feeds
from ortmeter.timing import Comparison, Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_sweep")


def planted(*rows):
    """Data whose processes have these ratios of two Adds over one Sum: size, ratios."""
    tasks = {}
    for size, ratios in rows:
        for run, ratio in enumerate(ratios, 1):
            rng = np.random.default_rng(run)
            medians = {"two Adds": 1.0, "one Sum": 1 / ratio, "Concat then ReduceSum": 10 / 6}
            measured = Comparison(
                Measurement(name, median * np.exp(0.002 * rng.standard_normal((1, 100))))
                for name, median in medians.items()
            )
            tasks[f"{size} {run}"] = {"size": size, "run": run, "measured": measured}
    return SimpleNamespace(tasks=tasks, legend="planted")


def test_the_sweep_ran_for_real_and_left_nothing(page):
    first, second = (task["measured"] for task in page["study"].data.tasks.values())
    assert list(first) == list(second) == list(page["write_models"](8))
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)
    assert not Path(page["folder"]).exists()


def test_a_candidate_that_computes_something_else_is_outside_of_its_bound(page):
    right = page["write_models"](8)
    feeds = random_feeds(right["one Sum"])
    assert all(0 < page["largest_error"](model, feeds) <= 1 for model in right.values())
    wrong = right["one Sum"].replace("Sum(X, Y, Z)", "Sum(X, Y, Y)")
    assert page["largest_error"](wrong, feeds) > 1


BIG, SMALL, MIXED = (1.5, 1.5, 1.5), (1.1, 1.0, 1.1), (1.5, 1.5, 1.0)


@pytest.mark.parametrize(
    ("ratios", "changed", "far"),
    [
        (BIG, "undecided", "right"),  # no small difference
        (SMALL, "right", "right"),
        ((1.0, 1.0, 1.0), "wrong", "right"),
        (MIXED, "undecided", "wrong"),
        ((1.5,), "undecided", "undecided"),  # one process
    ],
)
def test_the_processes_agree_or_do_not(page, ratios, changed, far):
    found = page["claims"](planted((64, ratios)))
    assert found["changed"].verdict == changed
    assert found["far"].verdict == far


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ({64: BIG}, "undecided"),
        ({64: BIG, 256: BIG}, "right"),
        ({64: BIG, 256: (1.0, 1.0, 1.0)}, "wrong"),
        # Undecided where processes are far apart: neither kept, nor changed.
        ({64: BIG, 256: (1.1, 1.3, 1.6)}, "undecided"),
        ({64: (1.1, 1.3, 1.6), 256: BIG, 1024: (1.0, 1.0, 1.0)}, "wrong"),
    ],
)
def test_pooled_verdicts_are_followed_from_one_size_to_another(page, sizes, verdict):
    assert page["claims"](planted(*sizes.items()))["sizes"].verdict == verdict


def test_the_traffic_is_that_of_the_largest_size(page):
    found = page["claims"](planted((256, (1.5, 1.5, 1.52)), (64, (1.0, 1.0, 1.0))))
    assert (found["sum"].verdict, found["concat"].verdict) == ("right", "right")
    assert page["claims"](planted((256, (1.0, 1.0, 1.0))))["sum"].verdict == "wrong"


def test_the_table_and_the_plot_are_those_of_the_processes(page):
    data = planted((64, (1.5, 1.5)), (256, (2.0, 1.0)))
    table = page["verdicts"](data)
    assert table.loc[(64, "one Sum"), "speedup"].startswith("1.50")
    assert table.loc[(256, "one Sum"), "each process"] == "faster in 1, negligible in 1"
    axes = page["processes"](data)
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["process 1", "process 2", "2 pooled"]
    assert axes.get_ylim() == pytest.approx((0.85, 2.3), rel=0.01)
    plt.close(axes.figure)
