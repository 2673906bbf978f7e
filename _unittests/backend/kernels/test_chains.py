"""Which nodes become one kernel."""

import numpy as np
import onnx_ir as ir
import pytest
from backend_kernels import graph

from ortmeter.backend.kernels.chains import find_chains

ONE = np.float32(1)


def chains(text, provider="cpu", **constants):
    """Operators of each chain of a graph of X, U: [2, 8], B: [8], with outputs Y and others."""
    model = graph(text, **constants)
    return [[n.op_type for n in chain.nodes] for chain in find_chains(model.graph, provider)]


def body(nodes, outputs="real[2, 8] Y", real="float"):
    text = f"g (real[2, 8] X, real[2, 8] U, real[8] B, bool[2, 8] C) => ({outputs}) {{ {nodes} }}"
    return text.replace("real", real)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("A = Exp(X)  Y = Neg(A)", [["Exp", "Neg"]]),
        # inputs are read in the order of the operands, not of the graph
        ("A = Exp(X)  D = Abs(U)  Y = Sub(D, A)", [["Abs", "Exp", "Sub"]]),
        ("A = Add(X, B)  D = Sigmoid(A)  Y = Mul(A, D)", [["Add", "Sigmoid", "Mul"]]),
        ("A = Greater(X, U)  N = Not(A)  Y = Where(N, X, U)", [["Greater", "Not", "Where"]]),
        ("A = Exp(X)  Y = Mul(A, A)", [["Exp", "Mul"]]),
        # a node alone is left
        ("Y = Exp(X)", []),
        ("A = Softmax(X)  Y = Neg(A)", []),
        # two chains on the sides of what is not element-wise
        (
            "A = Exp(X)  D = Neg(A)  E = Softmax(D)  F = Exp(E)  Y = Neg(F)",
            [["Exp", "Neg"], ["Exp", "Neg"]],
        ),
        # a path that leaves and comes back: Exp is read outside
        ("A = Exp(X)  D = Softmax(A)  Y = Mul(A, D)", []),
        ("A = Exp(X)  D = Neg(A)  E = Softmax(A)  Y = Mul(D, E)", [["Neg", "Mul"]]),
        # a vector is not computed again for each row
        ("A = Exp(B)  D = Neg(A)  E = Mul(X, D)  Y = Abs(E)", [["Exp", "Neg"], ["Mul", "Abs"]]),
        # powers that kernels have
        ("E = Pow(X, one)  Y = Neg(E)", [["Pow", "Neg"]]),
        ("E = Pow(X, U)  Y = Neg(E)", []),
        ("E = Pow(X, half)  Y = Neg(E)", []),
    ],
)
def test_chains_are_as_long_as_they_may_be(nodes, found):
    constants = {name: v for name, v in {"one": ONE, "half": ONE * 2.5}.items() if name in nodes}
    assert chains(body(nodes), **constants) == found


def test_a_result_used_outside_ends_a_chain():
    nodes = "A = Exp(X)  D = Neg(A)  E = Abs(D)  Y = Sqrt(E)"
    outputs = "float[2, 8] Y, float[2, 8] D"
    assert chains(body(nodes, outputs)) == [["Exp", "Neg"], ["Abs", "Sqrt"]]


def test_a_result_used_in_a_subgraph_is_used_outside():
    text = """g (float[2, 8] X, bool C) => (float[2, 8] Y, float[2, 8] Z) {
        A = Exp(X)  Y = Neg(A)
        Z = If(C) <then_branch = yes () => (float[2, 8] P) { Q = Abs(A)  P = Sqrt(Q) },
                  else_branch = no () => (float[2, 8] R) { R = Neg(A) }>
    }"""
    model = graph(text)
    assert find_chains(model.graph, "cpu") == []
    (inner,) = (g for g in model.graphs() if len(g) == 2 and g is not model.graph)
    assert [len(chain.nodes) for chain in find_chains(inner, "cpu")] == [2]


def test_what_follows_a_convolution_is_left():
    text = """g (float[1, 3, 8, 8] X, float[3, 3, 1, 1] W) => (float[1, 3, 8, 8] Y) {
        A = Conv(X, W)  D = Relu(A)  E = Add(D, X)  F = Sigmoid(E)  Y = Mul(E, F) }"""
    assert chains(text) == [["Add", "Sigmoid", "Mul"]]


def test_sizes_are_left():
    text = """g (float[n, 8] X) => (int64[1] Y, float[1] Z) {
        S = Shape(X)  A = Gather(S, zero)  D = Add(A, A)  Y = Mul(D, D)
        E = Cast<to=1>(Y)  F = Sqrt(E)  Z = Neg(F) }"""
    assert chains(text, zero=np.array([0])) == []


def test_integers_are_left_unless_a_mask_or_a_number_comes_out():
    text = """g (int64[4, 1] X, int64[1, 8] U) => (int64[4, 8] Y, bool[4, 8] M) {
        A = Sub(X, U)  Y = Mul(A, A)  D = Sub(U, X)  E = Abs(D)  M = Less(E, three) }"""
    assert chains(text, three=np.int64(3)) == [["Sub", "Abs", "Less"]]


@pytest.mark.parametrize(
    ("real", "provider", "expected"),
    [
        ("float", "cpu", True),
        ("double", "cpu", True),
        ("float16", "cpu", True),
        ("bfloat16", "cpu", False),
        ("bfloat16", "cuda", True),
        ("float16", "cuda", True),
        ("float", "other", False),
    ],
)
def test_element_types(real, provider, expected):
    text = body("A = Add(X, U)  Y = Mul(A, B)", "real[2, 8] Y", real)
    assert bool(chains(text, provider)) is expected


@pytest.mark.parametrize(("provider", "length"), [("cpu", 2), ("cuda", 5)])
def test_a_type_without_kernel_ends_a_chain(provider, length):
    nodes = "A = Exp(X)  D = Cast<to=16>(A)  E = Cast<to=1>(D)  F = Neg(E)  Y = Abs(F)"
    found = chains(body(nodes), provider)
    assert [len(chain) for chain in found] == [length]


@pytest.mark.parametrize(
    ("left", "right", "result", "found"),
    [
        ("n, 8", "n, 8", "n, 8", True),
        ("n, 8", "8", "n, 8", True),
        ("n, 8", "m, 8", "p, 8", False),  # one of them may be 1: the sum then has more elements
        ("2, 1, 8", "4, 1", "2, 4, 8", False),  # both are broadcast
    ],
)
def test_dimensions_are_compared_by_name(left, right, result, found):
    text = f"""g (float[{left}] X, float[{right}] U) => (float[{result}] Y) {{
        A = Exp(X)  Y = Add(A, U) }}"""
    assert bool(chains(text)) is found


def test_equal_chains_have_the_same_expression():
    text = """g (float[2, 8] X, float[2, 8] U, float[4, 8] V) => (float[2, 8] Y, float[4, 8] Z) {
        A = Sigmoid(X)  Y = Mul(A, U)  D = Exp(V)  E = Sigmoid(D)  F = Softmax(E)
        G = Sigmoid(F)  Z = Mul(G, V) }"""
    found = find_chains(graph(text).graph, "cpu")
    gates = [chain.expression for chain in found if len(chain.expression.inputs) == 2]
    assert len(gates) == 2
    assert gates[0] == gates[1]
    assert gates[0].name == gates[1].name


def test_equal_chains_have_the_same_expression_in_any_order_of_the_graph():
    one = graph(body("A = Exp(X)  D = Abs(U)  Y = Sub(D, A)"))
    other = graph(body("D = Abs(U)  A = Exp(X)  Y = Sub(D, A)"))
    (a,), (b,) = (find_chains(model.graph, "cpu") for model in (one, other))
    assert a.expression == b.expression


def test_constants_of_one_element_are_in_the_expression():
    model = graph(body("A = Mul(X, k)  Y = Add(A, B)"), k=np.float32([[0.25]]))
    (chain,) = find_chains(model.graph, "cpu")
    assert [value.name for value in chain.inputs] == ["X", "B"]
    assert "f32:0x1.0" in str(chain.expression)


def test_a_constant_of_a_higher_rank_keeps_the_rank():
    text = "g (float[8] X) => (float[1, 1, 8] Y) { A = Exp(X)  D = Mul(A, k)  Y = Neg(D) }"
    assert chains(text, k=np.ones((1, 1, 1), np.float32)) == []


def test_long_chains_are_cut():
    nodes = "".join(f"T{i + 1} = Neg(T{i}) " for i in range(200)) + "Y = Abs(T200)"
    found = chains(body(nodes.replace("T0)", "X)")))
    assert sum(map(len, found)) == 201
    assert max(map(len, found)) == 64


def test_chains_have_sixteen_inputs_at_most():
    inputs = ", ".join(f"float[4] X{i}" for i in range(40))
    sums = "S1 = Add(X0, X1) " + " ".join(f"S{i} = Add(S{i - 1}, X{i})" for i in range(2, 40))
    model = graph(f"g ({inputs}) => (float[4] S39) {{ {sums} }}")
    found = find_chains(model.graph, "cpu")
    assert max(len(chain.inputs) for chain in found) == 16
    assert sum(len(chain.nodes) for chain in found) == 39


def test_a_chain_reads_each_value_once():
    model = graph(body("A = Mul(X, X)  D = Mul(A, X)  Y = Add(D, A)"))
    (chain,) = find_chains(model.graph, "cpu")
    assert [value.name for value in chain.inputs] == ["X"]
    assert isinstance(chain.result, ir.Value)
