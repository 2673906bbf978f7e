"""The page on what Python costs: what it says of planted times."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from golden import plain_claim
from page_runner import define_page, run_page

from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

PAIRS, SIZES = {"1 input": 1, "10 inputs": 10, "50 inputs": 50}, {"100,000 floats": 100_000}
TIMES = {"session.run": (10, 30, 110, 12), "bound": (5, 6, 8, 6), "C": (5, 7, 9, 6)}
EMPTY = {"empty call": (1, 1, 1, 1)}


@pytest.fixture(scope="module")
def page():
    return define_page("plot_python_cost")


def plant(times, processes=8):
    """Medians (µs) by way, one of each model, by process."""
    noise = np.random.default_rng(0).normal(0, 0.001, (processes, 1))
    groups = {
        model: Comparison(Measurement(w, 1e-6 * us[i] * np.exp(noise)) for w, us in times.items())
        for i, model in enumerate([*PAIRS, *SIZES])
    }
    return {"times": Comparisons(groups, "model"), "pairs": PAIRS, "sizes": SIZES, "legend": "CPU"}


def conclude(page, data):
    made = record("plot_python_cost", page["args"], page["provider"], data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


def test_python_adds_what_c_does_not_take(page):
    data = SimpleNamespace(**plant({**TIMES, **EMPTY}))
    added = {way: page["estimate_added"](data, way) for way in page["PYTHON"]}
    values = [[1e6 * one.value for one in ways.values()] for ways in added.values()]
    assert values[0] == pytest.approx([6, 24, 102, 7], rel=0.01)
    assert values[1] == pytest.approx([1, 0, 0, 1], abs=0.01)


def test_short_runs_are_bound(page):
    found = conclude(page, plant({**TIMES, **EMPTY}))
    told = "where a bound run takes less than 45 µs (1 input, 1 output) or 920 µs (50 inputs, 50 "
    assert told in str(found.answer)
    assert str(found.answer).startswith("Bind inputs and outputs instead of session.run where ")
    assert "(1 input), nothing" not in str(found.answer)
    assert "bind_ortvalue_input" in found.answer.setting
    assert [bar.value for bar in found.answer.bars] == pytest.approx([10, 5, 5], rel=0.01)
    verdicts = [claim.verdict for claim in found.claims]
    assert verdicts[:3] == ["right", "right", "right"]
    assert plain_claim(found.claims[2])["numbers"][0] == pytest.approx(20)
    assert found.beliefs.frame["verdict"]["#10849"] == "wrong"
    assert found.beliefs.frame["verdict"]["#9407"] == "wrong"


def test_where_c_takes_longer_it_saves_nothing(page):
    slow = {**TIMES, "C": (5, 7, 20, 6), **EMPTY}
    answer = str(conclude(page, plant(slow)).answer)
    assert answer.endswith("µs (1 input), nothing with 50 inputs.")
    assert len(answer.split()) <= 60


def test_slow_python_and_a_copy_contradict_the_predictions(page):
    slow = {**TIMES, "bound": (20, 21, 23, 21), "session.run": (100, 700, 1100, 400), **EMPTY}
    verdicts = [claim.verdict for claim in conclude(page, plant(slow)).claims]
    assert verdicts[:3] == ["wrong", "wrong", "wrong"]


def test_without_c_a_bound_run_is_the_least(page):
    found = conclude(page, plant({way: TIMES[way] for way in page["PYTHON"]}))
    assert "Calling from C" not in str(found.answer)
    assert [bar.value for bar in found.answer.bars] == pytest.approx([10, 5], rel=0.01)
    assert found.beliefs.frame["verdict"]["#10849"] == "undecided"


def test_one_process_shows_no_gain(page):
    found = conclude(page, plant({**TIMES, **EMPTY}, processes=1))
    assert str(found.answer).startswith("Keep session.run: binding is not shown to be faster.")
    assert not found.answer.setting


def test_what_is_slower_bound_is_not_advised(page):
    times = {**TIMES, "bound": (5, 6, 200, 6), **EMPTY}
    answer = str(conclude(page, plant(times)).answer)
    assert "(1 input, 1 output): binding saves" in answer
    assert "50 inputs" not in answer


def test_the_setting_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    setting = conclude(page, plant({**TIMES, **EMPTY})).answer.setting
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(page["make_model"](1).SerializeToString())
    copied = {}
    exec(setting, copied)  # noqa: S102 - what a reader copies
    assert {"session.run", "bound"} == set(copied["ways"])
    assert "'bound': " in capsys.readouterr().out
    copied["feeds"]["x0"][:] = 5
    copied["session"].run_with_iobinding(copied["binding"])
    assert copied["outputs"]["y0"].tolist() == [-5]


def test_c_and_python_compute_what_numpy_does(page, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(page["make_model"](3).SerializeToString())
    shared = {"path": f"{path}", "pairs": 3, "size": 5}
    library = run_page("plot_python_cost")["library"]
    page["call_c"](library, **shared, way="C")()  # which compares outputs with numpy
    own = {"provider": "cpu", "device": ("cpu", 0), "way": "session.run"}
    values = page["call_python"](**shared, **own)()
    np.testing.assert_array_equal(values, -np.random.default_rng(0).standard_normal((3, 5), "f"))
