import numpy as np
import pytest
import torch

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator import Evaluator

TEXT = """<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1, "ai.onnx.ml": 3]>
g (float[m, n] X) => (float[m, n] Z, float[m, n] V) {
[first] Y = Relu(X)
W = Relu(Y)
[fused] Z = com.microsoft.FusedMatMul <transB = 1> (W, X)
[ml] V = ai.onnx.ml.Binarizer <threshold = 0.5> (Y)
}"""
X = np.float32([[1, -2], [3, 4]])
W = np.maximum(X, 0)


@pytest.mark.parametrize(
    ("kernels", "sources"),
    [
        ({}, {"first": "torch", "W": "torch"}),
        ({"Relu": "ort"}, {"first": "ort", "W": "ort"}),
        ({("", "Relu"): "reference"}, {"first": "reference", "W": "reference"}),
        ({("ai.onnx", "Relu"): "reference"}, {"first": "reference", "W": "reference"}),
        ({"node:first": "ort"}, {"first": "ort", "W": "torch"}),
        # a node without a name is known by its output
        ({"node:W": "reference"}, {"first": "torch", "W": "reference"}),
        # a node comes before its operator
        ({"Relu": "ort", "node:W": "reference"}, {"first": "ort", "W": "reference"}),
        ({("ai.onnx.ml", "Binarizer"): "ort"}, {"ml": "ort", "W": "torch"}),
    ],
)
def test_keys_designate_operators_and_nodes(kernels, sources):
    evaluator = Evaluator(TEXT, kernels)
    z, v = evaluator.run(None, {"X": X})
    np.testing.assert_allclose(z, W @ X.T)
    np.testing.assert_array_equal(v, (W > 0.5).astype(np.float32))
    found = evaluator.assignment.set_index("node")["source"].to_dict()
    assert {name: found[name] for name in sources} == sources
    assert found["fused"] == "ort"


def test_functions_take_and_give_the_library_of_the_feeds():
    seen = []

    def relu(x):
        seen.append(type(x))
        return x.clip(0)

    evaluator = Evaluator(TEXT, {"Relu": relu}, sources=("torch", "ort"))
    np.testing.assert_allclose(evaluator.run(None, {"X": X})[0], W @ X.T)
    evaluator.run(None, {"X": torch.from_numpy(X)})
    assert seen == [np.ndarray] * 2 + [torch.Tensor] * 2


def test_functions_take_attributes_and_give_several_outputs():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[m, n] X, int64[1] K) => (float[m, k] V, int64[m, k] I)
    { V, I = TopK <axis = 0> (X, K) }"""
    seen = {}

    def top(x, k, **attributes):
        seen.update(attributes)
        return x[: k[0]], np.zeros((k[0], x.shape[1]), np.int64)

    feeds = {"X": X, "K": np.int64([1])}
    values, places = Evaluator(text, {"TopK": top}).run(None, feeds)
    np.testing.assert_array_equal(values, X[:1])
    assert places.dtype == np.int64
    assert seen == {"axis": 0}
    with pytest.raises(
        ModelError, match=r"kernel of node 'V' \(TopK\) gave 1 outputs instead of 2"
    ):
        Evaluator(text, {"TopK": lambda x, k, axis: x}).run(None, feeds)


def test_a_constant_can_be_replaced():
    text = """<ir_version: 10, opset_import: ["": 18]> g () => (float[2] Y)
    { Y = Constant <value = float[2] {1, 2}> () }"""
    for swap, expected in ((lambda value: value + 1, [2, 3]), ("ort", [1, 2])):
        (got,) = Evaluator(text, {"Constant": swap}).run(None, {})
        assert got.tolist() == expected


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ({"Rellu": "ort"}, r"'Rellu' designate nothing.*Operators: Relu, ai\.onnx\.ml\.Binarizer"),
        ({"node:third": "ort"}, "'node:third' designate nothing.*Nodes: first, W, fused, ml"),
        ({("com.microsoft", "Relu"): "ort"}, r"\('com.microsoft', 'Relu'\) designate nothing"),
        ({"FusedMatMul": "ort"}, "'FusedMatMul' designate nothing"),
        ({"Relu": "ort", "Tanh": "ort", "Sin": "ort"}, "'Tanh', 'Sin' designate nothing"),
        ({"Relu": "onnxruntime"}, "kernels.*'onnxruntime' is not a kernel.*'torch', 'ort', 'ref"),
        ({"Relu": None}, "None is not a kernel"),
        ({("a", "b", "c"): "ort"}, "is not a key. Accepted: 'Op', .*'node:name'"),
        ({3: "ort"}, "3 is not a key"),
    ],
)
def test_what_designates_nothing_is_refused(kernels, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Evaluator(TEXT, kernels)


def test_what_is_asked_for_is_not_replaced_silently():
    evaluator = Evaluator(TEXT, {("com.microsoft", "FusedMatMul"): "reference"})
    with pytest.raises(ModelError, match=r"'fused'.*reference: no operator of domain 'com.microso"):
        evaluator.run(None, {"X": X})
