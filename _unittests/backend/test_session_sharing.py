"""What the backend needs of make_session: values in the memory of torch, the stream of torch."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from ortmeter.errors import ModelError
from ortmeter.runtime.ortvalues import to_ortvalue
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 64] X) => (float[n, 64] Y) { Y = Add(X, W) }"""


def model_with_external_weights():
    model = onnx.parser.parse_model(TEXT)
    weight = onnx.TensorProto(
        name="W",
        dims=[64, 64],
        data_type=onnx.TensorProto.FLOAT,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in {"location": "memory", "offset": "0", "length": str(4 * 64**2)}.items():
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    return model


def test_initializers_are_read_where_they_are():
    weights = np.arange(64.0**2, dtype=np.float32).reshape(64, 64)
    value = to_ortvalue(weights, Provider("cpu"))
    session = make_session(model_with_external_weights(), provider="cpu", initializers={"W": value})
    x = np.ones((64, 64), np.float32)
    np.testing.assert_array_equal(session.run(None, {"X": x})[0], weights + 1)
    weights += 1
    np.testing.assert_array_equal(session.run(None, {"X": x})[0], weights + 1)


def test_the_stream_reaches_the_provider(monkeypatch):
    seen = []

    def create(source, options, *, providers):
        seen.extend(providers)
        raise RuntimeError("stop here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    with pytest.raises(ModelError, match="stop here"):
        make_session(TEXT, provider=Provider("cuda", 1), stream=123)
    assert seen[0][1]["user_compute_stream"] == "123"
