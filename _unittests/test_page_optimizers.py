"""The setting, the views and the walks of the page on graph optimizers."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import compare, drawn, parse, run_setting

from ortmeter.study import to_frame
from ortmeter.timing import Comparisons

MODELS = CNN, BERT, EAGER = "CNN dynamo", "BERT dynamo", "BERT eager TorchScript"
PATHS = {BERT: "Softmax IsNaN Where MatMul", EAGER: "Softmax MatMul"}
TIMES = {"all": 2.0, "basic": 4.0, "onnxslim": 1.0, "ort_fusions": 0.5}


@pytest.fixture(scope="module")
def data():
    """Samples whose medians are known, and attention that one tool fuses in one model."""
    fused = {(EAGER, "ort_fusions"): "3 Attention, 1 Gelu"}
    rows = {(m, way): {"fused": fused.get((m, way), "")} for m in MODELS for way in TIMES}
    compared = Comparisons(dict.fromkeys(MODELS, compare(TIMES)), "model")
    facts = to_frame(rows, "model", "way")
    own = {"times": compared, "starts": compared, "facts": facts, "paths": PATHS}
    return SimpleNamespace(**own, legend="planted")


def written(copies):
    """A model that squares its input, after nodes that change nothing."""
    body = " ".join(f"x{rank + 1} = Identity(x{rank})" for rank in range(copies))
    body = f"{body} z = Abs(x{copies}) y = Mul(z, z)"
    return parse(f"(float[2, 3] x0) => (float[2, 3] y) {{ {body} }}")


@pytest.mark.parametrize(("copies", "is_kept"), [(1, False), (2, True), (5, True)])
def test_the_setting_keeps_a_model_of_half_the_nodes(copies, is_kept):
    pytest.importorskip("onnxslim")
    saved = run_setting("slim_model", written(copies))["saved"]
    assert ("slim.onnx" in saved) == is_kept
    if is_kept:
        x = np.float32([[1, -2, 3], [0, 4, -5]])
        (got,) = ReferenceEvaluator(saved["slim.onnx"]).run(None, {"x0": x})
        assert np.array_equal(got, x * x)
        assert len(saved["slim.onnx"].graph.node) == 2


@pytest.mark.parametrize("view", ["loads", "runs"])
def test_the_speedups_that_are_drawn_are_over_level_all(page, data, view):
    found = drawn(page[view](data))
    assert found.keys() >= {"onnxslim", "ort_fusions"}
    for way, points in found.items():
        expected = TIMES["all"] / TIMES[way]
        assert [y for _, y in points] == pytest.approx([expected] * len(MODELS), rel=0.01)


def test_the_nodes_around_attention_are_below_those_that_are_expected(page, data):
    table = page["stops"](data)
    assert table.loc[BERT, "from Softmax"] == PATHS[BERT]
    assert table["ort_fusions"].to_list()[1:] == [False, True]
    assert list(table.index) == ["expected", *PATHS]
    model = parse("""(float[2, 4] X, float[4] S) => (float[2, 4] Y, int64[2] Z) {
      A = Softmax(X)  Z = Shape(A)  B = IsNaN(A)  C = Where(B, X, A)
      D = Add(C, X)  Y = LayerNormalization(D, S) }""")
    assert page["walk_down"](model) == "Softmax IsNaN Where Add LayerNormalization"


@pytest.mark.slow
def test_what_is_expected_is_fused(page, monkeypatch):
    """The nodes that the page calls expected are those that transformers fuses."""
    monkeypatch.setitem(page, "rng", np.random.default_rng(0))
    model = page["export"]("BERT eager TorchScript")
    assert page["walk_down"](model) == page["EXPECTED"]
    found = page["rewrite_model"](model, "transformers", **page["HEADS"]["transformers"])
    assert "Attention" in {node.op_type for node in found.graph.node}
