"""The page on KMeans, after it ran in fast mode."""

import json

import numpy as np
import onnx.parser
import pandas as pd
import pytest
from page_runner import run_page
from scipy.spatial.distance import cdist

from ortmeter.timing import Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_kmeans_profiling")


def operators(**medians):
    frame = pd.DataFrame({"op": list(medians), "median": list(medians.values())})
    return frame.assign(op=pd.Categorical(frame["op"]), share=frame["median"] / 100)


RUNS = pd.DataFrame({"steady": [False, True, True, True], "duration": [300.0, 90.0, 100.0, 900.0]})


@pytest.mark.parametrize(
    ("medians", "slowest", "share", "fate"),
    [
        (
            {"Gemm": 20.0, "Add": 70.0, "Sqrt": 10.0},
            "Add takes the most time, 70%",
            20,
            "not contr",
        ),
        ({"Gemm": 60.0, "Add": 40.0}, "Gemm takes the most time, 60%", 60, "wrong"),
        ({"Add": 50.0, "FusedMatMul": 30.0, "Gemm": 20.0}, "Add takes the most time", 50, "wrong"),
        ({"Add": 51.0, "MatMul": 49.0}, "Add takes the most time, 51%", 49, "not contradicted"),
    ],
)
def test_the_conclusion_on_the_profile_follows_it(page, medians, slowest, share, fate):
    first, product, prediction, runs = page["conclude_profile"](operators(**medians), RUNS)
    assert first.startswith(slowest)
    assert product == f"the product takes {share}% of it."
    assert f"less than half of the time is {fate}" in prediction
    assert runs == "the first run takes 3.00 times the median of the rest."


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(1.0, 2.0, "2.00 times faster"), (2.0, 1.0, "2.00 times slower"), (1.0, 1.0, "no difference")],
)
def test_the_conclusion_on_latency_follows_the_samples(page, ours, theirs, verdict):
    times = {"onnxruntime, labels": ours, "scikit-learn, labels": theirs}
    measured = {name: Measurement(name, np.full((1, 40), t)) for name, t in times.items()}
    found, floor = page["conclude_latency"](measured, floor=0.25)
    assert verdict in found
    assert floor == f"the labels take {4 * ours:.1f} times their floor with onnxruntime."


def test_the_node_with_the_most_to_win_is_told(page):
    nodes = pd.DataFrame(
        [("Ge", "Gemm", 900.0, np.nan), ("Ad", "Add", 500.0, 100.0), ("Sq", "Sqrt", 510.0, 400.0)],
        columns=["name", "op", "median", "least"],
    )
    assert "is Ad (Add): 500 µs for a work that takes 100.0 µs" in page["conclude_nodes"](nodes)


def test_what_multiplies_by_zero_is_told(page):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] X) => (float[2] Z) <float[1] zero = {0}, float[2] half = {0, 1}> {
        [a] A = Mul(X, zero)  [b] B = Mul(A, half)  [c] Z = Add(B, zero)
    }""")
    nodes = pd.DataFrame({"name": ["a", "b", "c"], "share": [0.25, 0.5, 0.25]})
    expected = "products by zero take 25% of the time of the kernels (a)."
    assert page["conclude_zeros"](page["multiplied_by_zero"](model), nodes) == expected


def test_the_distances_are_those_of_scipy(page):
    rng = np.random.default_rng(0)
    points, centers = rng.standard_normal((50, 6)), rng.standard_normal((4, 6))
    np.testing.assert_allclose(page["distances"](points, centers), cdist(points, centers))


def test_the_bound_holds_where_squares_cancel_and_refuses_what_is_wrong(page):
    """Points close to a center and far from zero: the worst case of the expanded square."""
    rng = np.random.default_rng(0)
    centers = (100 + rng.standard_normal((3, 20))).astype(np.float32)
    near = centers[rng.integers(3, size=300)]
    points = (near + 1e-2 * rng.standard_normal(near.shape)).astype(np.float32)
    expected = page["distances"](points, centers)
    bound = page["distance_bound"](points, centers, expected)
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    got = np.sqrt(np.maximum(squares, 0)).astype(np.float64)
    assert squares.dtype == np.float32
    assert (np.abs(got - expected) / bound).max() <= 1
    assert (np.abs(1.5 * got - expected) / bound).max() > 1


def test_the_tolerance_of_the_page_refuses_other_centers(page):
    moved = page["kmeans"].cluster_centers_ * 1.001
    wrong = page["distances"](page["X"], moved)
    assert (np.abs(wrong - page["expected"]) / page["bound"]).max() > 1
    swapped = page["expected"][:, ::-1].argmin(axis=1)
    assert not (swapped == page["expected"].argmin(axis=1))[page["certain"]].all()


def test_the_json_of_the_model_elides_large_tensors(page):
    text = json.dumps(page["graph"])
    assert '"floatData": "160 values"' in text
    assert '"floatData": [0.0]' in text
    operators = [node["opType"] for node in page["graph"]["node"]]
    assert operators == [node.op_type for node in page["model"].graph.node]
    assert page["as_json"]({"a": [1.5] * 5, "b": [{"c": "x"}] * 6}) == {
        "a": "5 values",
        "b": [{"c": "x"}] * 6,
    }


def test_kernels_are_counted_once_per_run(page):
    ran, table = page["ran"], page["table"]
    assert table["kernels"].sum() == len(ran.events)
    assert table["kernels"].sum() == len(page["model"].graph.node) * page["args"].runs


def test_the_two_models_were_profiled_in_turn(page):
    whole, labels = page["profiles"].values()
    assert whole.latencies is labels.latencies
    found = page["merged"]
    only = found[found["side"] == "baseline only"]
    # The square root is for the distances only.
    assert "Sqrt" in set(only["op"])
    sentences = [str(sentence) for sentence in page["conclusion"](page["here"]).sentences]
    assert {f"{claim}." for claim in page["check"].claims} <= set(sentences)
