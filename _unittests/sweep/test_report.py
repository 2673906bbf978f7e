"""The report of planted sweeps: tables, plots, text."""

from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sweep_samples import failure, group, outcome, report_of

from ortmeter.cli.report import Report
from ortmeter.study.rendering import Answer
from ortmeter.timing import Comparison, Comparisons, Measurement


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def sizes(small, large):
    """Data of a page: the candidate at two sizes, its baseline takes one second."""
    groups = {8: group(old=1.0, new=small), 16: group(old=1.0, new=large)}
    return {"results": Comparisons(groups, "size"), "legend": "CPU"}


@pytest.fixture(scope="module")
def report():
    """Two types, two machines; float16 is slower on one of them, and two tasks have no result."""
    return report_of(
        outcome(sizes(0.5, 0.5), {"itype": "1"}, answer=Answer("New wins.")),
        outcome(sizes(0.5, 2.0), {"itype": "10"}, answer=Answer("Old wins.")),
        outcome(
            sizes(0.25, 0.25),
            {"itype": "1"},
            cpu="Another CPU",
            answer=Answer("New wins."),
        ),
        failure({"itype": "10"}, machine="another-cpu"),
        failure({"itype": "16"}, error=""),
    )


def row(table, *place):
    (found,) = [i for i, key in enumerate(table.index) if set(place) <= set(key)]
    return table.iloc[found]


def test_the_table_has_the_medians_and_the_speedups_that_were_planted(report):
    new = row(report.table, 10, "a-cpu", 16, "new")
    assert new["median (ms)"] == pytest.approx(2000, rel=0.01)
    assert new["q1 (ms)"] <= new["median (ms)"] <= new["q3 (ms)"]
    assert new["speedup"] == pytest.approx(0.5, rel=0.01)
    assert new["low"] <= new["speedup"] <= new["high"]
    assert new["verdict"] == "slower"
    assert row(report.table, 1, "another-cpu", 8, "new")["speedup"] == pytest.approx(4, 0.01)


def test_the_median_and_the_quartiles_are_those_of_all_the_runs():
    rows = [np.arange(1.0, 6), np.arange(11.0, 14)]
    tasks = [
        outcome({"m": Comparison([Measurement("alone", [seconds])])}, run=run)
        for run, seconds in enumerate(rows, 1)
    ]
    table = report_of(*tasks).table
    expected = 1e3 * np.percentile(np.concatenate(rows), [50, 25, 75])
    found = table.loc["alone", ["median (ms)", "q1 (ms)", "q3 (ms)"]].tolist()
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_baseline_is_the_first_candidate(report):
    old = row(report.table, 1, "a-cpu", 8, "old")
    assert (old["verdict"], old["speedup"]) == ("baseline", 1)


def test_the_index_is_what_distinguishes_the_rows(report):
    assert report.table.index.names == ["itype", "machine", "size", "candidate"]
    assert report.table.columns.name == "plot_planted, results"
    assert {type(size) for size in report.table.index.get_level_values("size")} == {int}


def test_an_axis_has_the_name_that_the_page_gave_it():
    data = {"results": Comparisons({"cold": group(old=1.0, new=0.5)}, "cache")}
    (found,) = report_of(outcome(data)).comparisons
    assert dict(found.coordinates) == {"machine": "a-cpu", "cache": "cold"}


def test_an_axis_that_repeats_an_option_is_the_option():
    tasks = [
        outcome({"r": Comparisons({int(n): group(old=1.0, new=0.5)}, "size")}, {"size": n})
        for n in ("8", "16")
    ]
    assert [dict(c.coordinates) for c in report_of(*tasks).comparisons] == [
        {"size": 8, "machine": "a-cpu"},
        {"size": 16, "machine": "a-cpu"},
    ]


def test_an_axis_beside_an_option_of_the_same_name_is_told_apart():
    pair = {8: group(old=1.0, new=0.5), 16: group(old=1.0, new=0.5)}
    tasks = [
        outcome({"r": Comparisons(pair, "size")}, {"size": label}) for label in ("small", "medium")
    ]
    found = report_of(*tasks).comparisons
    assert len(found) == 4
    assert dict(found[0].coordinates) == {
        "size": "small",
        "machine": "a-cpu",
        "size measured": 8,
    }


def test_tasks_without_a_result_have_the_reason_and_the_output(report):
    title, (table, output) = report.parts()[-1]
    assert title == "Tasks without a result"
    assert table.index.tolist() == ["plot_planted itype=10, run 1", "plot_planted itype=16, run 1"]
    assert output == "plot_planted itype=10, run 1: killed by signal 11\nlast <line>"
    assert table["reason"].tolist() == ["killed by signal 11", ""]
    assert table["state"].tolist() == ["failed", "missing"]


def test_the_plot_has_one_row_per_place(report):
    (ax,) = report.plots()
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    ratios = [round(float(c[0].get_xdata()[0]), 1) for c in ax.containers]
    rows = dict(zip(labels, ratios, strict=True))
    assert rows == {
        "new, itype 1, a-cpu, size 8": 2.0,
        "new, itype 1, a-cpu, size 16": 2.0,
        "new, itype 10, a-cpu, size 8": 2.0,
        "new, itype 10, a-cpu, size 16": 0.5,
        "new, itype 1, another-cpu, size 8": 4.0,
        "new, itype 1, another-cpu, size 16": 4.0,
    }
    assert ax.get_xlabel() == "speedup over old, higher is better"
    assert any(line.get_xdata() == [1, 1] for line in ax.get_lines() if len(line.get_xdata()) == 2)


def test_runs_are_dots_of_the_plot():
    tasks = [
        outcome({"m": group(run, old=1.0, new=0.5)}, {"n": n}, run=run)
        for run in (1, 2)
        for n in "12"
    ]
    (ax,) = report_of(*tasks).plots()
    dots = [line.get_xdata() for line in ax.get_lines() if line.get_marker() == "."]
    assert [len(ratios) for ratios in dots] == [2, 2]
    assert np.concatenate(dots) == pytest.approx([2.0] * 4, rel=0.01)


def test_every_group_has_its_plot_and_its_rows():
    data = {"results": group(old=1.0, new=0.5), "copies": group(copied=1.0, bound=0.5)}
    found = report_of(outcome(data))
    assert row(found.table, "copies", "bound")["verdict"] == "faster"
    captions = [t.get_text() for ax in found.plots() for t in ax.texts]
    assert captions == [f"plot_planted, {name}, a-cpu" for name in ("results", "copies")]


def test_a_plot_has_one_baseline():
    tasks = [
        outcome({"m": group(old=1.0, new=0.5)}, {"n": "1"}),
        outcome({"m": group(new=0.5, old=1.0)}, {"n": "2"}),
    ]
    labels = [ax.get_xlabel() for ax in report_of(*tasks).plots()]
    assert labels == [f"speedup over {name}, higher is better" for name in ("old", "new")]


@pytest.mark.parametrize("seconds", [[[0.5, 0.5]], np.zeros((1, 100))])
def test_what_cannot_be_compared_has_no_verdict(seconds):
    """Candidates that were not timed together, samples below the resolution of the clock."""
    data = {"m": Comparison([*group(old=1.0, new=0.5).values(), Measurement("apart", seconds)])}
    found = report_of(outcome(data))
    assert [c.overall.subject for c in found.comparisons] == ["new"]
    assert found.table.loc["apart"].isna().tolist() == [False] * 3 + [True] * 4


def test_a_page_without_measurements_has_its_answer():
    found = report_of(outcome({"errors": 3}, answer=Answer("All are close.")))
    assert found.table.empty
    assert [title for title, _ in found.parts()] == ["What the pages answered"]
    assert "All are close." in str(found)


def test_the_answers_are_those_of_the_tasks_that_have_one(report):
    assert report.answers.to_numpy().tolist() == [
        ["a-cpu", "New wins."],
        ["a-cpu", "Old wins."],
        ["another-cpu", "New wins."],
    ]
    assert report_of(outcome({}), failure()).answers.empty


def test_nothing_at_all_is_reported():
    found = report_of()
    assert str(found) == "No task has measurements to compare.\nMeasured on nothing:"
    assert found.parts() == []


def test_the_text_and_the_page_hold_every_part(report):
    text, page = str(report), report._repr_html_()
    for title in ("Over the grid", "What the pages answered", "Tasks without a result"):
        assert f"{title}\n---" in text
        assert f"<h4>{title}</h4>" in page
    assert "From run to run" not in text
    HTMLParser().feed(page)
    assert page.count("<img") == 1
    assert "last &lt;line&gt;" in page


def test_the_report_of_the_command_line_takes_the_parts(report):
    document = Report("sweep")
    for title, items in report.parts():
        document.add(title, *items)
    document.conclude(*report.conclusion)
    text = " ".join(document.to_text().split())
    assert (
        "candidate new, baseline old: of 6 cases, faster in 5 (2.00 to 4.00), slower in 1" in text
    )
    rows = document.to_dict()["sections"][0]["tables"][0]
    assert {r["verdict"] for r in rows} >= {"baseline", "faster", "slower"}
    assert "data:image/png" in document.to_html()
