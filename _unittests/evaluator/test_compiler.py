"""Local functions, and the bodies of schemas."""

import numpy as np
import onnx.parser
import pytest
import torch
from kernel_checks import assert_same, case, one_node, run_reference
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator import Evaluator

X = np.float32([[1, -2, 3], [4, 5, -6]])
FUNCTIONS = """<ir_version: 10, opset_import: ["": 18, "local": 1]>
g (float[m, n] X) => (float[m, n] Y, float[m] Z) {
    [call] Y = local.Scaled <factor = 3.0> (X)
    [default] D = local.Scaled (Y)
    Z = local.Total <which = 1> (D)
}
<domain: "local", opset_import: ["": 18]>
Times <factor> (x) => (y) {
    [k] k = Constant <value_float : float = @factor> ()
    [times] y = Mul(x, k)
}
<domain: "local", opset_import: ["": 18, "local": 1]>
Scaled <factor: float = 2.0> (x) => (y) {
    [inner] a = local.Times <factor : float = @factor> (x)
    [soft] y = LeakyRelu <alpha : float = @factor> (a)
}
<domain: "local", opset_import: ["": 12]>
Total <which> (x) => (y) {
    flag = Constant <value_int : int = @which> ()
    yes = Cast <to = 9> (flag)
    y = If (yes) <then_branch = t () => (float[m] u) {
            u = ReduceSum <axes = [1], keepdims = 0> (x) },
        else_branch = e () => (float[m] v) { v = ReduceMax <axes = [1], keepdims = 0> (x) }>
}
"""
SOURCES = [("torch",), ("ort",), ("torch", "ort", "reference")]


def scaled(x, factor):
    product = x * np.float32(factor)
    return np.where(product < 0, product * np.float32(factor), product)


@pytest.mark.parametrize("sources", SOURCES, ids=" ".join)
def test_functions_take_attributes_and_defaults_and_their_own_opset(sources):
    evaluator = Evaluator(FUNCTIONS, sources=sources)
    y, z = evaluator.run(None, {"X": X})
    np.testing.assert_allclose(y, scaled(X, 3), rtol=1e-6)
    np.testing.assert_allclose(z, scaled(scaled(X, 3), 2).sum(1), rtol=1e-6)


def test_kernels_are_replaced_in_functions():
    kernels = {"node:times": lambda x, k: x * k * 10, "LeakyRelu": lambda x, alpha: x + alpha}
    evaluator = Evaluator(FUNCTIONS, kernels)
    (got,) = evaluator.run(["Y"], {"X": X})
    np.testing.assert_allclose(got, X * 30 + 3, rtol=1e-6)
    frame = evaluator.assignment
    chosen = frame[frame["source"] == "callable"]
    assert set(chosen["graph"]) == {"local.Times", "local.Scaled"}


def test_a_function_is_replaced_as_a_whole():
    kernels = {("local", "Scaled"): lambda x, factor=2.0: x - factor}
    (got,) = Evaluator(FUNCTIONS, kernels).run(["Y"], {"X": X})
    np.testing.assert_array_equal(got, X - 3)
    with pytest.raises(InvalidArgumentError, match=r"local\.Scaled.*nodes of its own.*'ort'"):
        Evaluator(FUNCTIONS, {("local", "Scaled"): "ort"})


def test_a_function_has_absent_inputs_and_unused_outputs():
    text = """<ir_version: 10, opset_import: ["": 18, "local": 1]>
    g (float[m, n] X) => (float[m, n] Y) { , Y = local.Clipped(X, , X) }
    <domain: "local", opset_import: ["": 18]>
    Clipped (x, low, high, more) => (a, b) { a = Unknown(x) b = Clip(x, low, more) }"""
    (got,) = Evaluator(text).run(None, {"X": X})
    np.testing.assert_array_equal(got, X)


def test_a_function_that_calls_itself_is_refused():
    text = FUNCTIONS.replace("y = Mul(x, k)", "y = local.Scaled(x)").replace(
        'opset_import: ["": 18]>\nTimes', 'opset_import: ["": 18, "local": 1]>\nTimes'
    )
    with pytest.raises(ModelError, match="'Scaled' of domain 'local' calls itself"):
        Evaluator(text)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("value = float[2] {1, 2}", np.float32([1, 2])),
        ("value_float = 1.5", np.float32(1.5)),
        ("value_floats = [1.5, 2.0]", np.float32([1.5, 2])),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [3, 4]", np.int64([3, 4])),
        ('value_string = "a"', np.array("a", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
    ],
)
def test_constants_have_every_form(form, expected):
    text = f"""<ir_version: 10, opset_import: ["": 18]> g () => (float Y)
    {{ Y = Constant <{form}> () }}"""
    (got,) = Evaluator(text).run(None, {})
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


def test_a_constant_without_value_is_refused():
    text = '<ir_version: 10, opset_import: ["": 18]> g () => (float Y) { Y = Constant () }'
    with pytest.raises(ModelError, match="has the values none. Accepted: exactly one of value"):
        Evaluator(text)


def test_a_schema_body_runs_when_no_kernel_exists(monkeypatch):
    from ortmeter.evaluator import torch_kernels

    find = torch_kernels.find_kernel
    monkeypatch.setattr(
        torch_kernels,
        "find_kernel",
        lambda domain, op, opset: None if op in {"Softmax", "Celu"} else find(domain, op, opset),
    )
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[m, n] X) => (float[m, n] Z)
    { Y = Softmax <axis = 0> (X) Z = Celu <alpha = 0.5> (Y) }"""
    evaluator = Evaluator(text, sources=("torch",))
    (expected,) = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {"X": X})
    np.testing.assert_allclose(evaluator.run(None, {"X": X})[0], expected, rtol=1e-6)
    assert evaluator.assignment["source"].tolist() == ["schema", "schema"]


def test_a_body_that_needs_shapes_is_compiled_for_each():
    text = """<ir_version: 13, opset_import: ["": 27]>
    g (float[b, c, t] X, float[c, 1, k] W) => (float[b, c, t] Y)
    { Y = CausalConvWithState(X, W) }"""
    evaluator = Evaluator(text, sources=("torch",))
    rng = np.random.default_rng(0)
    for length in (5, 8):
        x, w = rng.random((2, 4, length), np.float32), rng.random((4, 1, 3), np.float32)
        (got,) = evaluator.run(None, {"X": x, "W": w})
        padded = torch.nn.functional.pad(torch.from_numpy(x).double(), (2, 0))
        expected = torch.nn.functional.conv1d(padded, torch.from_numpy(w).double(), groups=4)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)


def run_body(called):
    """Run the function that the schema of an operator defines."""
    model, feeds = one_node(called)
    evaluator = Evaluator(model, sources=("torch",))
    got = evaluator.run(None, feeds)
    assert evaluator.assignment["source"].tolist() == ["schema"]
    return got


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule):
    decay = -np.abs(floats(2, 5, 2)) if "gated" in rule else None
    beta = np.abs(floats(2, 5, 2)) if "delta" in rule else None
    called = case("LinearAttention", 27, floats(2, 5, 12), floats(2, 5, 6), floats(2, 5, 8),
                  floats(2, 2, 3, 4), decay, beta, n_outputs=2, update_rule=rule,
                  q_num_heads=4, kv_num_heads=2)  # fmt: skip
    assert_same(run_reference(called), run_body(called))


def test_causal_convolution_carries_its_past():
    x, weight = floats(2, 3, 8), floats(3, 1, 4)
    whole = run_body(case("CausalConvWithState", 27, x, weight, n_outputs=2))
    first, state = run_body(case("CausalConvWithState", 27, x[..., :5], weight, n_outputs=2))
    last = case("CausalConvWithState", 27, x[..., 5:], weight, None, state, n_outputs=2)
    assert_same(run_reference(last), run_body(last))
    assert_same([np.concatenate([first, run_body(last)[0]], 2)], whole[:1])
