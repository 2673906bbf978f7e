"""The page on KMeans: its checks, its setting, and its views on planted samples."""

import functools
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from onnxruntime import OrtValue
from page_runner import compare, run_setting
from scipy.spatial.distance import cdist

from ortmeter.timing import Comparisons


def test_the_setting_labels_points(ran):
    found = run_setting("label_points", ran["model"])
    kmeans, points = ran["kmeans"], ran["X"]
    session = found["make_labels"](kmeans, points, "CPUExecutionProvider")
    assert [output.name for output in session.get_outputs()] == ["label"]
    assert session.get_session_options().intra_op_num_threads == 0  # nobody set it
    given = OrtValue.ortvalue_from_numpy(points, "cpu", 0)
    assert (found["label"](session, given) == kmeans.predict(points)).mean() > 0.999


def test_the_table_and_the_plot_have_the_planted_times(ran):
    narrow = {"Gemm": 0.02, "Add": 0.07, "Sqrt": 0.01}
    wide = {"Gemm": 0.06, "Add": 0.03, "Sqrt": 0.01}
    shares = {20: compare(narrow), 200: compare(wide)}
    pair = tuple(compare({"written": 4, "optimized": 2}).values())
    data = SimpleNamespace(
        operators=Comparisons(shares, "features"),
        check=(pair, pair),
        measured=compare({"scikit-learn": 2, "onnxruntime": 1, "onnxruntime, both": 2}),
        legend="planted",
        provider="cpu",
    )
    table = ran["shares"](data)
    found = {op: float(cell.split()[0]) for op, cell in table["200 features"].items()}
    assert found == pytest.approx({"Gemm": 0.6, "Add": 0.3, "Sqrt": 0.1}, rel=0.01)
    axes = ran["operators_plot"](data)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Add", "Gemm", "Sqrt"]
    drawn = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert drawn[0] == pytest.approx([70, 20, 10], rel=0.01)
    assert drawn[1] == pytest.approx([30, 60, 10], rel=0.01)
    assert ran["latencies"](data)["speedup"].tolist() == pytest.approx([1, 2, 1], rel=0.01)


def test_the_page_keeps_the_times_of_its_profiles_and_the_least_time_of_its_peaks(ran):
    args, kept = ran["args"], ran["study"].here.data
    peaks = ran["measured_peaks"](**ran["OPTIONS"])
    for features in (args.features, args.wide):
        times = kept["operators"][features]
        assert set(times) == set(ran["ran"].events["op"])
        assert {one.seconds.shape for one in times.values()} == {(2, args.runs // 2)}
    moved = args.points * (4 * args.features + 8) / peaks.gb_per_s
    product = 2 * args.points * args.features * args.clusters / peaks.gflop_per_s
    assert kept["floor"] == pytest.approx(max(moved, product) / 1e9)


def test_what_a_fresh_process_loads_predicts_as_the_estimator_that_was_trained(ran, tmp_path):
    X, kmeans = ran["X"], ran["kmeans"]
    joblib.dump(functools.partial(kmeans.predict, X), tmp_path / "predict")
    predict = ran["load_predict"](str(tmp_path / "predict"))
    assert predict.func.__self__._n_threads == ran["args"].threads
    assert (predict() == cdist(X, kmeans.cluster_centers_).argmin(axis=1)).mean() > 0.999


def test_the_bound_holds_where_squares_cancel(ran):
    """Points close to a center and far from zero: the worst case of the expanded square."""
    rng = np.random.default_rng(0)
    centers = (100 + rng.standard_normal((3, 20))).astype(np.float32)
    near = centers[rng.integers(3, size=300)]
    points = (near + 1e-2 * rng.standard_normal(near.shape)).astype(np.float32)
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    assert squares.dtype == np.float32
    labels, got = cdist(points, centers).argmin(axis=1), np.sqrt(np.maximum(squares, 0))
    ran["check_agreement"]("one", points, centers, labels, got)


def test_the_agreement_refuses_another_center_and_another_label(ran):
    X, centers = ran["X"], ran["kmeans"].cluster_centers_
    right = cdist(X, centers)
    ran["check_agreement"]("one", X, centers, right.argmin(axis=1), right)
    with pytest.raises(AssertionError, match="one is outside of its bound"):
        ran["check_agreement"]("one", X, centers, right.argmin(axis=1), cdist(X, 1.001 * centers))
    with pytest.raises(AssertionError, match="wrong label"):
        ran["check_agreement"]("one", X, centers, right[:, ::-1].argmin(axis=1), right)
