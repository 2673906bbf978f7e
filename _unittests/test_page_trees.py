"""The page on trees: planted speeds; its converter beside LightGBM and numpy; its setting."""

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import compare, drawn, run_setting

import ortmeter
from ortmeter.timing import Candidate, Comparisons

TREES, ROWS = (12, 48, 150), (1, 100, 100_000)
NAMES = {"forest": ("library", "float32"), "boosted": ("library", "float64")}


def test_the_plot_has_a_row_of_dots_per_model(page):
    groups = {
        f"{kind}, trees {trees}, rows {n}, threads 1": compare(dict.fromkeys(names, 1e-3))
        for n, (kind, names), trees in itertools.product(ROWS, NAMES.items(), TREES)
    }
    data = SimpleNamespace(times=Comparisons(groups, "case"), legend="planted")
    assert len(drawn(page["speedups"](data))) == len(NAMES) * len(TREES)


@pytest.fixture(scope="module")
def trained(page):
    """Five rounds of LightGBM, and rows whose first feature is a time."""
    import lightgbm

    rng = np.random.default_rng(0)
    times = page["ORIGIN"] + page["WEEK"] * rng.random((3000, 1))
    rows = np.hstack([times, rng.standard_normal((3000, 19))])
    classes = np.digitize(rows[:, 0] % 7200 + 3600 * rows[:, 1], (1800, 5400))
    settings = {"objective": "multiclass", "num_class": 3, "num_threads": 1, "verbose": -1}
    return lightgbm.train(settings, lightgbm.Dataset(rows, classes), 5), rows


def test_the_converted_trees_give_the_scores_of_lightgbm(page, trained):
    booster, rows = trained
    model = page["write_onnx"](*page["number_nodes"](booster), "float64")
    expected = booster.predict(rows[:200], raw_score=True)
    (got,) = ortmeter.make_session(model, provider="cpu").run(None, {"X": rows[:200]})
    assert got.dtype == np.float64
    assert np.abs(got - expected).max() <= 1e-14
    (reference,) = ReferenceEvaluator(model).run(None, {"X": rows[:20]})
    assert np.abs(reference - expected[:20]).max() <= 1e-14


def test_the_setting_times_both_on_rows_of_the_reader(page, trained, tmp_path, monkeypatch):
    booster, rows = trained
    model = page["write_onnx"](*page["number_nodes"](booster), "float64")
    time_both = run_setting("time_both", model)["time_both"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ortmeter, "measure", functools.partial(ortmeter.measure, budget_s=0.5))
    onnx.save(model, "model.onnx")
    assert time_both(booster.predict, rows[:50]).index.tolist() == ["library", "session"]


def test_rows_whose_class_changes_are_counted(page, trained):
    """The trees are walked in numpy, on features and thresholds rounded to float32."""
    booster, rows = trained
    found = {way: row["change"] for way, row in page["count_changes"](booster, rows)}
    scores = booster.predict(rows, raw_score=True)
    rounded, near = np.zeros_like(scores), np.float32(rows)
    for rank, tree in enumerate(booster.dump_model()["tree_info"]):
        for row, values in enumerate(near):
            node = tree["tree_structure"]
            while "leaf_value" not in node:
                left = values[node["split_feature"]] <= np.float32(node["threshold"])
                node = node["left_child" if left else "right_child"]
            rounded[row, rank % 3] += node["leaf_value"]
    assert found[page["NEAREST"]] == (rounded.argmax(axis=1) != scores.argmax(axis=1)).sum() > 0
    assert found["float64"] == 0
    assert found[page["FROM_0"]] < found[page["NEAREST"]]


@pytest.mark.parametrize("kind", ["forest", "boosted"])
def test_scores_that_are_too_far_stop_the_page(page, kind):
    library, *_, name = NAMES[kind]
    scores = np.full((5, 3), 0.5)

    def run(error):
        group = {library: Candidate(lambda: scores), name: Candidate(lambda: [scores + error])}
        page["check"](kind, 12, group)

    run(0)
    with pytest.raises(AssertionError):
        run(1e-5)
