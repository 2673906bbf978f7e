import math

import numpy as np
import onnx.parser
import pytest

from ortmeter.observatory.case import Case
from ortmeter.observatory.reference import reference

X = np.float32([-2.5, -1e-3, 0, 0.1, 3])
WIDE = X.astype(np.float64)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("Exp(X)", [math.exp(x) for x in WIDE]),
        ("Celu(X)", [max(0, x) + min(0, math.expm1(x)) for x in WIDE]),
        ("LeakyRelu(X)", [x if x > 0 else x * float(np.float32(0.01)) for x in WIDE]),
    ],
)
def test_reference_is_that_of_float64(call, expected):
    found = reference(Case("X", f"Y = {call}", "T[5] X").model(), {"X": X})
    assert found.kind == "float64"
    assert found.outputs["Y"].dtype == np.float64
    np.testing.assert_allclose(found.outputs["Y"], expected, rtol=1e-14)
    wide = Case("X", f"Y = {call}", "T[5] X", type="f64").model()
    assert reference(wide, {"X": WIDE}).kind == "same type"  # it is not more precise


def test_what_has_no_float64_says_so():
    case = Case(
        "DynamicQuantizeLinear", "Y, S, Z = DynamicQuantizeLinear(X)", "T[5] X",
        outputs="u8 Y, f32 S, u8 Z",
    )  # fmt: skip
    found = reference(case.model(), {"X": X})
    assert found.kind == "float32"
    scale = np.float32(5.5) / np.float32(255)
    assert found.outputs["S"] == scale
    np.testing.assert_array_equal(found.outputs["Y"], np.rint(X / scale) + np.rint(2.5 / scale))


def test_what_nothing_defines_has_no_reference():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "unknown": 1]>
        g (float[2] X) => (float[2] Y) { Y = unknown.Mul(X) }""")
    found = reference(model, {"X": X[:2]})
    assert (found.kind, found.outputs) == ("none", {})


@pytest.mark.parametrize("call", ["RandomNormalLike(X)", "Dropout(X, half, yes)"])
def test_what_is_drawn_has_no_reference(call):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[5] X) => (float[5] Y) <float half = {{0.5}}, bool yes = {{1}}> {{ Y = {call} }}""")
    found = reference(model, {"X": X})
    assert (found.kind, found.outputs) == ("drawn", {})
