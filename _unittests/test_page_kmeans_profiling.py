"""The conclusions of the page on KMeans, from planted samples, and its checks."""

import dataclasses
import re
from types import SimpleNamespace

import joblib
import numpy as np
import onnx.parser
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page
from scipy.spatial.distance import cdist

from ortmeter.evidence import Prediction
from ortmeter.timing import Comparison, Comparisons, Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_kmeans_profiling")


def planted(shape=(1, 100), **medians):
    """Samples of known medians, of a spread of half a percent."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, m * np.exp(0.005 * rng.standard_normal(shape)))
        for name, m in medians.items()
    )


PREDICT, LABELS, BOTH = "scikit-learn", "onnxruntime", "onnxruntime, both"
NARROW = planted(Gemm=20.0, Add=70.0, Sqrt=10.0)
WIDE = planted(Gemm=60.0, Add=30.0, Sqrt=10.0)


def make_data(narrow=NARROW, wide=WIDE, labels=(2.0, 1.0), floor=0.25, **other):
    """What the page keeps; labels has the medians of scikit-learn and of onnxruntime."""
    nodes = pd.DataFrame({"name": ["Ge", "Mu", "Ad"], "median": [900.0, 300.0, 300.0]})
    times = {PREDICT: labels[0], LABELS: labels[1], BOTH: 2 * labels[1]}
    pair = tuple(planted(written=4.0, optimized=2.0).values())
    return {
        "operators": Comparisons({20: narrow, 200: wide}, "features"),
        "nodes": nodes,
        "check": (pair, pair),
        "useless": ["Mu"],
        "measured": planted((5, 12), **times),
        "floor": floor,
        "legend": "float32 on CPU, threads=1",
        **other,
    }


def conclude(page, **changes):
    study = page["study"]
    return study.concluded(dataclasses.replace(study.here, data=make_data(**changes), fast=False))


def judged(found):
    return [claim.verdict for claim in found.claims if isinstance(claim, Prediction)]


CASE = "For KMeans labels alone (100,000 points, 20 features, 8 clusters, 1 thread),"


@pytest.mark.parametrize(
    ("labels", "lead", "distances"),
    [
        # ONNX Runtime takes twice the time with distances.
        ((3.0, 1.0), "prefer ONNX Runtime on CPU to scikit-learn: 3.0", True),
        (
            (2.0, 1.0),
            "prefer ONNX Runtime on CPU to scikit-learn: 2.00 times faster [",
            False,
        ),
        ((1.0, 2.0), "stay on scikit-learn: ONNX Runtime is 2.00 times slower", False),
        ((1.0, 1.0), "take scikit-learn or ONNX Runtime: the second is as fast within 5%.", False),
    ],
)
def test_the_answer_begins_with_what_to_do(page, labels, lead, distances):
    answer = str(conclude(page, labels=labels).answer)
    assert answer.startswith(f"{CASE} {lead}")
    assert ("With distances: 1.5" in answer) == distances
    assert "With distances, ONNX Runtime's longest operator is Add (70" in answer
    assert "Multiplying by zero (Mu) takes 20%." in answer
    assert len(answer.split()) <= 60


def test_the_answer_has_the_size_of_its_record(page):
    size = {"points": 5, "clusters": 3, "threads": 2}
    answer = str(conclude(page, size=size).answer)
    assert "(5 points, 20 features, 3 clusters, 2 threads)" in answer


def test_what_is_not_shown_is_no_advice(page):
    few = planted((2, 12), **{PREDICT: 2.0, LABELS: 1.0, BOTH: 2.0})
    answer = str(conclude(page, measured=few).answer)
    told = "time both with the setting: here, which is faster is undecided."
    assert answer.startswith(f"{CASE} {told}")
    assert "With distances:" not in answer


def test_the_setting_times_both_libraries(page, capsys):
    given = {"kmeans": page["kmeans"], "points": page["X"]}
    found = page["study"].run_setting(page["model"], **given)
    assert set(found["seconds"]) == {"scikit-learn", "onnxruntime"}
    one, two = (way() for way in found["ways"].values())
    assert (one == two).mean() > 0.999
    assert "scikit-learn" in capsys.readouterr().out
    # The command profiles what was timed, and needs no size.
    assert [out.name for out in found["labels"].graph.output] == ["label"]
    assert found["session"].get_inputs()[0].shape == [*page["X"].shape]


@pytest.mark.parametrize(
    ("narrow", "label", "shares"),
    [
        ({"Gemm": 20, "Add": 70, "Sqrt": 10}, "Add", [70, 20, 10]),
        ({"Gemm": 60, "Add": 40}, "Gemm", [60, 40]),
        ({"Add": 40, "Sqrt": 40, "Gemm": 20}, "faster", [40, 40, 20]),  # what is decided
        (dict(zip("abcdef", (40, 30, 20, 5, 4, 1), strict=True)), "a", [40, 30, 20, 5, 4]),
    ],
)
def test_the_longest_operator_is_the_verdict_when_it_is_shown_to_be(page, narrow, label, shares):
    # The page expects a product: this one takes next to nothing.
    answer = conclude(page, narrow=planted(**narrow, MatMul=1e-3)).answer
    assert answer.label == label
    bars = answer.bars[: len(shares)]
    assert [bar.value for bar in bars] == pytest.approx(shares, rel=0.01)
    assert all(bar.low < bar.value < bar.high for bar in bars)
    assert "ndecided" not in str(answer)


def test_what_is_not_shown_to_be_shorter_may_be_the_longest(page):
    find, rng = page["find_longest"], np.random.default_rng(0)
    spread = {"Add": 0.005, "Gemm": 0.005, "Sqrt": 0.005}

    def times(gemm, sqrt, rows=6, **own):
        medians = {"Add": 40.0, "Gemm": gemm, "Sqrt": sqrt}
        drawn = {n: rng.standard_normal((rows, 1)) * (spread | own)[n] for n in medians}
        return Comparison(
            Measurement(n, m * np.exp(drawn[n] * np.ones(9))) for n, m in medians.items()
        )

    assert find(times(20.0, 10.0)) == ["Add"]
    assert find(times(39.9, 10.0)) == ["Add", "Gemm"]
    # No interval: a spread beyond ten times the ratio, or two processes.
    unknown = times(20.0, 1.0, Sqrt=30.0)
    longest, *others = find(unknown)
    assert not unknown.speedup(longest, "Sqrt" if longest != "Sqrt" else "Add").has_interval
    assert others
    assert len(find(times(20.0, 10.0, rows=2))) == 3
    several = planted(Add=40, Sqrt=40, Gemm=40), planted(Add=40, Sqrt=40, Gemm=20)
    for narrow, words in zip(
        several,
        (r"(Add|Sqrt|Gemm) or another \(33", r"(Add or Sqrt|Sqrt or Add) \(40"),
        strict=True,
    ):
        assert re.search(words, str(conclude(page, narrow=narrow).answer))


@pytest.mark.parametrize(
    ("narrow", "wide", "floor", "verdicts"),
    [
        (NARROW, WIDE, 0.25, ["right", "right", "right"]),
        (WIDE, NARROW, 1.0, ["wrong", "wrong", "wrong"]),  # the labels take 1 s
        (NARROW, NARROW, 0.4995, ["right", "undecided", "undecided"]),
        (planted(Gemm=50.0, Add=50.0), WIDE, 0.25, ["undecided", "right", "right"]),
        (planted(MatMul=50.0, Add=30.0, FusedMatMul=20.0), WIDE, 0.25, ["wrong", "wrong", "right"]),
    ],
)
def test_the_predictions_are_judged(page, narrow, wide, floor, verdicts):
    assert judged(conclude(page, narrow=narrow, wide=wide, floor=floor)) == verdicts


OPPOSED = tuple(planted(written=2.0, optimized=4.0).values()), make_data()["check"][1]


@pytest.mark.parametrize("check", [OPPOSED, ((), OPPOSED[1])], ids=["opposed", "launches"])
def test_nothing_is_said_of_operators_when_their_times_are_not_known(page, check):
    found = conclude(page, check=check)
    assert found.answer.label == "faster"
    assert [bar.value for bar in found.answer.bars] == pytest.approx([1, 2], rel=0.01)
    assert judged(found) == ["undecided", "undecided", "right"]
    assert len(found.claims) == 3
    assert "by zero" not in str(found.answer)


def test_the_tables_and_the_plot_have_the_planted_times(page):
    wide = planted(Gemm=0.06, Add=0.03, Sqrt=0.01)
    data = SimpleNamespace(**make_data(narrow=planted(Gemm=0.02, Add=0.07, Sqrt=0.01), wide=wide))
    table = page["time_per_operator"](data)
    assert table.index.tolist() == ["Add", "Gemm", "Sqrt"]
    assert table["20 features (ms)"].tolist() == pytest.approx([70, 20, 10], rel=0.01)
    found = [float(cell.split()[0]) for cell in table["200 features (%)"]]
    assert found == pytest.approx([30, 60, 10], rel=0.01)
    axes = page["operators_plot"](data)
    drawn = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert drawn[0] == pytest.approx(table["20 features (ms)"].tolist())
    assert drawn[1] == pytest.approx(table["200 features (ms)"].tolist())
    plt.close(axes.figure)
    latencies = page["latencies"](data)
    assert latencies["/ least"].tolist() == pytest.approx([8, 4, 8, 1], rel=0.01)
    assert latencies["speedup"].tolist() == pytest.approx([1, 2, 1, 8], rel=0.01)


def test_what_multiplies_by_zero_is_found(page):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] X) => (float[2] Z) <float[1] zero = {0}, float[2] half = {0, 1}> {
        [a] A = Mul(X, zero)  [b] B = Mul(A, half)  [c] Z = Add(B, zero)
    }""")
    assert page["find_useless"](model) == ["a"]
    (useless,) = page["find_useless"](page["model"])
    by_output = {node.output[0]: node.name for node in page["model"].graph.node}
    (gemm,) = [node for node in page["model"].graph.node if node.op_type == "Gemm"]
    assert by_output[gemm.input[2]] == useless


def test_the_page_keeps_the_times_of_its_profiles_and_the_least_time_of_its_peaks(page):
    args, peaks, kept = page["args"], page["peaks"], page["study"].here.data
    for features in (args.features, args.wide):
        times = kept["operators"][features]
        assert set(times) == set(page["ran"].events["op"])
        assert {one.seconds.shape for one in times.values()} == {(2, (args.runs - 1) // 2)}
    moved = args.points * (4 * args.features + 8) / peaks.gb_per_s
    product = 2 * args.points * args.features * args.clusters / peaks.gflop_per_s
    assert kept["floor"] == pytest.approx(max(moved, product) / 1e9)


def test_what_a_fresh_process_loads_predicts_as_the_estimator_that_was_trained(page, tmp_path):
    X, kmeans = page["X"], page["kmeans"]
    joblib.dump((kmeans.predict, X), tmp_path / "predict")
    predict = page["load_predict"](str(tmp_path / "predict"))
    assert predict.func.__self__._n_threads == page["args"].threads
    assert (predict() == cdist(X, kmeans.cluster_centers_).argmin(axis=1)).mean() > 0.999


def test_the_bound_holds_where_squares_cancel(page):
    """Points close to a center and far from zero: the worst case of the expanded square."""
    rng = np.random.default_rng(0)
    centers = (100 + rng.standard_normal((3, 20))).astype(np.float32)
    near = centers[rng.integers(3, size=300)]
    points = (near + 1e-2 * rng.standard_normal(near.shape)).astype(np.float32)
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    assert squares.dtype == np.float32
    labels, got = cdist(points, centers).argmin(axis=1), np.sqrt(np.maximum(squares, 0))
    assert page["check_agreement"]("one", points, centers, labels, got)["error / bound"] <= 1
    with pytest.raises(AssertionError, match="one is outside of its bound"):
        page["check_agreement"]("one", points, centers, labels, 1.5 * got)


def test_the_agreement_refuses_another_center_and_another_label(page):
    X, centers = page["X"], page["kmeans"].cluster_centers_
    right = cdist(X, centers)
    row = page["check_agreement"]("one", X, centers, right.argmin(axis=1), right)
    assert row["error / bound"] < 1e-3
    with pytest.raises(AssertionError, match="outside of its bound"):
        page["check_agreement"]("one", X, centers, right.argmin(axis=1), cdist(X, 1.001 * centers))
    with pytest.raises(AssertionError, match="wrong label"):
        page["check_agreement"]("one", X, centers, right[:, ::-1].argmin(axis=1), right)
