import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from ortmeter.evaluator import Evaluator, to_float64

TEXT = """<ir_version: 10, opset_import: ["": 18, "local": 1]>
g (float[b, n] X, float16[n] S, bool c) => (float[b, n] Y, float16[b, n] H)
<float[3, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, float[3] B = {0.01, 0.02, 0.03}> {
    third = Constant <value_float = 0.1> ()
    N = LayerNormalization <epsilon = 0.001> (X, B)
    M = MatMul (N, W)
    wide = Cast <to = 1> (S)
    P = Mul (M, wide)
    Q = If (c) <then_branch = t () => (float[b, n] u) <float[1] k = {0.3}> { u = Mul(P, k) },
        else_branch = e () => (float[b, n] v) { v = Sub(P, third) }>
    shape = Shape (Q)
    zeros = ConstantOfShape (shape)
    tenth = Constant <value = float[1] {0.1}> ()
    T = Add (Q, tenth)
    R = Add (T, zeros)
    Y = local.Affine <kind = 1, scale = 0.7> (R)
    H = Cast <to = 10> (Y)
}
<domain: "local", opset_import: ["": 18]>
Affine <kind, scale> (x) => (y) {
    k = Constant <value_float : float = @scale> ()
    half = Constant <value_floats = [0.1]> ()
    a = Mul (x, k)
    b = Add (a, half)
    y = Cast <to : int = @kind> (b)
}"""
X = np.random.default_rng(0).random((2, 3))
S = np.float64([0.5, 1.5, 2.5])


def expected(condition):
    """Compute in float64, with the weights rounded to float32 that the model has."""
    w = np.linspace(0.1, 0.9, 9).astype(np.float32).astype(np.float64).reshape(3, 3)
    b = np.float32([0.01, 0.02, 0.03]).astype(np.float64)
    tenth, k, scale = (float(np.float32(value)) for value in (0.1, 0.3, 0.7))
    centred = X - X.mean(1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(1, keepdims=True) + float(np.float32(1e-3)))
    p = (normal * b) @ w * S
    q = p * k if condition else p - tenth
    return (q + tenth) * scale + tenth


@pytest.mark.parametrize("condition", [True, False])
def test_everything_is_computed_in_float64(condition):
    model = to_float64(TEXT)
    onnx.checker.check_model(model)
    seen = []

    def watch(node, inputs, outputs):
        # an attribute of a function is float32: it is cast
        values = outputs if node.op_type == "Cast" else [*inputs, *outputs]
        seen.extend(value.dtype for value in values)

    evaluator = Evaluator(model, sources=("torch",), callback=watch)
    y, h = evaluator.run(None, {"X": X, "S": S, "c": np.array(condition)})
    assert y.dtype == h.dtype == np.float64
    np.testing.assert_allclose(y, expected(condition), rtol=1e-13)
    np.testing.assert_array_equal(h, y)
    floats = {dtype for dtype in seen if dtype.kind in "fV"}
    assert floats == {np.dtype(np.float64)}


def test_weights_keep_their_value_and_the_model_is_not_modified():
    values = np.array([0.1, 3, -7.25]).astype(ml_dtypes.bfloat16)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        g (bfloat16[n] X) => (bfloat16[n] Y) { Y = Add(X, W) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "W"))
    before = model.SerializeToString()
    (weight,) = to_float64(model).graph.initializer
    assert model.SerializeToString() == before
    got = onnx.numpy_helper.to_array(weight)
    assert (weight.name, got.dtype) == ("W", np.float64)
    np.testing.assert_array_equal(got, values.astype(np.float64))


def test_what_onnx_has_in_float32_only_stays():
    model = to_float64("""<ir_version: 10, opset_import: ["": 18]>
        g (float[1, 1, h, w] X) => (float[1, 1, p, q] Y) <float[4] scales = {1, 1, 2, 2}>
        { Y = Resize <mode = "nearest"> (X, , scales) }""")
    onnx.checker.check_model(model, full_check=True)
    (got,) = Evaluator(model).run(None, {"X": np.ones((1, 1, 2, 2))})
    assert (got.dtype, got.shape) == (np.float64, (1, 1, 4, 4))


def test_codes_and_integers_stay():
    kind = onnx.TensorProto.FLOAT8E4M3FN
    model = to_float64(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[n] X, int64[n] I) => (float[n] Y, int32[n] J) <float S = {{0.5}}> {{
        Q = Cast <to = {kind}> (X) Y = DequantizeLinear(Q, S) J = Cast <to = 6> (I) }}""")
    attributes = [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]
    # the one in the middle is around DequantizeLinear, which makes no float64
    assert attributes == [kind, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32]
    types = [value.type.tensor_type.elem_type for value in model.graph.input]
    assert types == [onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64]


def test_sequences_are_widened():
    model = to_float64("""<ir_version: 10, opset_import: ["": 18]>
        g (seq(float[n]) S) => (seq(float[n]) T) {
        e = SequenceEmpty () x = ConcatFromSequence <axis = 0> (S) T = SequenceInsert(e, x) }""")
    (got,) = Evaluator(model).run(None, {"S": [np.ones(1), np.zeros(2)]})
    assert [value.dtype for value in got] == [np.float64]


def test_operators_without_float64_stay_between_casts():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2, 4] X) => (float[2, 4] Y)
    <float third = {0.33333334}> {
        Q, s, z = DynamicQuantizeLinear(X)
        D = DequantizeLinear(Q, s, z)
        t = Mul(s, third)
        Y = Mul(D, t)
    }"""
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    model = to_float64(text)
    (got,) = Evaluator(model, sources=("reference",)).run(None, {"X": x})
    low, high = (np.float32(edge) for edge in (min(x.min(), 0), max(x.max(), 0)))
    scale = (high - low) / np.float32(255)
    zero = np.round(-low / scale)
    codes = np.clip(np.round(x / scale) + zero, 0, 255)
    dequantized = ((codes - zero) * scale).astype(np.float32).astype(np.float64)
    third = float(np.float32(0.33333334))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, dequantized * float(scale) * third, rtol=1e-14)


def test_a_rotation_is_in_float64_though_onnx_lists_narrow_types():
    double = to_float64("""<ir_version: 10, opset_import: ["": 23]>
        g (float[1, 1, 1, 2] X, float[1, 1, 1] C, float[1, 1, 1] S) => (float[1, 1, 1, 2] Y)
        { Y = RotaryEmbedding(X, C, S) }""")
    x, cos, sin = np.float64([0.1, 0.7]), 0.3, 0.9
    feeds = {"X": x.reshape(1, 1, 1, 2), "C": np.full((1, 1, 1), cos), "S": np.full((1, 1, 1), sin)}
    expected = [x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos]
    for source in ("torch", "reference"):
        (got,) = Evaluator(double, sources=(source,)).run(None, feeds)
        np.testing.assert_allclose(got.ravel(), expected, rtol=1e-15)
