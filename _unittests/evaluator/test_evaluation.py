import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
import torch

from ortmeter.errors import FeedError, InvalidArgumentError, ModelError
from ortmeter.evaluator import Evaluator, to_float64

TEXT = """<ir_version: 10, opset_import: ["": 18]>
g (float[n] X, float[n] Y) => (float[n] Z) <float[1] two = {2}> {
[sum] A = Add(X, Y)
[double] B = Mul(A, two)
[root] C = Sqrt(B)
Z = Neg(C) }"""
X, Y = np.float32([1, 2]), np.float32([1, 6])
FEEDS = {"X": X, "Y": Y}
SOURCES = [("torch",), ("ort",), ("reference",), ("torch", "ort", "reference")]


@pytest.mark.parametrize("sources", SOURCES, ids=" ".join)
def test_a_model_gives_what_numpy_gives(sources):
    evaluator = Evaluator(TEXT, sources=sources)
    (got,) = evaluator.run(None, FEEDS)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, -np.sqrt(2 * (X + Y)), rtol=1e-6)
    assert evaluator.output_names == ("Z",)
    feeds = {name: torch.from_numpy(value) for name, value in FEEDS.items()}
    (tensor,) = evaluator.run(None, feeds)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), got)


def test_gradients_are_not_recorded():
    feeds = {"X": torch.tensor([1.0], requires_grad=True), "Y": torch.ones(1)}
    assert not Evaluator(TEXT).run(None, feeds)[0].requires_grad


@pytest.mark.parametrize("names", [["A"], ["C", "A", "Z"], ["two", "B"], ["X"], []])
def test_any_result_can_be_asked_for(names):
    known = {"X": X, "two": np.float32([2]), "A": X + Y, "B": 2 * (X + Y)}
    known["C"] = np.sqrt(known["B"])
    known["Z"] = -known["C"]
    got = Evaluator(TEXT).run(names, FEEDS)
    assert len(got) == len(names)
    for name, value in zip(names, got, strict=True):
        np.testing.assert_allclose(value, known[name], rtol=1e-6)


def test_the_same_evaluator_runs_with_other_shapes_and_types():
    text = """<ir_version: 10, opset_import: ["": 18]> g (float X, float Y) => (float Z)
    { Z = Div(X, Y) }"""
    model = onnx.parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):
        value.type.Clear()
    evaluator = Evaluator(model, sources=("ort", "torch"))
    for dtype in ("float32", "int64", "float64"):
        for shape in ((2, 3), (), (0,)):
            x, y = np.full(shape, 7, dtype), np.full(shape, 2, dtype)
            (got,) = evaluator.run(None, {"X": x, "Y": y})
            expected = x // y if dtype == "int64" else x / y
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"X": X}, r"Missing input: 'Y'\. Expected: 'X' f32\[n\], 'Y' f32\[n\]"),
        ({**FEEDS, "W": X}, r"Unknown inputs: 'W'\. Expected: 'X' f32\[n\]"),
        ({**FEEDS, "Y": Y.astype(np.float64)}, r"Input 'Y' f32\[n\] was given f64\[2\]"),
        ({**FEEDS, "X": X[None]}, r"Input 'X' f32\[n\] was given f32\[1, 2\]"),
        ({**FEEDS, "X": [X]}, r"Input 'X' f32\[n\] was given a sequence of f32\[2\]"),
        ({**FEEDS, "X": None}, r"Input 'X' f32\[n\] was given nothing"),
        ({**FEEDS, "X": "text"}, r"Input 'X' f32\[n\] cannot be read"),
    ],
)
def test_a_wrong_feed_is_named(feeds, message):
    with pytest.raises(FeedError, match=message):
        Evaluator(TEXT).run(None, feeds)
    with pytest.raises(FeedError, match=r"'X' f32\[3\] was given f32\[2\]"):
        Evaluator(TEXT.replace("float[n] X", "float[3] X")).run(None, FEEDS)


def test_an_initializer_is_a_default():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[n] X, float[1] W = {3}) => (float[n] Z) { Z = Mul(X, W) }"""
    evaluator = Evaluator(text)
    for feeds, factor in (({}, 3), ({"W": np.float32([5])}, 5), ({}, 3)):
        np.testing.assert_array_equal(evaluator.run(None, {"X": X, **feeds})[0], X * factor)


def test_unknown_results_and_options_are_refused():
    with pytest.raises(InvalidArgumentError, match="Unknown results: Q. Accepted: A, B"):
        Evaluator(TEXT).run(["Q"], FEEDS)
    with pytest.raises(InvalidArgumentError, match="sources=.*'numpy'.*torch, ort, reference"):
        Evaluator(TEXT, sources=("numpy",))
    with pytest.raises(InvalidArgumentError, match="sources"):
        Evaluator(TEXT, sources=())
    with pytest.raises(InvalidArgumentError, match="'gpu'"):
        Evaluator(TEXT, device="gpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Neg(C)", "Neg(D)"), "node 'Z' (Neg) needs 'D', which nothing before it gives"),
        (("B = Mul", "A = Mul"), "Result 'A' is defined twice"),
        (("(float[n] Z)", "(float[n] Q)"), "output of the graph needs 'Q'"),
    ],
)
def test_an_invalid_graph_is_refused(change, message):
    with pytest.raises(ModelError) as caught:
        Evaluator(TEXT.replace(*change))
    assert message in str(caught.value)


def test_a_failure_names_the_node_and_its_inputs():
    feeds = {"X": np.ones(2, np.float32), "Y": np.ones(3, np.float32)}
    with pytest.raises(
        ModelError, match=r"kernel of node 'sum' \(Add\) fails on f32\[2\], f32\[3\]"
    ):
        Evaluator(TEXT).run(None, feeds)


def test_an_operator_without_kernel_says_who_refused():
    text = TEXT.replace("Neg(C)", "Negg(C)")
    told = r"No kernel runs node 'Z' \(Negg\) of opset 18 on f32\[2\]. torch: .*ort: .*refer"
    with pytest.raises(ModelError, match=told):
        Evaluator(text).run(None, FEEDS)
    np.testing.assert_array_equal(Evaluator(text).run(["A"], FEEDS)[0], X + Y)


def test_the_assignment_tells_what_ran():
    text = TEXT.replace("Neg(C)", "Hardmax<axis = 0>(C)")
    evaluator = Evaluator(
        text,
        {"Mul": "ort", "node:root": np.sqrt, "node:Z": "reference"},
        sources=("torch",),
    )
    evaluator.run(None, FEEDS)
    frame = evaluator.assignment.set_index("node")
    assert frame["source"].to_dict() == {
        "sum": "torch", "double": "ort", "root": "callable", "Z": "reference",
    }  # fmt: skip
    assert list(frame["op_type"]) == ["Add", "Mul", "Sqrt", "Hardmax"]


def test_the_callback_sees_the_nodes_that_are_needed_in_the_library_of_the_feeds():
    seen = {}
    evaluator = Evaluator(TEXT, callback=lambda node, *values: seen.update({node.op_type: values}))
    evaluator.run(["B"], FEEDS)
    assert list(seen) == ["Add", "Mul"]
    (a, two), (b,) = seen["Mul"]
    np.testing.assert_array_equal(a * two, b)
    assert isinstance(b, np.ndarray)
    evaluator.run(None, {name: torch.from_numpy(value) for name, value in FEEDS.items()})
    assert isinstance(seen["Mul"][1][0], torch.Tensor)


def test_writing_into_a_result_changes_no_weight():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[n] X) => (float[1] V) <float[1] W = {3}> { V = Identity(W) }"""
    for sources in SOURCES:
        evaluator = Evaluator(text, sources=sources)
        for value in evaluator.run(None, {"X": X}):
            value[...] = 100
        assert evaluator.run(["W", "V"], {"X": X}) == [3, 3]


VIEWS = {
    # of a broadcast, every element of a row is one place
    "Expand": "s = Constant <value_ints = [3, 4]> ()  Y = Expand(A, s)",
    # two names, or two parts, of one value
    "Identity": "Y = Identity(A)  Z = Identity(A)",
    "Reshape": "s = Constant <value_ints = [4, 1]> ()  Y = Reshape(A, s)  Z = Reshape(Y, s)",
    "Transpose": "Y = Transpose(A)  Z = Transpose(Y)",
    "Split": "Y, Z = Split <axis = 1, num_outputs = 2> (A)",
    "Slice": (
        "i = Constant <value_ints = [0]> ()  j = Constant <value_ints = [9]> ()"
        " Y = Slice(A, i, j)  Z = Slice(Y, i, j)"
    ),
    "Unsqueeze": "s = Constant <value_ints = [0]> ()  Y = Unsqueeze(A, s)  Z = Squeeze(Y, s)",
}


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("sources", [("torch",), ("reference",), ("ort",)], ids=" ".join)
@pytest.mark.parametrize("first", ["Identity(X)", "Neg(X)"])
@pytest.mark.parametrize("op_type", VIEWS)
def test_each_result_has_its_own_memory(op_type, first, sources, library):
    """Whether it is a view of an input or of what was computed."""
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[1, 4] X) => (A, Y, Z)'
        f"{{ A = {first}  {VIEWS[op_type]} {'Z = Neg(Y)' if op_type == 'Expand' else ''} }}"
    )
    model = onnx.parser.parse_model(text.replace("(A, Y, Z)", "(float A, float Y, float Z)"))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    fed = np.arange(1, 5, dtype=np.float32).reshape(1, 4)
    x = library(fed.copy())
    got = Evaluator(model, sources=sources).run(["A", "Y", "Z", "Y"], {"X": x})
    results = [value.numpy() if isinstance(value, torch.Tensor) else value for value in got]
    expected = [value.copy() for value in results]
    for rank, value in enumerate(results):
        for i, place in enumerate(np.ndindex(value.shape)):  # each element by itself
            value[place] = 1000 * rank + i
        np.testing.assert_array_equal(value.ravel(), 1000 * rank + np.arange(value.size))
        for other, before in zip(results[rank + 1 :], expected[rank + 1 :], strict=True):
            np.testing.assert_array_equal(other, before)
    np.testing.assert_array_equal(x, fed)


def test_the_elements_of_a_sequence_have_their_own_memory():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[n] X) => (seq(float[n]) S) { A = Neg(X)  S = SequenceConstruct(A, A) }"""
    ((first, second),) = Evaluator(text, sources=("torch", "reference")).run(None, {"X": X})
    first[...] = 100
    np.testing.assert_array_equal(second, -X)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int64, np.float64, np.bool_])
@pytest.mark.parametrize("layout", ["reversed", "read-only", "big-endian", "transposed"])
@pytest.mark.parametrize("sources", [("torch",), ("ort",), ("ort", "torch")], ids=" ".join)
def test_arrays_of_any_type_and_layout_are_taken(dtype, layout, sources):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    if layout == "reversed":
        x = x[::-1, ::-1]
    elif layout == "transposed":
        x = x.T
    elif layout == "read-only":
        x.flags.writeable = False
    elif np.dtype(dtype).isbuiltin == 1:
        x = x.astype(np.dtype(dtype).newbyteorder(">"))
    name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    text = f"""<ir_version: 10, opset_import: ["": 18]>
    g ({name.lower()}[m, n] X) => ({name.lower()}[n, m] Y) {{ Y = Transpose(X) }}"""
    evaluator = Evaluator(text, sources=sources)
    (got,) = evaluator.run(None, {"X": x})
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, x.T)
    assert evaluator.assignment["source"].tolist() == [*sources[:1]]


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn])
def test_types_that_torch_lacks_travel(dtype):
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    text = f"""<ir_version: 11, opset_import: ["": 23]>
    g (float[n] X) => (float[n] Z) {{ Y = Cast<to = {kind}>(X)  Z = Cast<to = 1>(Y) }}"""
    x = np.float32([1, 2, 3])
    for feeds in ({"X": x}, {"X": torch.from_numpy(x)}):
        y, z = Evaluator(text).run(["Y", "Z"], feeds)
        assert y.dtype == dtype
        np.testing.assert_array_equal(np.asarray(z), x)


def test_strings_travel():
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (string[n] X) => (string[n] Y) { Y = StringConcat(X, X) }"""
    for sources in SOURCES[1:]:
        (got,) = Evaluator(text, sources=sources).run(None, {"X": np.array(["a", "é"])})
        assert got.tolist() == ["aa", "éé"]


def test_sparse_tensors_are_refused():
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[4] X) => (float[4] Y) { Y = Add(X, S) }"""
    model = onnx.parser.parse_model(text)
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([5]), "S"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.int64([1])))
    for use in (Evaluator, to_float64):
        with pytest.raises(ModelError, match="Sparse initializer 'S' is not supported"):
            use(model)
    del model.graph.sparse_initializer[:]
    node = onnx.helper.make_node("Constant", [], ["S"], sparse_value=sparse)
    model.graph.node.insert(0, node)
    with pytest.raises(ModelError, match="has the values sparse_value. Accepted: exactly one of"):
        Evaluator(model)


def test_external_data_is_read(tmp_path):
    model = onnx.parser.parse_model(TEXT.replace(" <float[1] two = {2}>", ""))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([2]), "two"))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_allclose(Evaluator(path).run(["B"], FEEDS)[0], 2 * (X + Y))
    unloaded = onnx.load(path, load_external_data=False)
    with pytest.raises(ModelError, match="'two' cannot be read"):
        Evaluator(unloaded)


@pytest.mark.cuda
@pytest.mark.parametrize("sources", SOURCES, ids=" ".join)
def test_a_model_runs_on_cuda(sources):
    evaluator = Evaluator(TEXT, sources=sources, device="cuda")
    np.testing.assert_allclose(evaluator.run(None, FEEDS)[0], -np.sqrt(2 * (X + Y)), rtol=1e-6)
    feeds = {name: torch.from_numpy(value).cuda() for name, value in FEEDS.items()}
    (got,) = evaluator.run(None, feeds)
    assert got.device.type == "cuda"
    with pytest.raises(FeedError, match="it is on cuda while the model runs on cpu"):
        Evaluator(TEXT).run(None, feeds)
