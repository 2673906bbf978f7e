"""Where kernels come from: what a source is not asked for, because it is wrong there."""

import numpy as np
import pytest

import ortmeter
from ortmeter.evaluator import Evaluator
from ortmeter.evaluator.kernels import NodeError


@pytest.mark.parametrize("mode", ['"cubic"', '"linear", antialias = 1'])
def test_a_resize_to_one_element_is_refused_rather_than_wrong(mode):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[1, 1, 4, 4] x, int64[4] s)
    => (float[N, C, H, W] y)
    {{ y = Resize <coordinate_transformation_mode = "pytorch_half_pixel", mode = {mode}>
    (x, , , s) }}"""
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    feeds = {"x": x, "s": np.int64([1, 1, 3, 3])}
    (got,) = Evaluator(text).run(None, feeds)
    session = ortmeter.make_session(text, provider="cpu")
    np.testing.assert_allclose(got, session.run(None, feeds)[0], 1e-5)
    for sizes in ([1, 1, 1, 3], [1, 1, 3, 1]):
        with pytest.raises(NodeError, match="leaves one element"):
            Evaluator(text).run(None, feeds | {"s": np.int64(sizes)})


def test_an_opset_that_the_reference_lacks_is_left_to_other_kernels():
    text = """<ir_version: 8, opset_import: ["": 13]> g (int8[4] X, float S) => (float[4] Y)
    { Y = DequantizeLinear (X, S) }"""
    feeds = {"X": np.int8([1, 2, 3, -4]), "S": np.float32(0.5)}
    with pytest.raises(NodeError, match="reference: no implementation of DequantizeLinear"):
        Evaluator(text, sources=("reference",)).run(None, feeds)
    (got,) = Evaluator(text, sources=("reference", "torch")).run(None, feeds)
    np.testing.assert_array_equal(got, [0.5, 1, 1.5, -2])


MS = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g ({}) => (float[a, b, c] y)
{{ y = com.microsoft.{} }}"""
X = np.random.default_rng(0).standard_normal((1, 2, 4)).astype(np.float32)
Q = "float[1, 2, 4] q"


def test_a_definition_runs_before_onnxruntime_unless_that_is_first():
    model = MS.format(Q, "QuickGelu (q)")
    expected = X / (1 + np.exp(-np.float64(np.float32(1.702)) * X))
    for sources, used in (
        (("torch", "reference", "ort"), "definition"),
        (("ort", "torch"), "ort"),
        (("ort",), "ort"),
    ):
        evaluator = Evaluator(model, sources=sources)
        (got,) = evaluator.run(None, {"q": X})
        assert evaluator.assignment["source"].tolist() == [used]
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "call", "more"),
    [
        # by heads that are not there, places that are one offset
        (
            f"{Q}, int64[1] p, float[4, 2] c, float[4, 2] s",
            "RotaryEmbedding (q, p, c, s)",
            {"p": np.int64([0]), "c": np.ones((4, 2), "f4"), "s": np.ones((4, 2), "f4")},
        ),
        # keys by heads
        (
            f"{Q}, float[1, 2, 2, 2] k",
            "MultiHeadAttention <num_heads = 2> (q, k, k)",
            {"k": np.ones((1, 2, 2, 2), "f4")},
        ),
        # a past in a larger buffer
        (
            f"{Q}, float[1, 2, 8, 2] p, int32[1] n, int32 t",
            "GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (q, q, q, p, p, n, t)",
            {"p": np.ones((1, 2, 8, 2), "f4"), "n": np.int32([3]), "t": np.int32(4)},
        ),
        (Q, "QuickGelu <beta = 1.0> (q)", {}),
        (Q, "QuickGelu (q, q)", {}),
    ],
)
def test_what_a_definition_leaves_out_is_refused(inputs, call, more):
    evaluator = Evaluator(MS.format(inputs, call), sources=("reference",))
    with pytest.raises(NodeError, match="definition: the definition does not cover this node"):
        evaluator.run(None, {"q": X, **more})
