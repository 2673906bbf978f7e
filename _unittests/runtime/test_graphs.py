"""Tests of ortmeter.runtime.graphs: dictionaries, the order of nodes; its users show the rest."""

import numpy as np
import onnx
import onnxruntime
import pytest

from ortmeter.runtime.graphs import in_order, without_maps

TEXT = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 1]>
g (float[n, 2] X) => (float[n, 2] Y, float[n, 2] P) {
    P = Softmax(X)
    Y = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(P)
    Z = Abs(X)
}"""


def test_dictionaries_are_left_out():
    model = onnx.parser.parse_model(TEXT.replace(", float[n, 2] P)", ")"))
    cut, arrays = without_maps(model)
    assert arrays == {"Y": "P"}
    assert [node.op_type for node in model.graph.node] == ["Softmax", "ZipMap", "Abs"]
    session = onnxruntime.InferenceSession(cut.SerializeToString())
    (found,) = session.run(None, {"X": np.float32([[0, 0]])})
    assert found.tolist() == [[0.5, 0.5]]


def test_an_array_that_is_an_output_already_stays_one():
    cut, arrays = without_maps(onnx.parser.parse_model(TEXT))
    assert arrays == {"Y": "P"}
    assert [output.name for output in cut.graph.output] == ["P"]
    assert without_maps(cut) == (cut, {})  # which has no dictionary any more


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a = Abs(X) b = Exp(a) Y = Neg(b)", "abY"),
        ("Y = Neg(b) b = Exp(a) a = Abs(X)", "abY"),
        ("b = Exp(a) c = Abs(X) a = Abs(X) Y = Add(b, c)", "abcY"),  # what is in order stays
        (
            """Y = If (t) <then_branch = g () => (z) { z = Abs(a) },
            else_branch = h () => (w) { w = Neg(X) }> a = Exp(X)""",
            "aY",  # a body reads it
        ),
        ("a = Abs(Y) Y = Neg(a)", "Ya"),  # a circle, which is refused later
    ],
)
def test_nodes_come_after_what_they_read(nodes, expected):
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[n] X, bool t) => (float[n] Y) {{ {nodes} }}"""
    found = in_order(onnx.parser.parse_model(text).graph.node)
    assert [node.output[0] for node in found] == [*expected]
