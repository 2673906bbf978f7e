import numpy as np
import onnx
import pytest

from ortmeter.profiling.fusions import find_near_misses
from ortmeter.profiling.graph import name_nodes
from ortmeter.runtime.sessions import optimized_model

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
GELU = """one = Constant <value = float {1.0}> ()  h = Constant <value = float {0.5}> ()
  s = Constant <value = float {1.4142135}> ()
  D = Div (X, s)  E = Erf (D)  A = Add (E, one)  M = Mul (X, A)  Y = Mul (M, h)"""
NORM = """axes = Constant <value = int64[1] {-1}> ()  two = Constant <value = float {2.0}> ()
  eps = Constant <value = float {0.00001}> ()  M = ReduceMean (X, axes)  D = Sub (X, M)
  P = Pow (D, two)  V = ReduceMean (P, axes)  E = Add (V, eps)  S = Sqrt (E)  N = Div (D, S)
  T = Mul (N, G)  Y = Add (T, B)"""
CONV = "C = Conv <pads = [1, 1, 1, 1]> (X, W)"
IMAGE, CHANNELS = "float[1, 3, 8, 8] X", "float[1, 8, 8, 8]"
SHAPES = {"W": (8, 3, 3, 3), "W2": (8, 16), "B2": (16,), "G": (8,), "B": (8,)}


def model(inputs, outputs, body):
    """A model whose weights are initializers, the nodes named."""
    text = f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}"
    made = onnx.parser.parse_model(text)
    read = {name for node in made.graph.node for name in node.input}
    rng = np.random.default_rng(0)
    for name in sorted(read & SHAPES.keys()):
        values = rng.normal(size=SHAPES[name]).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return name_nodes(made)


def near_misses(made):
    """Near misses among the nodes that ONNX Runtime leaves as they are."""
    written = {node.name: node.op_type for node in made.graph.node}
    ran = optimized_model(made, provider="cpu").graph.node
    return find_near_misses(made, {n.name: 1.0 for n in ran if written.get(n.name) == n.op_type})


ROWS = "float[4, 8]"
BIAS = "P = MatMul (X, W2) Y = Add (P, B2)"
CASES = {
    # An intermediate result is an output of the model.
    "activation": (IMAGE, f"{CHANNELS} Y, {CHANNELS} C", f"{CONV} Y = Relu (C)", "C", "Relu"),
    "bias": (f"{ROWS} X", "float[4, 16] Y, float[4, 16] P", BIAS, "P", "Add"),
    "gelu": (f"{ROWS} X", f"{ROWS} Y, {ROWS} A", GELU, "A", "Erf"),
    "norm": (f"{ROWS} X", f"{ROWS} Y, float[4, 1] V", NORM, "V", "Sqrt"),
    # Another node reads it, which may be of an operator of the pattern.
    "read": (IMAGE, f"{CHANNELS} Y, {CHANNELS} Z", f"{CONV} Y = Relu (C) Z = Exp (C)", "C", "Relu"),
    "norm read": (f"{ROWS} X", f"{ROWS} Y, {ROWS} Z", f"{NORM} Z = Add (N, X)", "N", "Sqrt"),
}


@pytest.mark.parametrize(("inputs", "outputs", "body", "tensor", "op"), CASES.values(), ids=CASES)
def test_the_tensor_that_prevents_a_fusion_is_found(inputs, outputs, body, tensor, op):
    made = model(inputs, outputs, body)
    (found,) = near_misses(made)
    assert [name for name, _ in found.obstacles] == [tensor]
    ops = {node.name: node.op_type for node in made.graph.node}
    assert op in {ops[name] for name in found.nodes}
    ((_, readers),) = found.obstacles
    assert all(tensor in node.input for node in made.graph.node if node.name in readers)
    assert set(readers).isdisjoint(found.nodes)


@pytest.mark.parametrize("case", CASES)
def test_what_is_advised_makes_onnxruntime_fuse(case):
    inputs, outputs, body, _, op = CASES[case]
    # The second output prevents the fusion, with the node that computes it when there is one.
    first, second = outputs.split(", float")
    made = model(inputs, first, body.split(f" {second[-1]} = ")[0] if "read" in case else body)
    assert near_misses(made) == []
    left = [node.op_type for node in optimized_model(made, provider="cpu").graph.node]
    assert op not in left
    kept = optimized_model(model(inputs, outputs, body), provider="cpu").graph.node
    assert op in [node.op_type for node in kept]


def test_the_longest_are_tried_first_and_a_few_only(monkeypatch):
    pairs = [f"P{i} = MatMul (X, W2) Y{i} = Add (P{i}, B2)" for i in range(4)]
    outputs = ", ".join(f"float[4, 16] Y{i}, float[4, 16] P{i}" for i in range(4))
    made = model("float[4, 8] X", outputs, "\n".join(pairs))
    monkeypatch.setattr("ortmeter.profiling.fusions._MOST_TRIED", 2)
    times = {node.name: rank for rank, node in enumerate(made.graph.node)}
    found = find_near_misses(made, times)
    assert [miss.saved for miss in found] == [("Add_7",), ("Add_5",)]


def test_a_pair_that_onnxruntime_never_fuses_is_none():
    outputs = "float[4, 16] Y, float[4, 16] P"
    assert near_misses(model("float[4, 8] X", outputs, "P = MatMul (X, W2) Y = Tanh (P)")) == []
