"""The report of planted sweeps: tables and text."""

import numpy as np
import pytest
from sweep_samples import failure, group, outcome, report_of

from ortmeter.timing import Comparison, Comparisons, Measurement


def sizes(small, large):
    """Data of a page: the candidate at two sizes, its baseline takes one second."""
    groups = {8: group(old=1.0, new=small), 16: group(old=1.0, new=large)}
    return {"results": Comparisons(groups, "size"), "legend": "CPU"}


@pytest.fixture(scope="module")
def report():
    """Two types, two machines; float16 is slower on one of them, and two tasks have no result."""
    return report_of(
        outcome(sizes(0.5, 0.5), {"itype": "1"}),
        outcome(sizes(0.5, 2.0), {"itype": "10"}),
        outcome(sizes(0.25, 0.25), {"itype": "1"}, cpu="Another CPU"),
        failure({"itype": "10"}, machine="another-cpu"),
        failure({"itype": "16"}, error=""),
    )


def row(table, *place):
    (found,) = [i for i, key in enumerate(table.index) if set(place) <= set(key)]
    return table.iloc[found]


def test_the_table_has_the_medians_and_the_speedups_that_were_planted(report):
    new = row(report.table, 10, "a-cpu", 16, "new")
    assert new["median (ms)"] == pytest.approx(2000, rel=0.01)
    assert new["speedup"] == pytest.approx(0.5, rel=0.01)
    assert new["low"] <= new["speedup"] <= new["high"]
    assert new["verdict"] == "slower"
    assert row(report.table, 1, "another-cpu", 8, "new")["speedup"] == pytest.approx(4, 0.01)
    old = row(report.table, 1, "a-cpu", 8, "old")
    assert (old["verdict"], old["speedup"]) == ("baseline", 1)


def test_the_median_is_that_of_all_the_runs():
    rows = [np.arange(1.0, 6), np.arange(11.0, 14)]
    tasks = [
        outcome({"m": Comparison([Measurement("alone", [seconds])])}, run=run)
        for run, seconds in enumerate(rows, 1)
    ]
    table = report_of(*tasks).table
    expected = 1e3 * np.median(np.concatenate(rows))
    assert table.loc["alone", "median (ms)"] == pytest.approx(expected, rel=1e-3)


def test_the_index_is_what_distinguishes_the_rows(report):
    assert report.table.index.names == ["itype", "machine", "size", "candidate"]
    assert report.table.columns.name == "plot_planted, results"
    assert {type(size) for size in report.table.index.get_level_values("size")} == {int}


@pytest.mark.parametrize(
    ("axis", "values", "options", "expected"),
    [
        ("cache", ["cold"], [{}], {"machine": "a-cpu", "cache": "cold"}),
        # it repeats an option
        ("size", [8], [{"size": "8"}, {"size": "16"}], {"size": 8, "machine": "a-cpu"}),
        # it is beside an option of the same name
        (
            "size",
            [8, 16],
            [{"size": "small"}, {"size": "medium"}],
            {"size": "small", "machine": "a-cpu", "size measured": 8},
        ),
    ],
)
def test_an_axis_of_the_page_has_its_name(axis, values, options, expected):
    groups = {value: group(old=1.0, new=0.5) for value in values}
    found = report_of(*(outcome({"r": Comparisons(groups, axis)}, one) for one in options))
    assert len(found.comparisons) == len(values) * len(options)
    assert dict(found.comparisons[0].coordinates) == expected


def test_tasks_without_a_result_have_the_reason_and_the_output(report):
    title, (table, output) = report.parts()[-1]
    assert title == "Tasks without a result"
    assert table.index.tolist() == ["plot_planted itype=10, run 1", "plot_planted itype=16, run 1"]
    assert output == "plot_planted itype=10, run 1: killed by signal 11\nlast <line>"
    assert table["reason"].tolist() == ["killed by signal 11", ""]
    assert table["state"].tolist() == ["failed", "missing"]


def test_every_group_has_its_rows():
    data = {"results": group(old=1.0, new=0.5), "copies": group(copied=1.0, bound=0.5)}
    assert row(report_of(outcome(data)).table, "copies", "bound")["verdict"] == "faster"


@pytest.mark.parametrize("seconds", [[[0.5, 0.5]], np.zeros((1, 100))])
def test_what_cannot_be_compared_has_no_verdict(seconds):
    """Candidates that were not timed together, samples below the resolution of the clock."""
    data = {"m": Comparison([*group(old=1.0, new=0.5).values(), Measurement("apart", seconds)])}
    found = report_of(outcome(data))
    assert [c.overall.subject for c in found.comparisons] == ["new"]
    assert found.table.loc["apart"].isna().tolist() == [False] + [True] * 5


def test_a_page_without_measurements_has_no_part():
    found = report_of(outcome({"errors": 3}))
    assert found.table.empty
    assert found.parts() == report_of().parts() == []
