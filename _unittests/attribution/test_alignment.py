"""Tests of ortmeter.attribution.alignment."""

import math

import numpy as np
import onnx.compose
import onnx.shape_inference
import pytest

from ortmeter.attribution.alignment import align
from ortmeter.discrepancy import Tolerance
from ortmeter.errors import FeedError
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.sessions import optimized_model

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def renamed(model):
    """Copy a model whose nodes, results and initializers have other names."""
    known = onnx.shape_inference.infer_shapes(model)
    return onnx.compose.add_prefix(known, "other/", rename_edges=False, rename_inputs=False)


def change(model, name, moved):
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    array = onnx.numpy_helper.to_array(tensor) + np.float32(moved)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))


def names(found):
    return [(pair.expected.node, pair.got.node) for pair in found.pairs]


def test_names_do_not_count():
    model = sample_cnn(size=16)
    other = renamed(model)
    found = align(model, other, provider="cpu")
    nodes = zip(model.graph.node, other.graph.node, strict=True)
    assert names(found) == [(first.name, second.name) for first, second in nodes]
    assert found.first is None
    assert str(found) == "14 results aligned of 14 and 14: none differs"


@pytest.mark.parametrize("rank", [0, 2])
def test_graphs_part_at_the_weight_that_was_changed(rank):
    model = sample_cnn(size=16)
    other = renamed(model)
    readers = [node for node in other.graph.node if node.op_type == "Conv"]
    change(other, readers[rank].input[1], 0.1)
    found = align(model, other, provider="cpu")
    assert len(found.pairs) == 14
    assert found.first.got.node == readers[rank].name
    assert found.largest_jump is found.first
    assert found.first.before == 0
    error = np.abs(found.first.got.value - found.first.expected.value).max()
    assert found.first.error.abs == pytest.approx(error)
    assert found.first.size == pytest.approx(error / np.abs(found.first.expected.value).max())


def test_a_tolerance_tells_a_small_change_from_a_large_one():
    model = sample_cnn(size=16)
    other = renamed(model)
    convolutions = [node for node in other.graph.node if node.op_type == "Conv"]
    change(other, convolutions[0].input[1], 1e-7)
    change(other, convolutions[2].input[1], 0.1)
    found = align(model, other, provider="cpu")
    assert found.first.got.node == convolutions[0].name
    assert found.largest_jump.got.node == convolutions[2].name
    found = align(model, other, provider="cpu", tolerance=Tolerance(atol=1e-4))
    assert found.first.got.node == convolutions[2].name
    assert "beyond atol=0.0001 at" in str(found)


def test_fused_nodes_leave_the_others_aligned():
    model = sample_cnn(size=16)
    fused = renamed(optimized_model(model, provider="cpu", optimization="extended"))
    assert len(fused.graph.node) < len(model.graph.node)
    found = align(model, fused, provider="cpu")
    assert len(found.pairs) == found.n_got == len(fused.graph.node)
    assert found.first is None


def test_branches_in_another_order_are_aligned():
    text = f"""{HEADER} g (float[8] X) => (float[8] Z) {{
        [a] A = Exp(X) [b] B = Sin(A) [c] C = Cos(X) [d] D = Neg(C) [e] Z = Add(B, D) }}"""
    other = f"""{HEADER} g (float[8] X) => (float[8] z) {{
        [k] k = Cos(X) [l] l = Neg(k) [m] m = Exp(X) [n] n = Sin(m) [o] z = Add(n, l) }}"""
    found = align(text, other, provider="cpu")
    assert dict(names(found)) == {"a": "m", "b": "n", "c": "k", "d": "l", "e": "o"}
    # A result that one graph computes twice is aligned once.
    twice = text.replace("Neg(C)", "Neg(C2)").replace("[d]", "[c2] C2 = Identity(C) [d]")
    found = align(text, twice, provider="cpu")
    assert (found.n_expected, found.n_got, len(found.pairs)) == (5, 6, 5)
    assert ("d", "d") in names(found)


def test_what_a_body_reads_is_an_input_of_its_node():
    text = f"""{HEADER} g (bool C, float[8] X) => (float[8] Z) {{
        [abs] A = Abs(X)  [exp] B = Exp(A)
        [if] Z = If(C) <then_branch = t () => (float[8] T) {{ T = Neg(B) }},
                        else_branch = e () => (float[8] E) {{ E = Identity(B) }}> }}"""
    other = text.replace("Exp(A)", "Exp(X)")
    feeds = {"C": np.array(True), "X": -np.ones(8, np.float32)}
    pair = align(text, other, feeds, provider="cpu").pairs[-1]
    assert pair.got.node == "T"  # of the branch
    assert pair.before == pytest.approx((np.e - 1 / np.e) / np.e, rel=1e-5)


def test_the_jump_of_numbers_that_overflow():
    text = f"{HEADER} g (float[2] X) => (float[2] Z) {{ [a] A = Exp(X) [e] Z = Mul(A, A) }}"
    other = text.replace("Mul(A, A)", "Div(A, A)")
    found = align(text, other.replace("[e]", "[f]"), {"X": np.float32([88, 88])}, provider="cpu")
    assert names(found) == [("a", "a"), ("e", "f")]
    assert found.largest_jump.size == np.inf
    assert str(found).endswith("the error grows the most there, from 0 to 2 mismatched inf")


def test_results_in_16_bits_are_aligned_with_those_in_32():
    text = f"""{HEADER} g (float[64] X) => (float[64] Z) {{
        [a] A = Tanh(X) [b] B = Sigmoid(A) [c] Z = Sqrt(B) }}"""
    narrow = text.replace("float[64] Z", "float16[64] Z").replace("A = Tanh(X)", "A = Tanh(H)")
    narrow = narrow.replace("[a]", "[h] H = Cast<to = 10>(X) [a]")
    found = align(text, narrow, provider="cpu")
    assert names(found) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert 0 < found.largest_jump.size < 1e-2
    assert found.largest_jump.jump < 4  # roundings to 16 bits


def test_models_that_share_no_input_need_feeds():
    text = f"{HEADER} g (float[n] X) => (float[n] Z) {{ Z = Exp(X) }}"
    with pytest.raises(FeedError):
        align(text, text, provider="cpu")


GELU = f"""{HEADER} g (float[4, 64] X) => (float[4, 64] Y)
    <float half = {{0.5}}, float one = {{1.0}}, float root = {{1.41421354}}> {{
    [div] d = Div(X, root) [erf] e = Erf(d) [add] a = Add(e, one) PRODUCT }}"""
IN_ORDER = GELU.replace("PRODUCT", "[p] m = Mul(X, a) [q] Y = Mul(m, half)")
REORDERED = GELU.replace("PRODUCT", "[r] m = Mul(half, a) [s] Y = Mul(X, m)")


def test_the_order_of_a_product_is_no_error():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    found = align(IN_ORDER, REORDERED, {"X": x}, provider="cpu")
    ((p, r),) = [(pair.expected.node, pair.got.node) for pair in found.reordered]
    assert (p, r) == ("p", "r")
    exact = x * (1 + np.vectorize(math.erf)(x / 2.0**0.5)) / 2
    for pair in found.pairs[-1:]:
        assert np.abs(pair.got.value - exact).max() < 1e-6
    assert all(pair.size < 1e-6 for pair in found.pairs)
    assert "others are computed in another order (p / r (Mul))" in str(found)
    wrong = align(IN_ORDER, REORDERED.replace("Erf(d)", "Tanh(d)"), {"X": x}, provider="cpu")
    assert wrong.first.expected.node == "erf"


def test_an_error_that_outputs_keep_is_no_other_order():
    text = f"""{HEADER} g (float[8] X) => (float[8] Z) {{
        [a] A = Abs(X) [b] B = Exp(A) [c] Z = Relu(B) }}"""
    found = align(text, text.replace("Exp", "Neg"), {"X": np.ones(8, np.float32)}, provider="cpu")
    assert not found.reordered
    assert found.first.expected.node == "b"


def test_an_initializer_that_differs_is_named_and_not_what_overflows_when_read():
    text = f"""{HEADER} g (float[1, 512, 512] x) => (float[1] y)
        <int64[2] axes = {{1, 2}}> {{ CAST
        [sum] s = ReduceSum<keepdims = 0>(h, axes) [mean] y = Div(s, n) }}"""
    x = np.random.default_rng(0).random((1, 512, 512)).astype(np.float32)
    wide = onnx.parser.parse_model(text.replace("CAST", "h = Identity(x)"))
    text = text.replace("float[1] y", "float16[1] y").replace("CAST", "h = Cast<to = 10>(x)")
    narrow = onnx.parser.parse_model(text)
    for model, number in ((wide, np.float32(262144)), (narrow, np.float16(65504))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), "n"))
    found = align(wide, narrow, {"x": x}, provider="cpu")
    assert found.changes == ("initializer n is 65504.0 instead of 262144.0",)
    (pair,) = [pair for pair in found.pairs if pair.got.name == "y"]
    assert np.isfinite(pair.got.value).all()
    right = x.mean(dtype=np.float64)
    assert pair.expected.value.ravel() == pytest.approx(right, rel=1e-4)
    assert pair.got.value.ravel() == pytest.approx(right * 262144 / 65504, rel=1e-2)
    assert found.largest_jump.expected.node == "mean"
    assert "inf" not in str(found)
