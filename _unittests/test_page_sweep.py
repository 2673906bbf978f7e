"""The views of the page on processes, from planted ones, and its sweep for real."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from page_runner import compare, drawn

from ortmeter import random_feeds


def planted(*rows):
    """Data whose processes have these ratios of two Adds over one Sum: size, ratios."""
    tasks = {}
    for size, ratios in rows:
        for run, ratio in enumerate(ratios, 1):
            medians = {"two Adds": 1.0, "one Sum": 1 / ratio, "Concat then ReduceSum": 10 / 6}
            task = {"size": size, "run": run, "measured": compare(medians, (1, 100), seed=run)}
            tasks[f"{size} {run}"] = task
    return SimpleNamespace(tasks=tasks, legend="planted")


def test_the_sweep_ran_for_real_and_left_nothing(ran):
    first, second = (task["measured"] for task in ran["study"].data.tasks.values())
    assert list(first) == list(second) == list(ran["write_models"](8))
    assert not np.array_equal(first["two Adds"].seconds, second["two Adds"].seconds)
    assert not Path(ran["folder"]).exists()


def test_a_candidate_that_computes_something_else_is_outside_of_its_bound(ran):
    right = ran["write_models"](8)
    feeds = random_feeds(right["one Sum"])
    assert all(0 < ran["largest_error"](model, feeds) <= 1 for model in right.values())
    wrong = right["one Sum"].replace("Sum(X, Y, Z)", "Sum(X, Y, Y)")
    assert ran["largest_error"](wrong, feeds) > 1


BIG = (1.5, 1.5, 1.5)


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
def test_pooled_verdicts_are_followed_from_one_size_to_another(ran, sizes, verdict):
    assert ran["claims"](planted(*sizes.items()))["sizes"].verdict == verdict


def test_the_table_and_the_plot_are_those_of_the_processes(ran):
    data = planted((64, (1.5, 1.5)), (256, (2.0, 1.0)))
    table = ran["verdicts"](data)
    assert table.loc[(64, "one Sum"), "speedup"].startswith("1.50")
    assert table.loc[(256, "one Sum"), "each process"] == "faster in 1, negligible in 1"
    axes = ran["processes"](data)
    assert [*drawn(axes)] == ["process 1", "process 2", "2 pooled"]
    assert axes.get_ylim() == pytest.approx((0.85, 2.3), rel=0.01)
