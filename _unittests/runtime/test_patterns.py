"""Tests of ortmeter.runtime.patterns: activations in parts, against numpy in float64."""

import math

import numpy as np
import onnx
import pytest
from commands import HEADER, behind_constants, parse

from ortmeter.errors import ModelError
from ortmeter.runtime.patterns import PATTERNS, find_patterns, fuse_patterns
from ortmeter.runtime.sessions import make_session, optimized_model

U = 2.0**-24  # half an ulp of 1, in float32
X = np.concatenate([np.linspace(-8, 8, 4001), [-3, 3, 0, -0.0, 1e-30, 1e30, -1e30]])
X = X.astype(np.float32)[:4000].reshape(20, 200)
BIAS = np.random.default_rng(0).normal(size=200).astype(np.float32)


def clipped(x):
    return np.clip(x / 6 + 0.5, 0, 1)


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def fast_gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


#: Values in float64, and how far float32 may be: 4 roundings of what is added.
EXPECTED = {
    "HardSwish": lambda x: (x * clipped(x), 4 * U * np.abs(x) * (0.5 + np.abs(x) / 6)),
    "HardSigmoid": lambda x: (clipped(x), 4 * U * (0.5 + np.abs(x) / 6)),
    "Gelu": lambda x: (gelu(x), 16 * U * (1 + np.abs(x))),
    "FastGelu": lambda x: (fast_gelu(x), 16 * U * (1 + np.abs(x))),
    "BiasGelu": lambda x: (gelu(x + BIAS), 16 * U * (1 + np.abs(x) + np.abs(BIAS))),
}
FORMS = [(p.name, rank) for p in PATTERNS for rank in range(len(p.forms))]


def model(text, opset=17, shape="float[20, 200] X", outputs="float[20, 200] Y", **weights):
    header = HEADER.replace("21", str(opset))
    values = {name: np.float32(value) for name, value in weights.items()}
    return parse(f"{header}({shape}) => ({outputs}) {{ {text} }}", **values)


def write(form, nodes, weights, divides, swaps):
    """Write a form as nodes, and return the name of its result; what is alike is written once."""
    if form == "x":
        return "X"
    if form == "row":
        weights["row"] = BIAS[None]
        return "row"
    if isinstance(form, float):
        name = f"c{len(weights)}"
        weights[name] = form
        return name
    op, *parts = form
    if op == "times":
        op = "Div" if divides else "Mul"
        parts[1] = 1 / parts[1] if divides else parts[1]
    inputs = [write(part, nodes, weights, divides, swaps) for part in parts]
    if swaps and op in {"Add", "Mul"}:
        inputs.reverse()
    return nodes.setdefault(f"{op}({', '.join(inputs)})", f"r{len(nodes)}")


def in_parts(name, rank, *, divides=False, swaps=False):
    (pattern,) = (p for p in PATTERNS if p.name == name)
    nodes, weights = {}, {}
    last = write(pattern.forms[rank], nodes, weights, divides, swaps)
    text = " ".join(f"{result} = {key}" for key, result in nodes.items())
    return model(text.replace(f"{last} =", "Y ="), 20 if "Gelu(" in text else 17, **weights)


@pytest.mark.parametrize(("name", "rank"), FORMS)
@pytest.mark.parametrize("how", [{}, {"divides": True}, {"swaps": True}], ids=str)
def test_each_form_is_found_and_rewritten_within_rounding(name, rank, how):
    made = in_parts(name, rank, **how)
    (match,) = find_patterns(made)
    assert (match.pattern.name, match.x, match.obstacle) == (name, "X", "")
    expected, most = EXPECTED[name](X.astype(float))
    fused = fuse_patterns(made)
    onnx.checker.check_model(fused)
    assert [node.op_type for node in fused.graph.node] == [*match.pattern.becomes]
    (got,) = make_session(fused, provider="cpu").run(None, {"X": X})
    assert np.all(np.abs(got - expected) <= most)


@pytest.mark.parametrize("name", ["HardSwish", "HardSigmoid", "FastGelu"])
def test_onnx_runtime_does_not_fuse_these_itself(name):
    """A release that does makes the pattern useless: remove it."""
    made = in_parts(name, 0)
    left = optimized_model(made, provider="cpu").graph.node
    assert len(left) >= len(made.graph.node) - 1 > len(fuse_patterns(made).graph.node)


def test_a_convolution_computes_the_activation_once_it_is_in_one_node():
    text = """C = Conv <pads = [1, 1, 1, 1]> (X, W)  D = Add (C, three)  E = Clip (D, zero, six)
      F = Mul (C, E)  G = Div (F, six)  Y = Conv <pads = [1, 1, 1, 1]> (G, W)"""
    sizes = "float[1, 16, 8, 8]"
    weights = np.random.default_rng(0).normal(size=(16, 16, 3, 3))
    numbers = {"W": weights, "three": 3, "zero": 0, "six": 6}
    made = model(text, 17, f"{sizes} X", f"{sizes} Y", **numbers)
    before = len(optimized_model(made, provider="cpu").graph.node)
    assert len(optimized_model(fuse_patterns(made), provider="cpu").graph.node) < before - 2


def test_constants_are_read_as_exporters_write_them():
    """Paddle: Constant nodes of one number; before opset 11, the bounds are attributes."""
    text = "A = Add (X, c0)  B = Clip <min = 0.0, max = 6.0> (A)  C = Mul (X, B)  Y = Div (C, c1)"
    made = behind_constants(model(text, 10, c0=[3], c1=[6]))
    (match,) = find_patterns(made)
    assert match.pattern.name == "HardSwish"
    (got,) = make_session(fuse_patterns(made), provider="cpu").run(None, {"X": X})
    expected, most = EXPECTED["HardSwish"](X.astype(float))
    assert np.all(np.abs(got - expected) <= most)


HARD = "A = Add (X, c3)  B = Clip (A, c0, c6)  C = Mul (X, B)  Y = Div (C, c6)"
NUMBERS = {"c3": 3, "c0": 0, "c6": 6}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (HARD, {**NUMBERS, "c6": 5}),
        (HARD, {**NUMBERS, "c3": 3.00001}),
        (HARD, {**NUMBERS, "c0": [[0]]}),
        (HARD.replace("Div (C, c6)", "Div (c6, C)"), NUMBERS),
        (HARD.replace("(X, B)", "(Z, B)").replace("A =", "Z = Neg (X) A ="), NUMBERS),
        (HARD.replace("Div (C, c6)", "Add (C, c6)"), NUMBERS),
    ],
)
def test_what_computes_something_else_is_left(text, numbers):
    made = model(text, **numbers)
    assert find_patterns(made) == []
    with pytest.raises(ModelError, match="no form of HardSwish, HardSigmoid, BiasGelu, Gelu"):
        fuse_patterns(made)


def test_a_number_that_an_input_may_replace_is_no_constant():
    made = model(HARD, 17, "float[20, 200] X, float c6", **NUMBERS)
    assert find_patterns(made) == []


ROW = "Z = Add (X, row)  Y = Gelu {} (Z)"


@pytest.mark.parametrize(
    ("text", "outputs", "rank", "why"),
    [
        (HARD, ", float[20, 200] B", 2, "'B', inside of it, is an output"),
        (f"{HARD} N = Neg (B)", ", float[20, 200] N", 2, "'B', inside of it, is read by 'Neg'"),
        (ROW.format(""), "", None, "the rank of 'X' is not known"),
        (ROW.format(""), "", 1, "or less than that of its bias"),
    ],
)
def test_what_prevents_a_rewriting_is_said(text, outputs, rank, why):
    made = model(text, 20, outputs=f"float[20, 200] Y{outputs}", row=BIAS[None], **NUMBERS)
    kind = made.graph.input[0].type.tensor_type
    if rank is None:
        kind.ClearField("shape")
    else:
        del kind.shape.dim[:-rank]
    (match,) = find_patterns(made)
    assert why in match.obstacle
    with pytest.raises(ModelError, match=why):
        fuse_patterns(made)


def test_a_gelu_by_tanh_has_no_bias():
    made = model(ROW.format('<approximate = "tanh">'), 20, row=BIAS[None])
    assert find_patterns(made) == []
