"""The page on trees: planted speeds; its converter beside LightGBM and numpy; its setting."""

import functools
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
NAMES = {"forest": ("library", "float32"), "boosted": ("library", "float32", "float64")}


@pytest.fixture(scope="module")
def page():
    return define_page(PAGE)


def planted(page, speeds=None, *, noise=0.002, processes=6, kept=0):
    """Make data from speeds of ONNX Runtime by the parts of a case, 1 by default."""
    rng = np.random.default_rng(0)
    groups = {}
    for n, kind, trees in ((n, kind, trees) for n in ROWS for kind in NAMES for trees in TREES):
        for threads in (1, 2) if trees == TREES[1] else (1,):
            case = f"{kind}, trees {trees}, rows {n}, threads {threads}"
            speed = next((x for part, x in (speeds or {}).items() if part in case), 1.0)
            ours = {"library": 1.0, "float32": speed, "float64": speed}
            groups[case] = Comparison(
                Measurement(name, 1e-3 / ours[name] * np.exp(rng.normal(0, noise, (processes, 4))))
                for name in NAMES[kind]
            )
    rows = {}
    for trees in TREES:
        down = {"predicted": 100.0, "cross": 100, "change": 7, "explained": 7}
        nothing = dict.fromkeys(down, 0) | {"change": kept}
        ways = dict.fromkeys(page["ROUNDINGS"], nothing) | {"float32, down": down}
        rows |= {(trees, way): row for way, row in ways.items()}
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


def test_a_float32_goes_where_it_went_when_thresholds_are_rounded_down(page):
    rng = np.random.default_rng(0)
    thresholds = rng.standard_normal(1000)
    near = np.float32(thresholds)
    values = np.concatenate([near, np.nextafter(near, np.float32(9)), -near, np.float32([0, 9])])
    rounded = page["round_down"](thresholds)
    assert rounded.dtype == np.float32
    sides = values[:, None].astype(np.float64) <= thresholds
    assert (sides == (values[:, None] <= rounded)).all()
    assert (sides != (values[:, None] <= near)).any()  # to nearest, some go elsewhere


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
    model = page["write_onnx"](*page["number_nodes"](booster), np.float64)
    expected = booster.predict(rows[:200], raw_score=True)
    (got,) = ortmeter.make_session(model, provider="cpu").run(None, {"X": rows[:200]})
    assert got.dtype == np.float64
    assert np.abs(got - expected).max() <= 1e-14
    (reference,) = ReferenceEvaluator(model).run(None, {"X": rows[:20]})
    assert np.abs(reference - expected[:20]).max() <= 1e-14


def test_the_setting_times_both_on_rows_of_the_reader(page, trained, tmp_path, monkeypatch):
    booster, rows = trained
    model = page["write_onnx"](*page["number_nodes"](booster), np.float64)
    time_both = run_setting("time_both", model)["time_both"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ortmeter, "measure", functools.partial(ortmeter.measure, budget_s=0.5))
    onnx.save(model, "model.onnx")
    assert time_both(booster.predict, rows[:50]).index.tolist() == ["library", "session"]


def test_rows_that_cross_are_counted_node_by_node(page, trained):
    booster, rows = trained
    found = dict(page["count_changes"](booster, rows))
    inner, *_ = page["number_nodes"](booster)
    features = np.array([node["split_feature"] for node in inner])
    thresholds = np.array([node["threshold"] for node in inner])
    sides = rows[:, features] <= thresholds
    for name, rounding in {
        "float32, nearest": np.float32,
        "float32, down": page["round_down"],
    }.items():
        crossed = (sides != (np.float32(rows[:, features]) <= rounding(thresholds))).any(axis=1)
        assert found[name]["cross"] == crossed.sum() > 0
        assert found[name]["explained"] == found[name]["change"]
    assert found["float64"] == {"predicted": 0, "cross": 0, "change": 0, "explained": 0}
    assert found["float32, time from 0"]["cross"] < found["float32, down"]["cross"]


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
