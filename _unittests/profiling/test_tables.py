import statistics

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.profiling import profile, read_profile, tables
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.sessions import make_session


def test_by_operator(tmp_path):
    durations = {"Exp": [10, 4, 8, 6], "Add": [5, 3, 1, 2]}
    events = []
    for run in range(4):
        base = 100 * run
        events += [
            kernel_event("first", base + 2, durations["Exp"][run], op="Exp"),
            kernel_event("second", base + 30, durations["Add"][run]),
            kernel_event("third", base + 40, durations["Add"][run], index=2),
            run_event(base, 60),
        ]
    table = read_profile(write(tmp_path / "p.json", events)).by_operator().set_index("op")
    for op, nodes in {"Exp": 1, "Add": 2}.items():
        steady = [nodes * d for d in durations[op][1:]]
        row = table.loc[op]
        assert row["nodes"] == row["calls"] == nodes
        assert row["median"] == statistics.median(steady)
        assert [row["q1"], row["q3"]] == np.percentile(steady, [25, 75]).tolist()
        assert row["total"] == sum(steady)
        assert row["mean"] == pytest.approx(statistics.mean(steady))
        assert row["first"] == nodes * durations[op][0]
        assert row["share"] == pytest.approx(row["median"] / (6 + 4))
    assert table.index.tolist() == ["Exp", "Add"]


def test_by_iteration(small):
    table = small.by_iteration()
    assert table["duration"].tolist() == [21, 10]
    assert table["kernel_time"].tolist() == table["covered"].tolist() == [15, 7]
    assert table["unexplained"].tolist() == pytest.approx([6 / 21, 3 / 10])
    assert table["steady"].tolist() == [False, True]
    assert small.unexplained == pytest.approx(3 / 10)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_covered_time_is_a_union(tmp_path_factory, runs):
    events, expected = [], []
    for rank, kernels in enumerate(runs):
        base = 100 * rank
        events += [
            kernel_event("x", base + start, duration, thread=i)
            for i, (start, duration) in enumerate(kernels)
        ]
        events.append(run_event(base, 99, thread=99))
        expected.append(len({t for s, d in kernels for t in range(s, s + d)}))
    path = write(tmp_path_factory.mktemp("p") / "p.json", events)
    table = read_profile(path).by_iteration()
    assert table["covered"].tolist() == expected
    assert table["kernels"].tolist() == [len(kernels) for kernels in runs]


@pytest.mark.parametrize(
    ("warmup", "steady"), [(0, [True, True]), (1, [False, True]), (5, [False, True])]
)
def test_first_runs_are_left_out_but_never_all(tmp_path, warmup, steady):
    profile = read_profile(write(tmp_path / "p.json", two_runs()), warmup=warmup)
    assert profile.by_iteration()["steady"].tolist() == steady


def test_a_node_of_the_first_run_only_has_no_median(tmp_path):
    events = [kernel_event("rare", 65, 2, op="Neg"), *two_runs()]
    events[0]["ts"] = 58
    table = read_profile(write(tmp_path / "p.json", events)).by_node().set_index("name")
    assert np.isnan(table.loc["rare", "median"])
    assert table.loc["rare", ["calls", "total", "first"]].tolist() == [0, 0, 2]


def test_memory(tmp_path):
    memory = {"mem_arena_held": 100, "mem_bytes_in_use": 500}
    events = two_runs()
    events[2] = kernel_event("first", 41, 10, op="Exp", memory=memory)
    table = read_profile(write(tmp_path / "p.json", events)).memory().set_index("name")
    assert table.loc["first", ["in_use", "arena_held"]].tolist() == [1024, 4096]
    assert table.index.tolist() == ["first", "second"]


TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 4] X) => (float[n, 2] Y) <float[4, 2] W = {1, 2, 3, 4, 5, 6, 7, 8}, float hi = {6.0}>
{ [product] P = MatMul(X, W)  [clip] Y = Clip(P, , hi) }"""


def events(rows=(3, 3), duration=4):
    found = []
    for run, n in enumerate(rows):
        base = 100 * run
        shapes = {"inputs": [("float", (n, 4)), ("float", (4, 2))], "outputs": [("float", (n, 2))]}
        clip = {"inputs": [("float", (n, 2)), ("float", ())], "outputs": [("float", (n, 2))]}
        found += [
            kernel_event("product", base + 1, duration, op="MatMul", **shapes),
            kernel_event("clip", base + 11, 2, op="Clip", index=1, **clip),
            run_event(base, 20),
        ]
    return found


def flop(node, input_shapes, output_shapes, input_types, output_types):
    if node.op_type != "MatMul":
        return None
    (m, k), (_, n) = input_shapes
    return 2 * m * k * n, 4 * (m * k + k * n + m * n)


@pytest.fixture
def planted_cost(monkeypatch):
    monkeypatch.setattr(tables, "node_cost", flop)


def test_throughputs_follow_from_the_cost(tmp_path, planted_cost):
    profile = read_profile(write(tmp_path / "p.json", events()), model=TEXT)
    row = profile.by_node().set_index("name").loc["product"]
    assert (row["flop"], row["bytes"]) == (48, 4 * (12 + 8 + 6))
    assert row["gflop_per_s"] == pytest.approx(48 / 4e-6 / 1e9)
    assert row["gb_per_s"] == pytest.approx(104 / 4e-6 / 1e9)
    # A time of zero has no throughput.
    instant = read_profile(write(tmp_path / "q.json", events(duration=0)), model=TEXT).by_node()
    assert instant["gflop_per_s"].isna().all()


def test_shapes_that_change_have_their_own_cost(tmp_path, planted_cost):
    profile = read_profile(write(tmp_path / "p.json", events(rows=(9, 1, 2, 5))), model=TEXT)
    table = profile.by_node().set_index("name")
    assert table.loc["product", "flop"] == pytest.approx(16 * (1 + 2 + 5) / 3)
    assert np.isnan(table.loc["clip", "flop"])


@pytest.mark.parametrize("recorded", ["none", "too many", "not at all"])
def test_tensors_that_cannot_be_placed_have_no_cost(tmp_path, planted_cost, recorded):
    found = events()
    for event in found:
        if event["name"].startswith("product"):
            tensors = event["args"].pop("input_type_shape")
            if recorded != "not at all":  # a sequence is not described
                event["args"]["input_type_shape"] = 2 * tensors if recorded == "too many" else []
    table = read_profile(write(tmp_path / "p.json", found), model=TEXT).by_node()
    assert table["flop"].isna().all()


def test_without_a_model_nothing_is_invented(tmp_path):
    table = read_profile(write(tmp_path / "p.json", events())).by_node()
    assert table[["domain", "flop", "gb_per_s"]].isna().all(axis=None)
    assert table["origin"].tolist() == [(), ()]


def test_inclusive_time_holds_the_body(recorded, models):
    table = read_profile(recorded["loop"], model=models["loop"]).by_node().set_index("name")
    inside = table[table["parent"] == "repeat"]
    assert table.loc["repeat", "inclusive"] >= table.loc["repeat", "median"]
    assert table["share"].sum() == pytest.approx(1)
    assert inside["calls"].tolist() == [3, 3, 3]


def test_origin_of_a_fused_node(tmp_path):
    before = load_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,2] X, float[2,2] W) => (float[2,2] Y)'
        "{ [a] Z = MatMul(X, W)  [b] Y = Add(Z, X) }"
    )
    optimized = tmp_path / "optimized.onnx"
    session = make_session(before, provider="cpu", optimized_path=optimized, profile=tmp_path / "p")
    session.run(None, {"X": np.eye(2, dtype=np.float32), "W": np.eye(2, dtype=np.float32)})
    profile = read_profile(session.end_profiling(), model=optimized, original=before)
    assert profile.by_node()[["op", "origin"]].to_numpy().tolist() == [["Gemm", ("a", "b")]]


def test_absent_inputs_and_packed_weights_keep_their_place(tmp_path, monkeypatch):
    """ONNX Runtime does not record the weights that it packs for itself."""
    seen, found = {}, events()
    for event in found:
        if event["name"].startswith("product"):
            del event["args"]["input_type_shape"][1:]
    monkeypatch.setattr(tables, "node_cost", lambda node, *given: seen.update({node.name: given}))
    read_profile(write(tmp_path / "p.json", found), model=TEXT).by_node()
    assert seen == {
        "product": (((3, 4), (4, 2)), ((3, 2),), ("f32", "f32"), ("f32",)),
        "clip": (((3, 2), None, ()), ((3, 2),), ("f32", None, "f32"), ("f32",)),
    }


def test_the_cost_of_a_packed_gemm_is_known():
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 20] X) => (float[n, 8] Y) { Y = Gemm<transB = 1>(X, W, C) }"""
    model = load_model(text)
    for name, shape in {"W": (8, 20), "C": (8,)}.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    feeds = {"X": rng.standard_normal((50, 20)).astype(np.float32)}
    table = profile(model, feeds, provider="cpu", repeat=2, overhead=False).by_node()
    assert table["flop"].tolist() == [2 * 50 * 20 * 8 + 50 * 8]
