"""The page on KMeans, after it ran in fast mode."""

import json
from dataclasses import asdict

import numpy as np
import onnx.parser
import pandas as pd
import pytest
from page_runner import run_page
from scipy.spatial.distance import cdist

from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.claims import fact


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_kmeans_profiling")


def planted(*, processes=5, rounds=12, **medians):
    """Samples of known medians, of a spread of half a percent."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, m * np.exp(0.005 * rng.standard_normal((processes, rounds))))
        for name, m in medians.items()
    )


def operators(rounds=100, **medians):
    """Times of operators, in one process as those of a profile."""
    return planted(processes=1, rounds=rounds, **medians)


BOTH = "onnxruntime, labels and distances"
LABELS = "onnxruntime, labels"
PREDICT = "scikit-learn, labels"
NARROW = operators(Gemm=20.0, Add=70.0, Sqrt=10.0)
WIDE = operators(Gemm=60.0, Add=30.0, Sqrt=10.0)
NODES = pd.DataFrame(
    [("Ge", "Gemm", 900.0, 8e7, 1e3), ("Mu", "Mul", 300.0, 1e3, 1e6), ("b", "Add", 300.0, 1, 2e6)],
    columns=["name", "op", "median", "flop", "bytes"],
)


def both(medians, rounds):
    names = dict(zip((BOTH, LABELS), medians, strict=True))
    return tuple(operators(rounds, **names).values())


def data(narrow=NARROW, wide=WIDE, labels=(2e-3, 1e-3), latencies=(4, 2), rounds=100, **samples):
    """What the page keeps; labels has the medians of scikit-learn and of onnxruntime."""
    named = dict(zip((PREDICT, LABELS), labels, strict=True))
    return {
        "operator_times": {"narrow": narrow, "wide": wide},
        "wide": 200,
        "nodes": NODES,
        "peaks": {"gflop_per_s": 100, "gb_per_s": 10},
        "check": (both((4.0, 2.0), rounds), both(latencies, rounds)),
        "useless": ["Mu"],
        "measured": planted(**named, **samples),
        "floor": 2.5e-4,
        "trust": [asdict(fact("{share:.1%} of a run is outside of any kernel", share=0.02))],
    }


@pytest.mark.parametrize(
    ("narrow", "expected"),
    [
        (NARROW, "In Add: 70% of the kernel time, 20% in the product; with 200 features, the "),
        (operators(Gemm=60.0, Add=40.0), "In Gemm: 60% of the kernel time; with 200 features"),
        (
            operators(Add=40.0, Sqrt=40.0, FusedMatMul=15.0, Gemm=5.0),
            "80% of the kernel time, 20% in the product",
        ),
    ],
)
def test_the_answer_tells_where_the_time_goes(page, narrow, expected):
    answer, _ = page["conclude"](data(narrow))
    assert expected in str(answer)
    assert "the product takes 60%; for the labels" in str(answer)


def test_operators_that_take_the_same_time_are_both_told(page):
    found = page["find_longest"](operators(Add=40.0, Sqrt=40.0, Gemm=20.0))
    assert sorted(found) == ["Add", "Sqrt"]


@pytest.mark.parametrize(
    ("labels", "said", "verdict"),
    [
        ((2.0, 1.0), "onnxruntime is faster than scikit-learn (2.0", "faster"),
        ((1.0, 2.0), "onnxruntime is slower than scikit-learn (0.50", "slower"),
        ((1.0, 1.0), "onnxruntime is within 5% of scikit-learn (1.00", "equivalent"),
    ],
)
def test_the_answer_compares_the_labels(page, labels, said, verdict):
    answer, claims = page["conclude"](data(labels=labels))
    assert said in str(answer)
    (compared,) = [claim for claim in claims if claim.baseline == PREDICT]
    assert (compared.subject, compared.verdict) == (LABELS, verdict)
    assert compared.how == "5 processes"


@pytest.mark.parametrize(
    ("narrow", "wide", "verdicts"),
    [
        (NARROW, WIDE, ["right", "right"]),
        (WIDE, NARROW, ["wrong", "wrong"]),
        (NARROW, NARROW, ["right", "undecided"]),
        (operators(Gemm=50.0, Add=50.0), WIDE, ["undecided", "right"]),
        (operators(MatMul=50.0, Add=30.0, FusedMatMul=20.0), WIDE, ["wrong", "wrong"]),
    ],
)
def test_the_predictions_are_judged(page, narrow, wide, verdicts):
    found = list(page["judge_product"](narrow, wide))
    assert [claim.verdict for claim in found] == verdicts


def test_the_share_of_the_product_is_that_of_its_operators(page):
    first, _ = page["judge_product"](operators(MatMul=50.0, Add=30.0, FusedMatMul=20.0), WIDE)
    assert dict(first.values)["share"] == pytest.approx(0.7, rel=0.01)


def test_the_claims(page):
    _, claims = page["conclude"](data())
    said = [str(claim) for claim in claims]
    assert said[2:4] == [
        "most headroom: Mu (Mul), 0.3 ms against 0.1 ms at the peak of copies",
        "multiplied by zero: Mu; removing that saves up to 20%",
    ]
    assert said[4].startswith(f"kernels in total: {LABELS} is 2.00 times faster than {BOTH}")
    assert said[6] == "the kernels and the latency say the same"
    assert said[8].startswith("labels take 1 ms, 4.0 times the 0.25 ms that the product")
    assert said[9:] == ["2.0% of a run is outside of any kernel"]


def test_nothing_is_said_of_nodes_when_profiles_and_latencies_are_opposed(page):
    answer, claims = page["conclude"](data(latencies=(2.0, 4.0)))
    assert str(answer).startswith("The profiles and the latencies are opposed, which leaves the")
    assert "onnxruntime is faster than scikit-learn (2.0" in str(answer)
    said = " ".join(map(str, claims))
    assert "nothing can be concluded about nodes" in said
    assert not any(word in said for word in ("predicted", "headroom", "multiplied by zero"))


def test_nothing_is_said_of_nodes_from_the_launches_of_their_kernels(page):
    planted = data()
    answer, claims = page["conclude"](planted | {"check": ((), planted["check"][1])})
    assert str(answer).startswith("A profile has the launches of the kernels of a device, not")
    said = " ".join(map(str, claims))
    assert not any(word in said for word in ("predicted", "headroom", "kernels in total"))


def test_too_few_samples_decide_nothing(page):
    few = {
        "narrow": operators(6, Gemm=20.0, Add=80.0),
        "wide": operators(6, Gemm=80.0, Add=20.0),
    }
    answer, claims = page["conclude"](data(**few, rounds=6, processes=1))
    assert str(answer) == "Undecided: there are too few samples for an interval."
    assert {claim.verdict for claim in claims} == {"undecided", "fact"}


def test_no_word_of_a_claim_has_a_measured_number(page):
    """Two machines that find the same, with other numbers, make the same claims."""
    ones = page["conclude"](data())[1]
    others = page["conclude"](data(operators(Gemm=21.0, Add=71.0, Sqrt=10.0), labels=(3.0, 1.0)))[1]
    said = [[(c.subject, c.baseline, c.verdict) for c in claims] for claims in (ones, others)]
    assert said[0] == said[1]
    assert list(map(str, ones)) != list(map(str, others))


def test_what_multiplies_by_zero_is_told(page):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] X) => (float[2] Z) <float[1] zero = {0}, float[2] half = {0, 1}> {
        [a] A = Mul(X, zero)  [b] B = Mul(A, half)  [c] Z = Add(B, zero)
    }""")
    nodes = pd.DataFrame({"name": ["a", "b", "c"], "median": [25.0, 50.0, 25.0]})
    found = page["conclude_zeros"](page["multiplied_by_zero"](model), nodes)
    assert str(found) == "multiplied by zero: a; removing that saves up to 25%"
    assert str(page["conclude_zeros"]([], nodes)) == "no node multiplies by zero"


def test_the_times_of_operators_are_those_of_the_profile(page):
    """The Add of a run are summed; the first run is left out."""
    ran, times = page["ran"], page["operator_times"]["narrow"]
    events = ran.events[(ran.events["op"] == "Add") & (ran.events["iteration"] > 0)]
    expected = events.groupby("iteration")["self_duration"].sum().to_numpy()
    np.testing.assert_allclose(1e6 * times["Add"].seconds[0], np.maximum(expected, 1))
    assert times["Add"].repeat == page["args"].runs - 1
    assert set(times) == set(ran.by_operator()["op"])


def test_the_estimator_built_again_is_the_one_that_was_trained(page, tmp_path):
    file = tmp_path / "points.npy"
    np.save(file, page["X"])
    centers = page["kmeans"].cluster_centers_
    again = page["build_predict"](str(file), centers.tolist(), 1)
    np.testing.assert_allclose(again.func.__self__.cluster_centers_, centers, rtol=1e-5, atol=1e-5)
    assert (again() == page["kmeans"].predict(page["X"])).mean() > 0.999
    other = page["build_predict"](str(file), (-centers).tolist(), 1)
    assert (other() == page["kmeans"].predict(page["X"])).mean() < 0.9


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


@pytest.mark.parametrize("change", ["centers", "labels"])
def test_the_agreement_of_the_page_refuses_what_is_wrong(page, change):
    X, centers = page["X"], page["kmeans"].cluster_centers_
    values = cdist(X, centers)
    right = {"right": (values.argmin(axis=1), values)}
    (row,) = page["check_agreement"](X, centers, right)
    assert row["share of the bound"] < 1e-3
    moved = cdist(X, 1.001 * centers)
    wrong, message = {
        "centers": ((values.argmin(axis=1), moved), "outside of its bound"),
        "labels": ((values[:, ::-1].argmin(axis=1), values), "wrong label"),
    }[change]
    with pytest.raises(AssertionError, match=message):
        list(page["check_agreement"](X, centers, {"wrong": wrong}))


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
    claims = page["conclusion"](page["here"]).claims
    assert set(map(str, page["check"].claims)) <= set(map(str, claims))
