"""The page on KMeans, after it ran in fast mode."""

import json
import re

import numpy as np
import onnx.parser
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page
from scipy.spatial.distance import cdist

from ortmeter.evidence import Speedup
from ortmeter.runtime.providers import Provider
from ortmeter.timing import Comparison, Comparisons, Measurement


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


PREDICT, LABELS, BOTH = "scikit-learn", "onnxruntime", "onnxruntime, both"
NARROW = operators(Gemm=20.0, Add=70.0, Sqrt=10.0)
WIDE = operators(Gemm=60.0, Add=30.0, Sqrt=10.0)
NODES = pd.DataFrame(
    [("Ge", "Gemm", 900.0), ("Mu", "Mul", 300.0), ("b", "Add", 300.0)],
    columns=["name", "op", "median"],
)


def pair(medians, rounds):
    return tuple(operators(rounds, written=medians[0], optimized=medians[1]).values())


def data(narrow=NARROW, wide=WIDE, labels=(2e-3, 1e-3), latencies=(4, 2), rounds=100, **samples):
    """What the page keeps; labels has the medians of scikit-learn and of onnxruntime."""
    named = {PREDICT: labels[0], LABELS: labels[1], BOTH: 2 * labels[1]}
    return {
        "operators": Comparisons({20: narrow, 200: wide}, "features"),
        "nodes": NODES,
        "check": (pair((4.0, 2.0), rounds), pair(latencies, rounds)),
        "useless": ["Mu"],
        "measured": planted(**named, **samples),
        "floor": 2.5e-4,
        "legend": "float32 on CPU, threads=1",
    }


@pytest.mark.parametrize(
    ("narrow", "expected", "verdict"),
    [
        (NARROW, "spends 70% [70, 70] of its kernel time in Add, 20% [20, 20] in the ma", "Add"),
        (operators(Gemm=60.0, Add=40.0), "60% [60, 60] of its kernel time in Gemm;", "Gemm"),
        (
            operators(Add=40.0, Sqrt=40.0, FusedMatMul=15.0, Gemm=5.0),
            "(hard to tell from ",
            "undecided",
        ),
    ],
)
def test_the_answer_tells_where_the_time_goes(page, narrow, expected, verdict):
    answer, _ = page["conclude"](data(narrow))
    assert expected in str(answer)
    assert str(answer).startswith("With 20 features, ONNX Runtime spends ")
    assert "; with 200, 60% [60, 60] in Gemm. For labels alone, onnxruntime is" in str(answer)
    assert answer.label == verdict
    assert len(str(answer).split()) <= 60


def test_an_operator_of_several_nodes_is_told_with_their_number(page):
    nodes = pd.DataFrame({"op": ["Add", "Gemm", "Add", "Mul", "Mul", "Mul"]})
    assert page["name_operators"](["Add", "Gemm"], nodes) == "the two Add nodes and Gemm"
    assert page["name_operators"](["Mul"], nodes) == "the three Mul nodes"


def test_the_bars_of_the_answer_are_the_five_longest_operators(page):
    times = operators(Gemm=50.0, Add=400.0, Mul=300.0, Sqrt=200.0, ArgMin=40.0, Abs=10.0)
    answer, _ = page["conclude"](data(times))
    assert answer.axis == "% of the kernel time, 20 features"
    assert [bar.label for bar in answer.bars] == ["Add", "Mul", "Sqrt", "Gemm", "ArgMin"]
    assert [bar.value for bar in answer.bars] == pytest.approx([40, 30, 20, 5, 4], rel=0.02)
    assert all(bar.low < bar.value < bar.high for bar in answer.bars)


def test_operators_that_take_the_same_time_are_both_told(page):
    narrow = operators(Add=40.0, Sqrt=40.0, Gemm=20.0)
    assert sorted(page["find_longest"](narrow)) == ["Add", "Sqrt"]
    # The share is that of the longest one.
    answer, _ = page["conclude"](data(narrow))
    told = (
        r"spends 40% \[\d+, \d+\] of its kernel time in (Add \(hard to tell from Sqrt\)|Sqrt \(ha)"
    )
    assert re.search(told, str(answer))


@pytest.mark.parametrize(
    ("labels", "said", "verdict"),
    [
        ((2.0, 1.0), "onnxruntime is 2.00 times faster than scikit-learn [", "faster"),
        ((1.0, 2.0), "onnxruntime is 2.00 times slower than scikit-learn [", "slower"),
        ((1.0, 1.0), "onnxruntime and scikit-learn are within 5%: 1.00 [", "equivalent"),
    ],
)
def test_the_answer_compares_the_labels(page, labels, said, verdict):
    answer, claims = page["conclude"](data(labels=labels))
    assert said in str(answer)
    assert str(answer).endswith("].")
    (compared,) = [c for c in claims if isinstance(c, Speedup) and c.baseline == PREDICT]
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
def test_the_predictions_on_the_product_are_judged(page, narrow, wide, verdicts):
    found = list(page["judge_product"](Comparisons({20: narrow, 200: wide}, "features"), ""))
    assert [claim.verdict for claim in found] == verdicts


@pytest.mark.parametrize(
    ("floor", "verdict"), [(2.5e-4, "right"), (4.99e-4, "undecided"), (1e-3, "wrong")]
)
def test_the_prediction_on_the_least_time_is_judged(page, floor, verdict):
    """The labels take 1 ms: more than twice 0.25 ms, less than twice 1 ms."""
    measured = Comparison([Measurement(LABELS, data()["measured"][LABELS].seconds)])
    assert page["judge_floor"](measured, floor).verdict == verdict


def test_the_share_of_the_product_is_that_of_its_operators(page):
    times = operators(MatMul=50.0, Add=30.0, FusedMatMul=20.0)
    share, low, high = page["as_share"](page["weigh_product"](times))
    assert share == pytest.approx(70, rel=0.01)
    assert low < share < high < 71


def test_the_claims(page):
    _, claims = page["conclude"](data())
    said = [str(claim) for claim in claims]
    assert len(said) == 5
    text = "Right: the product takes less than half of the kernel time: 20% [20, 20]"
    assert said[0] == text
    share = "Right: the product takes a larger share with 200 features than with 20: 60% [60, 60]"
    assert said[1] == share
    assert said[2] == "Right: labels take more than twice the least time: 4.0 times [4.0, 4.0]"
    saved = "Mu multiplies by zero: removing it saves up to 20% of the kernel time"
    assert said[3] == saved
    assert said[4].startswith(f"{LABELS} is 2.00 times faster than {PREDICT} [")


def test_nothing_is_said_of_operators_when_profiles_and_latencies_are_opposed(page):
    answer, claims = page["conclude"](data(latencies=(2.0, 4.0)))
    assert str(answer).startswith("The time of each operator is not known: the profiles and the ")
    assert "onnxruntime is 2.00 times faster than scikit-learn [" in str(answer)
    assert [bar.label for bar in answer.bars] == [PREDICT, LABELS, BOTH]
    assert [claim.verdict for claim in claims[:2]] == ["undecided", "undecided"]
    assert not any("by zero" in str(claim) for claim in claims)


def test_nothing_is_said_of_operators_from_the_launches_of_their_kernels(page):
    planted = data()
    answer, claims = page["conclude"](planted | {"check": ((), planted["check"][1])})
    assert "not known: a profile has the launches of the kernels of a device" in str(answer)
    assert [claim.verdict for claim in claims] == ["undecided", "undecided", "right", "faster"]


def test_too_few_samples_decide_nothing(page):
    few = {
        "narrow": operators(6, Gemm=20.0, Add=80.0),
        "wide": operators(6, Gemm=80.0, Add=20.0),
    }
    answer, claims = page["conclude"](data(**few, rounds=6, processes=1))
    assert str(answer).startswith("Undecided (few or unstable samples): with 20 features, ONNX ")
    assert "no interval." in str(answer)
    assert {claim.verdict for claim in claims} == {"undecided", "fact"}


def test_no_word_of_a_claim_has_a_measured_number(page):
    """Two machines that find the same, with other numbers, make the same claims."""
    ones = page["conclude"](data())[1]
    others = page["conclude"](data(operators(Gemm=21.0, Add=71.0, Sqrt=10.0), labels=(3.0, 1.0)))[1]
    said = [[claim.words for claim in claims] for claims in (ones, others)]
    assert said[0] == said[1]
    assert list(map(str, ones)) != list(map(str, others))


def test_what_multiplies_by_zero_is_told(page):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] X) => (float[2] Z) <float[1] zero = {0}, float[2] half = {0, 1}> {
        [a] A = Mul(X, zero)  [b] B = Mul(A, half)  [c] Z = Add(B, zero)
    }""")
    nodes = pd.DataFrame({"name": ["a", "b", "c"], "median": [25.0, 50.0, 25.0]})
    found = page["conclude_zeros"](page["multiplied_by_zero"](model), nodes)
    assert str(found) == "a multiplies by zero: removing it saves up to 25% of the kernel time"
    assert str(page["conclude_zeros"]([], nodes)) == "no node multiplies by zero"


def test_the_model_has_seven_nodes_and_one_multiplies_by_zero(page):
    model = page["model"]
    assert (len(model.graph.node), len(model.graph.output)) == (7, 2)
    (useless,) = page["multiplied_by_zero"](model)
    (node,) = [node for node in model.graph.node if node.name == useless]
    (gemm,) = [node for node in model.graph.node if node.op_type == "Gemm"]
    assert (node.op_type, gemm.input[2]) == ("Mul", node.output[0])


@pytest.mark.parametrize(("factor", "unit"), [(1e-6, "µs"), (1e-4, "ms")])
def test_the_table_and_the_plot_of_operators_have_one_unit(page, factor, unit):
    times = [
        operators(**{op: factor * m for op, m in medians.items()})
        for medians in ({"Gemm": 20.0, "Add": 70.0}, {"Gemm": 60.0, "Add": 30.0})
    ]
    found = Comparisons(dict(zip((20, 200), times, strict=True)), "features")
    table = page["tabulate_operators"](found)
    assert list(table.index) == ["Add", "Gemm"]
    assert table[f"{unit} (20)"].tolist() == pytest.approx(
        [70 * factor * {"µs": 1e6, "ms": 1e3}[unit], 20 * factor * {"µs": 1e6, "ms": 1e3}[unit]],
        rel=0.01,
    )
    assert table["% (200)"].tolist() == pytest.approx([100 / 3, 200 / 3], rel=0.01)
    ax = page["plot_operators"](found, Provider("cpu"), "a legend")
    assert ax.get_xlabel() == f"median time per run ({unit}), lower is better"
    longest = max(bar.get_width() for container in ax.containers for bar in container)
    assert longest == pytest.approx(table[f"{unit} (20)"].max())
    plt.close(ax.figure)


def test_the_least_time_is_a_row_and_a_column(page):
    found = page["tabulate_latencies"](data()["measured"], 2.5e-4)
    assert list(found.index) == [PREDICT, LABELS, BOTH, "least time"]
    assert found.loc["least time", "median (ms)"] == 0.25
    assert found["/ least"].tolist() == pytest.approx([8, 4, 8, 1], rel=0.01)
    assert found.shape[1] == 6


def test_the_least_time_of_the_page_is_the_one_of_its_peaks(page):
    args, peaks = page["args"], page["peaks"]
    moved = args.points * (4 * args.features + 8)
    product = 2 * args.points * args.features * args.clusters
    expected = max(moved / peaks.gb_per_s, product / peaks.gflop_per_s) / 1e9
    assert page["floor"] == pytest.approx(expected)


def test_the_nodes_have_the_times_of_both_profiles(page):
    shown, nodes = page["shown"], page["ran"].by_node()
    (unit,) = {name.partition("(")[2] for name in shown.columns[:3]}
    factor = {"ms)": 1e-3, "µs)": 1}[unit]
    np.testing.assert_allclose(shown.iloc[:, 1], factor * nodes["median"])
    written = page["profiles"]["as written"].by_node().set_index("name")["median"]
    np.testing.assert_allclose(shown.iloc[:, 0], factor * written[list(shown.index)])


def test_the_times_of_operators_are_those_of_the_profile(page):
    """The Add of a run are summed; the first run is left out."""
    ran, times = page["ran"], page["operators"][page["args"].features]
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
    assert row["error / bound"] < 1e-3
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


def test_the_file_of_the_profiler_has_every_kernel_of_the_model_as_written(page):
    """ONNX Runtime records ten runs; sizes are in MiB."""
    events, raw, nodes = page["events"], page["raw"], page["model"].graph.node
    assert [event["name"] for event in events[:2]] == [
        "model_loading_array",
        "session_initialization",
    ]
    assert page["by_operator"]["count"].sum() == 10 * len(nodes)
    kernels = [event for event in events if event["cat"] == "Node"]
    assert page["by_operator"]["sum"].sum() == pytest.approx(sum(e["dur"] for e in kernels) / 1e3)
    assert len(raw) == len(events)
    rows = raw[raw["args.op_name"] == "Gemm"]
    assert set(rows["args.output_size (MiB)"]) == {
        4 * page["args"].points * page["args"].clusters / 2**20
    }


def test_the_two_models_were_profiled_in_turn(page):
    written, optimized = page["profiles"].values()
    assert written.latencies is optimized.latencies
    assert page["check"].verdict in {"agree", "opposed", "undecided"}
