import numpy as np
import onnx
import pytest
from profile_writer import kernel_event, run_event, write

from ortmeter.profiling import profile, read_profile
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.sessions import make_session

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


def test_throughputs_follow_from_the_cost(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", events()), model=TEXT)
    row = profile.by_node(flop).set_index("name").loc["product"]
    assert (row["flop"], row["bytes"]) == (48, 4 * (12 + 8 + 6))
    assert row["gflop_per_s"] == pytest.approx(48 / 4e-6 / 1e9)
    assert row["gb_per_s"] == pytest.approx(104 / 4e-6 / 1e9)
    assert row["initializer_size"] == 32


def test_shapes_that_change_have_their_own_cost(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", events(rows=(9, 1, 2, 5))), model=TEXT)
    table = profile.by_node(flop).set_index("name")
    assert table.loc["product", "flop"] == pytest.approx(16 * (1 + 2 + 5) / 3)
    assert np.isnan(table.loc["clip", "flop"])


def test_an_absent_input_keeps_its_place(tmp_path):
    seen = {}

    def spy(node, *tensors):
        seen[node.op_type] = tensors

    read_profile(write(tmp_path / "p.json", events()), model=TEXT).by_node(spy)
    inputs, outputs, input_types, output_types = seen["Clip"]
    assert inputs == ((3, 2), None, ())
    assert input_types == ("f32", None, "f32")
    assert (outputs, output_types) == (((3, 2),), ("f32",))


def test_tensors_that_cannot_be_placed_have_no_cost(tmp_path):
    found = events()
    for event in found:
        if event["name"].startswith("product"):
            event["args"]["input_type_shape"] = []  # a sequence is not described
    table = read_profile(write(tmp_path / "p.json", found), model=TEXT).by_node(flop)
    assert table["flop"].isna().all()


def test_a_time_of_zero_has_no_throughput(tmp_path):
    found = events(duration=0)
    table = read_profile(write(tmp_path / "p.json", found), model=TEXT).by_node(flop)
    assert table["gflop_per_s"].isna().all()


def test_without_a_model_nothing_is_invented(tmp_path):
    table = read_profile(write(tmp_path / "p.json", events())).by_node()
    assert table[["domain", "initializer_size", "flop", "gb_per_s"]].isna().all(axis=None)
    assert table["origin"].tolist() == [(), ()]


def test_the_default_cost_counts_a_product(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", events()), model=TEXT)
    assert profile.by_node().set_index("name").loc["product", "flop"] == 48
    assert profile.by_node(None)["flop"].isna().all()


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


def test_a_packed_weight_keeps_its_place(tmp_path):
    """ONNX Runtime does not record the weights that it packs for itself."""
    seen = {}
    kept = [e for e in events() if e["args"].get("op_name") != "Clip"]
    for event in kept:
        shapes = event["args"].get("input_type_shape")
        if shapes:
            event["args"]["input_type_shape"] = shapes[:1]

    def spy(node, *tensors):
        seen[node.op_type] = tensors

    read_profile(write(tmp_path / "p.json", kept), model=TEXT).by_node(spy)
    inputs, _, input_types, _ = seen["MatMul"]
    assert inputs == ((3, 4), (4, 2))
    assert input_types == ("f32", "f32")


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
