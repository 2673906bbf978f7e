"""The page on trees: what it says of planted samples; its converter beside LightGBM and numpy."""

import dataclasses
import functools

import lightgbm
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import define_page

import ortmeter
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Candidate, Comparison, Comparisons, Measurement

PAGE, ORT = "plot_trees", "ONNX Runtime"
TREES, ROWS = (12, 48, 150), (1, 100, 100_000)
NAMES = {"forest": ("library", "float32"), "boosted": ("library", "float32", "float64")}


@pytest.fixture(scope="module")
def page():
    return define_page(PAGE)


def planted(page, speeds=None, *, noise=0.002, processes=6, crossing=100, changes=7, float64=1.0):
    """Make a record from speeds of ONNX Runtime by the parts of a case, 1 by default."""
    rng = np.random.default_rng(0)
    groups = {}
    for n, kind, trees in ((n, kind, trees) for n in ROWS for kind in NAMES for trees in TREES):
        for threads in (1, 2) if trees == TREES[1] else (1,):
            case = f"{kind}, trees {trees}, rows {n}, threads {threads}"
            speed = next((x for part, x in (speeds or {}).items() if part in case), 1.0)
            ours = {"library": 1.0, "float32": speed, "float64": speed}
            if kind == "boosted":
                ours["float32"] /= float64
            groups[case] = Comparison(
                Measurement(name, 1e-3 / ours[name] * np.exp(rng.normal(0, noise, (processes, 4))))
                for name in NAMES[kind]
            )
    rows = {}
    for trees in TREES:
        down = {"predicted": 100.0, "cross": crossing, "change": changes, "explained": changes}
        nothing = dict.fromkeys(down, 0)
        ways = dict.fromkeys(page["ROUNDINGS"], nothing) | {"float32, down": down}
        rows |= {(trees, way): row for way, row in ways.items()}
    data = {"times": Comparisons(groups, "case"), "changes": to_frame(rows, "trees", "thresholds")}
    made = record(PAGE, page["args"], page["study"].provider, data | {"legend": "planted"})
    return dataclasses.replace(made, fast=False)


def conclude(page, *speeds, **options):
    return page["study"].concluded(planted(page, *speeds, **options))


FEW = {"rows 1,": 4.0, "rows 100,": 2.0, "boosted, trees 12, rows 100000": 1.0}
MANY = {"forest, trees 12, rows 100000": 1.3, "rows 100000": 0.5}


@pytest.mark.parametrize(
    ("speeds", "options", "told", "label"),
    [
        (
            FEW | {"rows 100000": 0.5},
            {},
            "for 1 row (at least 3.98 times faster than scikit-learn) and 100 (1.99); use sc",
            ORT,
        ),
        (
            MANY,
            {},
            "Boosted trees: time both for 1 row and 100; use LightGBM for 100,000 rows (at ",
            "time both",
        ),
        (
            {"rows 1,": 0.25},
            {},
            "use LightGBM for 1 row (at least 3.99 times faster than ONNX Runtime);",
            "LightGBM",
        ),
        (
            {"rows 1,": 4.0},
            {"processes": 2},
            "Boosted trees: time both for 1 row and 100 and 100,000.",
            "time both",
        ),
        (
            {"rows 1,": 1.04},
            {},
            "Boosted trees: time both for 1 row and 100 and 100,000.",
            "time both",
        ),  # by less than 5%
    ],
    ids=["few", "mixed", "library", "too few", "small"],
)
def test_the_answer_is_which_library_to_call(page, speeds, options, told, label):
    answer = conclude(page, speeds, **options).answer
    assert told in str(answer), str(answer)
    assert answer.warning.endswith("float32 changes the class of up to 7 of 100,000 rows.")
    assert answer.label == label
    assert len(str(answer).split()) <= 60
    assert "ortmeter.measure(ways)" in answer.setting
    assert len(answer.bars) == 4


def test_thresholds_are_no_advice_where_no_class_changes(page):
    assert conclude(page, changes=0).answer.warning == ""


def test_predictions(page):
    def verdicts(*speeds, **options):
        return [claim.verdict for claim in conclude(page, *speeds, **options).claims]

    assert verdicts({"rows 1,": 3.0}) == ["right"] * 4
    wrong = {"rows 1,": 0.5, "rows 100000": 3.0}
    assert verdicts(wrong, float64=0.5, crossing=300) == ["wrong"] * 4
    assert verdicts({"rows 1,": 3.0}, processes=2, crossing=1)[:3] == ["undecided"] * 3
    assert verdicts({}, crossing=1)[3] == "wrong"


def test_beliefs(page):
    def verdicts(speeds):
        return conclude(page, speeds).beliefs.frame["verdict"].to_dict()

    discussions = ("#827", "#886", "sklearn-onnx#452", "hummingbird#199")
    slow = {"forest, trees 12, rows 1,": 2.0, "forest, trees 48, rows 1,": 2.0}
    slow |= {"forest, trees 150, rows 1,": 2.0, "trees 150, rows 100,": 0.1, "trees": 0.5}
    assert verdicts(slow) == dict.fromkeys(discussions, "right")
    assert verdicts({"trees": 2.0}) == dict.fromkeys(discussions, "wrong")


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


def test_the_setting_times_both_on_rows_of_the_reader(page, trained, tmp_path, monkeypatch, capsys):
    booster, rows = trained
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ortmeter, "measure", functools.partial(ortmeter.measure, budget_s=0.5))
    onnx.save(page["write_onnx"](*page["number_nodes"](booster), np.float64), "model.onnx")
    names = {"model": booster, "rows": rows[:50]}
    exec(page["SETTING"], names)  # noqa: S102 - a page of ours
    assert "speedup" in capsys.readouterr().out
    expected, (got,) = (names["ways"][name]() for name in ("library", "session"))
    assert (got.argmax(axis=1) == expected.argmax(axis=1)).all()


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
