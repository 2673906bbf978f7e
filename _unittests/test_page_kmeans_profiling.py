"""The page on KMeans: its checks, its setting, and its views on planted samples."""

import functools
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from matplotlib import pyplot as plt
from onnxruntime import OrtValue
from page_runner import run_page, run_setting
from scipy.spatial.distance import cdist

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
NARROW = planted(Gemm=20.0, Add=60.0, Mul=15.0, ReduceSumSquare=5.0)
WIDE = planted(Gemm=60.0, Add=20.0, Mul=15.0, ReduceSumSquare=5.0)


def make_data(narrow=NARROW, wide=WIDE, labels=(2.0, 1.0), floor=0.25, **other):
    """What the page keeps; labels has the medians of scikit-learn and of onnxruntime."""
    times = {PREDICT: labels[0], LABELS: labels[1], BOTH: 2 * labels[1]}
    pair = tuple(planted(written=4.0, optimized=2.0).values())
    return {
        "operators": Comparisons({20: narrow, 200: wide}, "features"),
        "check": (pair, pair),
        "measured": planted((5, 12), **times),
        "floor": floor,
        "legend": "planted",
        "provider": "cpu",
        **other,
    }


def test_the_setting_labels_points(page):
    found = run_setting("label_points", page["model"])
    kmeans, points = page["kmeans"], page["X"]
    session = found["make_labels"](kmeans, points, "CPUExecutionProvider")
    assert [output.name for output in session.get_outputs()] == ["label"]
    assert session.get_session_options().intra_op_num_threads == 0  # nobody set it
    given = OrtValue.ortvalue_from_numpy(points, "cpu", 0)
    assert (found["label"](session, given) == kmeans.predict(points)).mean() > 0.999


def test_what_takes_longer_than_all_the_others_is_found(page):
    find = page["find_longest"]
    assert find(NARROW, "Add").verdict == "right"
    assert find(NARROW, "Gemm").verdict == "wrong"
    assert find(planted(Add=40.0, Gemm=40.0), "Add").verdict == "undecided"


OPPOSED = tuple(planted(written=2.0, optimized=4.0).values()), make_data()["check"][1]


@pytest.mark.parametrize("check", [OPPOSED, ((), OPPOSED[1])], ids=["opposed", "launches"])
def test_nothing_is_said_of_operators_when_their_times_are_not_known(page, check):
    found = page["claims"](SimpleNamespace(**make_data(check=check)))
    names = ("add", "squares", "zeros", "half", "grows")
    assert {found[name].verdict for name in names} == {"undecided"}
    assert found["least"].verdict == "right"


def test_a_machine_judges_the_answer_of_its_provider(page):
    found = page["claims"](SimpleNamespace(**make_data(labels=(1.0, 2.0))))
    assert (found["cpu"].verdict, found["gpu"]) == ("right", None)
    assert found["cpu"].effect == pytest.approx((2, 2), rel=0.01)
    assert (found["threads"], found["points"]) == ("one thread", 100_000)
    size = {"points": 5, "clusters": 3, "threads": 2}
    other = make_data(labels=(1.0, 2.0), provider="cuda", size=size)
    found = page["claims"](SimpleNamespace(**other))
    assert (found["cpu"], found["gpu"].verdict) == (None, "wrong")
    assert (found["threads"], found["points"]) == ("2 threads", 5)


def test_the_table_and_the_plot_have_the_planted_times(page):
    wide = planted(Gemm=0.06, Add=0.03, Sqrt=0.01)
    data = SimpleNamespace(**make_data(narrow=planted(Gemm=0.02, Add=0.07, Sqrt=0.01), wide=wide))
    table = page["shares"](data)
    found = {op: float(cell.split()[0]) for op, cell in table["200 features"].items()}
    assert found == pytest.approx({"Gemm": 0.6, "Add": 0.3, "Sqrt": 0.1}, rel=0.01)
    axes = page["operators_plot"](data)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Add", "Gemm", "Sqrt"]
    drawn = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert drawn[0] == pytest.approx([70, 20, 10], rel=0.01)
    assert drawn[1] == pytest.approx([30, 60, 10], rel=0.01)
    plt.close(axes.figure)
    assert page["latencies"](data)["speedup"].tolist() == pytest.approx([1, 2, 1], rel=0.01)


def test_the_page_keeps_the_times_of_its_profiles_and_the_least_time_of_its_peaks(page):
    args, kept = page["args"], page["study"].here.data
    peaks = page["measured_peaks"](**page["OPTIONS"])
    for features in (args.features, args.wide):
        times = kept["operators"][features]
        assert set(times) == set(page["ran"].events["op"])
        assert {one.seconds.shape for one in times.values()} == {(2, args.runs // 2)}
    moved = args.points * (4 * args.features + 8) / peaks.gb_per_s
    product = 2 * args.points * args.features * args.clusters / peaks.gflop_per_s
    assert kept["floor"] == pytest.approx(max(moved, product) / 1e9)


def test_what_a_fresh_process_loads_predicts_as_the_estimator_that_was_trained(page, tmp_path):
    X, kmeans = page["X"], page["kmeans"]
    joblib.dump(functools.partial(kmeans.predict, X), tmp_path / "predict")
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
    page["check_agreement"]("one", points, centers, labels, got)
    with pytest.raises(AssertionError, match="one is outside of its bound"):
        page["check_agreement"]("one", points, centers, labels, 1.5 * got)


def test_the_agreement_refuses_another_center_and_another_label(page):
    X, centers = page["X"], page["kmeans"].cluster_centers_
    right = cdist(X, centers)
    page["check_agreement"]("one", X, centers, right.argmin(axis=1), right)
    with pytest.raises(AssertionError, match="outside of its bound"):
        page["check_agreement"]("one", X, centers, right.argmin(axis=1), cdist(X, 1.001 * centers))
    with pytest.raises(AssertionError, match="wrong label"):
        page["check_agreement"]("one", X, centers, right[:, ::-1].argmin(axis=1), right)
