import ml_dtypes
import numpy as np
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnx.reference
import onnx.shape_inference
import pytest

from ortmeter import make_session
from ortmeter.errors import InvalidArgumentError
from ortmeter.models import freeze_inputs, sample_cnn

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


def test_every_type_can_be_frozen():
    text = TEXT.replace("float[", "bfloat16[")
    frozen = freeze_inputs(text, {"Y": np.array([1, 2], ml_dtypes.bfloat16)})
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


def image(size):
    return {"input": np.random.default_rng(1).standard_normal((1, 3, size, size), np.float32)}


def test_the_sample_network_has_the_nodes_that_it_is_known_for():
    model = sample_cnn()
    onnx.checker.check_model(model, full_check=True)
    assert " ".join(node.op_type for node in model.graph.node) == (
        "Conv PRelu ReduceMean ReduceMax Concat Conv Sigmoid Mul BatchNormalization Conv PRelu "
        "Conv Conv Add"
    )
    assert len({node.name for node in model.graph.node}) == 14
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {
        info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        for info in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    assert shapes["input"] == (1, 3, 112, 112)
    assert shapes["m2"] == (1, 2, 112, 112)
    assert shapes["output"] == (1, 64, 56, 56)


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_the_sample_network_computes_what_onnx_says(optimization):
    model, feeds = sample_cnn(size=32), image(32)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    session = make_session(model, provider="cpu", optimization=optimization)
    (got,) = session.run(None, feeds)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert 0.1 < expected.std() < 10


def test_every_weight_of_the_sample_network_counts():
    model, feeds = sample_cnn(size=8), image(8)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.name == "channels":
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        values = onnx.numpy_helper.to_array(tensor) * np.float32(1.5)
        changed.graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        (got,) = onnx.reference.ReferenceEvaluator(changed).run(None, feeds)
        assert np.abs(got - expected).max() > 1e-3, tensor.name


def test_the_sample_network_is_the_same_each_time():
    assert sample_cnn().SerializeToString() == sample_cnn().SerializeToString()
    assert sample_cnn(seed=1) != sample_cnn()


@pytest.mark.parametrize("size", [0, -2, 7])
def test_a_size_that_cannot_be_halved_is_refused(size):
    with pytest.raises(InvalidArgumentError, match=rf"size={size}\. Accepted: a positive even"):
        sample_cnn(size=size)
