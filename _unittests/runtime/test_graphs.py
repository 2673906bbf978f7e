"""Tests of ortmeter.runtime.graphs: what is left of dictionaries; the rest is seen in its users."""

import numpy as np
import onnx
import onnxruntime

from ortmeter.runtime.graphs import without_maps

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


def test_a_model_without_dictionaries_is_the_same():
    model = onnx.parser.parse_model(TEXT)
    model.graph.node.pop(1)
    model.graph.output.pop(0)
    assert without_maps(model) == (model, {})
