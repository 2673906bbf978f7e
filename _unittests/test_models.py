import ml_dtypes
import numpy as np
import onnx.checker
import onnx.parser
import onnx.reference
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.models import freeze_inputs

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
