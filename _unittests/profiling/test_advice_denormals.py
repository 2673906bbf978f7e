import numpy as np
import onnx
import pytest

from ortmeter.profiling.advice import denormal_tensors

SMALL = np.float32(1e-20)
BODY = "T = Mul (X, W) Y = Exp (T)"


def model(weights=None, body=BODY):
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    if weights is not None:
        made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    return made


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_weights_are_read(kind):
    tiny, least = np.finfo(kind).tiny, np.finfo(kind).smallest_subnormal
    assert denormal_tensors(model(np.array([1, tiny / 2, 0, -least], kind)), None, None) == {
        "W": 0.5
    }
    assert denormal_tensors(model(np.array([0, tiny, -1, np.inf], kind)), None, None) == {}


def test_constants_and_inputs_are_read():
    made = model(body="W = Constant <value = float[1] {1.0}> () " + BODY)
    # Not as a text: onnx 1.22 cannot read such a number.
    weights = onnx.numpy_helper.from_array(np.float32([1, 1e-40, 1, 1]))
    made.graph.node[0].attribute[0].t.CopyFrom(weights)
    feeds = {"X": np.float32([1, 1, 1, 1e-40])}
    found = denormal_tensors(made, feeds, None)
    assert found == {"X": 0.25, "W": 0.25}


def test_intermediate_results_are_computed():
    feeds = {"X": np.full(4, SMALL)}
    weights = np.float32([1, 1, 1e-20, 1e-20])
    assert denormal_tensors(model(weights), feeds, 32) == {"T": 0.5}
    assert denormal_tensors(model(weights), feeds, None) == {}
    assert denormal_tensors(model(weights), feeds, 1 << 60) == {}  # more than the memory


def test_a_model_that_cannot_run_is_read_all_the_same():
    feeds = {"X": np.float32([1e-40, 1, 1, 1])}
    body = "T = Mul (X, W) Y = Exp (missing)"
    assert denormal_tensors(model(np.ones(4, np.float32), body), feeds, 32) == {"X": 0.25}


def test_sequences_are_left_out():
    body = "S = SequenceConstruct (X, X) I = Constant <value = int64 {0}> () Y = SequenceAt (S, I)"
    feeds = {"X": np.float32([1e-40, 1, 1, 1])}
    assert denormal_tensors(model(body=body), feeds, 64) == {"X": 0.25, "Y": 0.25}
