"""The page on trees: planted speeds; its converter beside LightGBM and numpy; its setting."""

import functools
import itertools
from types import SimpleNamespace

import lightgbm
import numpy as np
import onnx
import pytest
from matplotlib import pyplot as plt
from onnx.reference import ReferenceEvaluator
from page_runner import define_page, run_setting

import ortmeter
from ortmeter.study import to_frame
from ortmeter.study.claims import read_claims
from ortmeter.timing import Candidate, Comparison, Comparisons, Measurement

PAGE = "plot_trees"
TREES, ROWS = (12, 48, 150), (1, 100, 100_000)
NAMES = {"forest": ("library", "float32"), "boosted": ("library", "float64")}


@pytest.fixture(scope="module")
def page():
    return define_page(PAGE)


def planted(page, speeds=None, *, noise=0.002, processes=6, kept=0):
    """Make data from speeds of ONNX Runtime by the parts of a case, 1 by default."""
    rng = np.random.default_rng(0)
    groups = {}
    for n, kind, trees in itertools.product(ROWS, NAMES, TREES):
        case = f"{kind}, trees {trees}, rows {n}, threads 1"
        speed = next((x for part, x in (speeds or {}).items() if part in case), 1.0)
        groups[case] = Comparison(
            Measurement(name, 1e-3 / ours * np.exp(rng.normal(0, noise, (processes, 4))))
            for name, ours in zip(NAMES[kind], (1.0, speed), strict=True)
        )
    changed = {way: {"change": kept} for way in page["ORIGINS"]} | {page["NEAREST"]: {"change": 7}}
    rows = {(trees, way): row for trees in TREES for way, row in changed.items()}
    data = {"times": Comparisons(groups, "case"), "changes": to_frame(rows, "trees", "thresholds")}
    return data | {"legend": "planted"}


def judged(page, *speeds, **options):
    """Return the verdict of each claim."""
    data = SimpleNamespace(**planted(page, *speeds, **options))
    return {s.name: s.verdict for s in read_claims(page["claims"], data)[0]}


def test_few_rows_are_advised_by_library_and_many_are_not(page):
    found = judged(page, {"rows 1,": 4.0, "rows 100,": 2.0})
    assert (found["forest"], found["boosted"]) == ("holds", "holds")
    found = judged(page, {"forest, trees 12, rows 100,": 0.5, "rows 1": 4.0})
    assert (found["forest"], found["boosted"]) == ("fails", "holds")
    found = judged(page, {"rows 1": 4.0}, kept=1)
    assert (found["forest"], found["boosted"]) == ("holds", "fails")  # a class changes in float64


def test_the_plot_has_a_row_of_dots_per_model(page):
    axes = page["speedups"](SimpleNamespace(**planted(page, {"rows 1,": 4.0})))
    drawn = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert len(drawn) == len(NAMES) * len(TREES)
    plt.close(axes.figure)


@pytest.fixture(scope="module")
def trained(page):
    """Five rounds of LightGBM, and rows whose first feature is a time."""
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
