"""The page on releases: what it says of planted times and errors."""

import dataclasses

import pandas as pd
import pytest
from matplotlib import pyplot as plt
from observatory_histories import ORDER, planted
from page_runner import EXAMPLES, define_page, run_page

from ortmeter.observatory.matrix import AGAIN, ROWS
from ortmeter.pages import load, replay

MODELS = ("network", "Llama")


@pytest.fixture(scope="module")
def page():
    return define_page("plot_releases")


def conclude(history, models=None):
    """Conclude from a history, as the page does from a record."""
    names = run_page("plot_releases")
    data = {"history": history.to_dict(), "models": models or {}}
    return names, dataclasses.replace(names["here"], data=data, fast=False)


@pytest.fixture(scope="module")
def many():
    """One loss of 8 times, one of 4, two gains, and 60 cases that do not change."""
    times = {f"Same{i}": (10, 10, 10) for i in range(60)}
    times |= {"Worst": (10, 80, 80), "Worse": (10, 10, 40)}
    times |= {"Close": (40, 10, 10), "Rough": (40, 40, 8)}
    return planted(times, {"Rough": (1, 1, 8)}, threads=(1, 2))


def test_the_answer_names_the_worst_case_and_counts_the_others(many):
    names, record = conclude(many)
    answer = names["conclusion"](record).answer
    text = str(answer)
    assert text.startswith("In 1.2, 2 of 64 cases are more than 1.5 times slower")
    assert "the worst, Worst, is 8.0 times slower [7" in text
    assert "since 1.1." in text
    assert "faster than in 1.0: 2 cases" in text
    assert text.endswith("first release: 1.")
    assert len(text.split()) <= 60
    assert [bar.label for bar in answer.bars] == ["Worst", "Worse"]
    assert answer.verdict == "2 slower"


def test_without_a_loss_no_case_is_named(many):
    names, record = conclude(planted({"Same": (10, 10, 10), "Other": (5, 5, 5)}))
    text = str(names["conclusion"](record).answer)
    assert "0 of 2 cases" in text
    assert "worst" not in text


def verdicts(names, record):
    return [claim.verdict for claim in names["conclusion"](record).claims[:3]]


def model_times(**speeds):
    """Times of whole models, the last release so many times faster."""
    index = pd.MultiIndex.from_product([[1], range(2), range(6), list(speeds)], names=ROWS)
    frame = pd.DataFrame(dict.fromkeys(ORDER, 100.0), index=index)
    last = [100 / speeds[case] for case in index.get_level_values("case")]
    return {"times": frame.assign(**{ORDER[-1]: last}), "operators": {}, "left out": {}}


def test_the_predictions_are_judged(many):
    """2 of 64 are slower; one gain of two keeps its error; no model is slower."""
    names, record = conclude(many, model_times(network=1.0, Llama=0.9))
    assert verdicts(names, record) == ["right", "wrong", "right"]


def test_the_predictions_can_be_wrong():
    times = {"Worst": (10, 80, 80), "Same": (10, 10, 10), "Rough": (40, 40, 8)}
    history = planted(times, {"Rough": (1, 1, 1)})
    names, record = conclude(history, model_times(network=0.5, Llama=1.0))
    assert verdicts(names, record) == ["wrong", "right", "wrong"]


def test_what_is_too_noisy_decides_nothing():
    names, record = conclude(planted({"Same": (10, 10, 10)}, noise=1.5))
    assert verdicts(names, record) == ["undecided"] * 3


def test_the_false_claims_of_the_control_are_counted(many):
    names, record = conclude(many)
    assert "0 false claims in 128 cells" in str(names["conclusion"](record).claims[3])
    many_data = many.to_dict()
    times = many_data["times"].copy()
    times[ORDER[-1] + AGAIN] *= 1.5
    record = dataclasses.replace(
        record, data={**record.data, "history": {**many_data, "times": times}}
    )
    assert "128 false claims in 128" in str(names["conclusion"](record).claims[3])


def test_results_outside_of_their_bound_are_counted(many):
    names, record = conclude(many)
    assert str(names["conclusion"](record).claims[4]).startswith("1 cases have a result outside")


def test_losses_and_gains_have_their_times_and_intervals(page, many):
    lost = page["list_losses"](many)
    assert lost.loc["Worst", ["best before", "since"]].tolist() == ["1.0", "1.1"]
    assert lost.loc["Worst", "before (µs)"] == pytest.approx(10, rel=0.05)
    assert lost.loc["Worst", "1.2 (µs)"] == pytest.approx(80, rel=0.05)
    ratio, low, high = (
        float(text)
        for text in lost.loc["Worst", "times slower"].translate(str.maketrans("[],", "   ")).split()
    )
    assert low <= 8 <= high
    assert ratio == pytest.approx(8, rel=0.05)
    assert set(page["list_gains"](many).index) == {"Close", "Rough"}


def test_what_changed_the_error_has_its_time_beside(page, many):
    found = page["list_accuracy"](many)
    assert found.index.tolist() == ["Rough"]
    assert found.loc["Rough", "error ratio"] == 8
    assert found.loc["Rough", "times faster"].startswith("5")


def test_the_map_has_the_cases_that_changed(page, many):
    figure = page["draw_map"](many, "CPU")
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"Worst", "Worse", "Close", "Rough"} <= set(rows)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["1 thread", "2 threads"]
    plt.close(figure)


def test_a_case_opens_to_its_model_its_times_and_its_script(page, many):
    details = dict(page["detail_cases"](many))
    assert details.keys() == many.cases.keys()
    text = details["Worst"]
    assert text.startswith(many.cases["Worst"])
    assert "ortmeter operators --repro Worst" in text
    (line,) = (line for line in text.splitlines() if line.startswith("1.1 "))
    assert [float(word) for word in line.split()[1:3]] == pytest.approx([80, 80], rel=0.05)
    assert max(map(len, text.splitlines())) <= 80
    assert page["list_cases"](many).loc["Same1", "verdict"] == "undecided"


def test_an_absent_case_has_dashes(page):
    nan = float("nan")
    history = planted(
        {"New": (nan, nan, 10), "Same": (10, 10, 10)},
        {"New": (nan, nan, 1.0)},
        absent={("New", "1.0"): "no", ("New", "1.1"): "no"},
    )
    assert page["list_cases"](history).loc["New", "verdict"] == "new"
    assert "-" in dict(page["detail_cases"](history))["New"].splitlines()[4]
    assert page["count_cases"](history)["absent"].tolist() == [1, 1, 0]


def test_the_newest_record_of_the_provider_is_shown(page, tmp_path):
    names, record = conclude(planted({"Same": (10, 10, 10)}))
    older = dataclasses.replace(record, date=record.date.replace(year=2020))
    other = dataclasses.replace(
        record,
        date=record.date.replace(year=2090),
        configuration={**record.configuration, "provider": "cuda"},
    )
    assert page["find_record"]([older, record, other]) is record
    assert page["find_record"]([other]) is None
    kept = load(record.save(names["conclusion"](record), tmp_path))
    assert str(replay(names["report"], [kept])).count("Measured on") == 1


def test_findings_are_judged_by_the_record(page, many):
    date = "2026-01-02"
    findings = (
        (date, "Worst", "slower", "1.0", "1.1"),
        (date, "Worse", "slower", "1.0", "1.1"),
        (date, "Gone", "slower", "1.0", "1.1"),
        (date, "Close", "faster", "0.9", "1.1"),
    )
    found = page["check_findings"](many, findings)
    assert found["here"].tolist() == ["slower", "undecided", "not measured", "not measured"]
    assert found.loc["Worst", "releases"] == "1.0 to 1.1"
    assert float(found.loc["Worst", "ratio"].split()[0]) == pytest.approx(8, rel=0.05)


def test_every_finding_is_a_case_of_the_catalogue(page):
    catalogue = page["catalogue"]()
    assert [case for _, case, *_ in page["FINDINGS"] if case not in catalogue] == []


def test_the_page_tells_how_to_get_a_record():
    names = run_page("plot_releases")
    assert str(names["concluded"].answer).startswith("Fast mode")
    assert "Nothing is recorded here" in str(names["concluded"].answer)
    assert "--record`` measures" in (EXAMPLES / "performance" / "plot_releases.py").read_text()
