"""Which kernel runs a node: fallback between sources, what each one does, what the user swaps."""

import numpy as np
import onnx
import onnx.helper
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import InvalidArgumentError, ModelError, RefusedError
from ortmeter.evaluator import Evaluator
from ortmeter.evaluator.sources import one_node_session
from ortmeter.operators import registry

HEAD = '<ir_version: 10, opset_import: ["": {}]>'


def one_node(op_type, dtypes, opset=18, **attributes):
    """A model of one node, its inputs of any rank."""
    names = [f"x{i}" for i in range(len(dtypes))]
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in dtypes]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, names, ["y"], name="node", **attributes)],
        "g",
        [onnx.helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds, strict=True)],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def source_of(evaluator):
    return evaluator.assignment["source"].tolist()[-1]


@pytest.fixture
def picky(monkeypatch):
    """A torch kernel of Neg that refuses what is not float32, and counts its calls."""
    calls = []

    def negate(x):
        calls.append(x.dtype)
        if x.dtype != torch.float32:
            raise RefusedError("float32 only")
        return -x

    find = registry.find_kernel
    monkeypatch.setattr(
        registry, "find_kernel", lambda d, op, v: negate if op == "Neg" else find(d, op, v)
    )
    return calls


def test_a_refusal_leads_to_the_next_source_once_per_type(picky):
    model = one_node("Neg", [np.float32])
    model.graph.input[0].type.Clear()
    evaluator = Evaluator(model)
    for dtype, source in [("float32", "torch"), ("float64", "ort"), ("int32", "ort")] * 3:
        x = np.ones(3, dtype)
        (got,) = evaluator.run(None, {"x0": x})
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, -x)
        assert source_of(evaluator) == source
    refused = [dtype for dtype in picky if dtype != torch.float32]
    assert len(refused) <= 3  # the first type is tried again by the chain
    assert picky.count(torch.float32) == 3


@pytest.mark.parametrize("text", ["this does not support that", "not implemented"])
def test_an_error_of_a_kernel_is_not_a_refusal_whatever_its_text(monkeypatch, text):
    def fail(x):
        raise RuntimeError(text)

    monkeypatch.setattr(registry, "find_kernel", lambda *_: registry.guard("Neg", fail))
    evaluator = Evaluator(one_node("Neg", [np.float32]))
    with pytest.raises(ModelError, match=f"torch kernel of node 'node'.*{text}"):
        evaluator.run(None, {"x0": np.ones(2, np.float32)})


def test_an_attribute_that_a_kernel_does_not_know_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "find_kernel", lambda *_: lambda x: x * 100)
    evaluator = Evaluator(one_node("LeakyRelu", [np.float32], alpha=0.5), sources=("torch", "ort"))
    (got,) = evaluator.run(None, {"x0": np.float32([-2, 2])})
    assert got.tolist() == [-1, 2]
    assert source_of(evaluator) == "ort"


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_the_reference_is_passed_over_before_opset_13(op_type):
    """A known error: several axes are one before opset 13."""
    x = np.random.default_rng(0).random((2, 3, 4), np.float32)
    flat = one_node(op_type, [np.float32], 13, axis=-1)
    (expected,) = ReferenceEvaluator(flat).run(None, {"x0": x.reshape(2, 12)})
    evaluator = Evaluator(one_node(op_type, [np.float32], 11, axis=1), sources=("reference", "ort"))
    np.testing.assert_allclose(
        evaluator.run(None, {"x0": x})[0], expected.reshape(x.shape), rtol=1e-6
    )
    assert source_of(evaluator) == "ort"
    asked = Evaluator(one_node(op_type, [np.float32], 11, axis=1), {op_type: "reference"})
    assert not np.allclose(asked.run(None, {"x0": x})[0], expected.reshape(x.shape))


def test_attributes_of_old_opsets_are_not_ignored_by_the_reference():
    model = one_node("Add", [np.float32, np.float32], 6, axis=0, broadcast=1)
    with pytest.raises(ModelError, match="reference: attributes axis, broadcast of opset 6"):
        Evaluator(model, sources=("reference",)).run(
            None, {"x0": np.ones((2, 2), np.float32), "x1": np.ones(2, np.float32)}
        )


def test_sessions_are_shared_by_nodes_that_do_the_same():
    one_node_session.cache_clear()
    text = (
        HEAD.format(18)
        + """ g (float[n] X, float[m, n] M) => (float[n] A, float[m, n] B) {
    [a] a = LeakyRelu <alpha = 0.5> (X)  [b] A = LeakyRelu <alpha = 0.5> (a)
    [c] B = LeakyRelu <alpha = 0.5> (M) }"""
    )
    feeds = {"X": np.float32([1, -4]), "M": np.float32([[1, -4]])}
    a, b = Evaluator(text, sources=("ort",)).run(None, feeds)
    assert (a.tolist(), b.tolist()) == ([1, -1], [[1, -2]])
    assert one_node_session.cache_info().currsize == 2  # by rank
    Evaluator(text.replace("18", "20"), sources=("ort",)).run(None, feeds)
    assert one_node_session.cache_info().currsize == 2  # LeakyRelu is the one of opset 16
    Evaluator(text.replace("0.5", "0.25"), sources=("ort",)).run(None, feeds)
    assert one_node_session.cache_info().currsize == 4


def test_optional_inputs_are_part_of_the_session():
    text = (
        HEAD.format(18)
        + """ g (float[n] X, float L, float H) => (float[n] A, float[n] B) {
    A = Clip(X, L)  B = Clip(X, , H) }"""
    )
    feeds = {"X": np.float32([-3, 0, 3]), "L": np.float32(-1), "H": np.float32(1)}
    for sources in (("torch",), ("ort",), ("reference",)):
        a, b = Evaluator(text, sources=sources).run(None, feeds)
        assert (a.tolist(), b.tolist()) == ([-1, 0, 3], [-3, 0, 1])


def test_outputs_without_a_name_are_skipped():
    text = (
        HEAD.format(18)
        + """ g (float[m, n] X, int64[1] K) => (int64[m, n] I)
    { , I = TopK(X, K) }"""
    )
    feeds = {"X": np.float32([[1, 3, 2]]), "K": np.int64([2])}
    for sources in (("ort",), ("reference",)):
        (got,) = Evaluator(text, sources=sources).run(None, feeds)
        assert got.tolist() == [[1, 2]]


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
        ({"Rellu": "ort"}, r"'Rellu' match no node.*Operators: Relu, ai\.onnx\.ml\.Binarizer"),
        ({"node:third": "ort"}, "'node:third' match no node.*Nodes: first, W, fused and 1 more"),
        ({"Relu": "ort", "Tanh": "ort", "Sin": "ort"}, "'Tanh', 'Sin' match no node"),
        ({"Relu": "onnxruntime"}, "kernels.*'onnxruntime' is not a kernel.*'torch', 'ort', 'ref"),
        ({"Relu": None}, "None is not a kernel"),
        ({("a", "b", "c"): "ort"}, "is not a key. Accepted: 'Op', .*'node:name'"),
    ],
)
def test_what_designates_nothing_is_refused(kernels, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Evaluator(TEXT, kernels)


def test_what_is_asked_for_is_not_replaced_silently():
    evaluator = Evaluator(TEXT, {("com.microsoft", "FusedMatMul"): "reference"})
    with pytest.raises(
        ModelError, match=r"'fused'.*reference: no implementation of com.microsoft.F"
    ):
        evaluator.run(None, {"X": X})
