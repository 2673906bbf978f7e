"""The level +experimental: which nodes become one kernel, and that results are the same."""

import warnings

import numpy as np
import onnx_ir as ir
import pytest
import torch
from backend_kernels import graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ortmeter.backend import CompiledGraph, KernelWarning, OrtBackend, explain
from ortmeter.backend.kernels.chains import find_chains
from ortmeter.backend.kernels.library import build_library
from ortmeter.backend.levels import optimize_model, parse_level
from ortmeter.runtime.sessions import make_session

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


@pytest.mark.parametrize(
    ("nodes", "outputs", "results"),
    [
        ("A = Exp(X)  D = Neg(A)  E = Abs(D)  Y = Sqrt(E)", "Y D", ["D Y"]),
        ("A = Exp(X)  D = Neg(A)  Y = Mul(A, D)", "Y A D", ["A D Y"]),
        # what reads a result comes after the kernel, or would have to wait for it
        ("A = Exp(X)  D = Neg(A)  Y = Abs(D)  Z = Softmax(D)", "Y Z", ["D Y"]),
        ("A = Exp(X)  D = Neg(A)  Z = Softmax(D)  Y = Abs(D)", "Y Z", ["D"]),
        ("A = Exp(X)  D = Neg(A)  Z = Softmax(D)  Y = Mul(D, Z)", "Y", ["D"]),
        # two chains, the second one reads both results of the first one
        (
            "A = Exp(X)  D = Neg(A)  Z = Softmax(D)  E = Mul(A, D)  Y = Mul(E, Z)",
            "Y",
            ["A D", "Y"],
        ),
        # a result of another shape
        ("A = Exp(B)  D = Neg(A)  E = Mul(X, D)  Y = Abs(E)", "Y A", ["A D", "Y"]),
        # more than four results
        (
            "A = Exp(X)  D = Neg(A)  E = Abs(D)  F = Sqrt(E)  G = Log(F)  Y = Mul(G, G)",
            "A D E F G Y",
            ["A D", "E F G Y"],
        ),
    ],
)
def test_a_chain_has_several_results(nodes, outputs, results):
    shapes = ", ".join(f"float[p, q] {name}" for name in outputs.split())
    found = find_chains(graph(body(nodes, shapes)).graph, "cpu")
    assert [" ".join(value.name for value in chain.results) for chain in found] == results


def test_an_integer_is_no_result():
    text = """g (int64[4, 8] X) => (bool[4, 8] M, int64[4, 8] A, bool[4, 8] N) {
        A = Neg(X)  D = Abs(A)  N = Less(D, X)  M = Not(N) }"""
    found = find_chains(graph(text).graph, "cpu")
    assert [[value.name for value in chain.results] for chain in found] == [["N", "M"]]
    assert [len(chain.nodes) for chain in found] == [3]


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
    assert [value.name for value in chain.results] == ["Y"]


# What the level writes, and when it gives up.

BELOW, LEVEL = "default+onnxruntime", "default+onnxruntime+experimental"
GATED = """g (float[n, 8] X, float[n, 8] U, float[8] B) => (float[n, 8] Y) {
    A = Add(X, B)  S = Sigmoid(A)  G = Mul(A, S)  T = Mul(G, U)  Y = Add(T, X) }"""


class Gated(torch.nn.Module):
    """Element-wise, but for a product."""

    def __init__(self, size=8):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.scale = torch.nn.Parameter(torch.randn(size))
        self.gain = torch.nn.Parameter(torch.tensor(0.75))

    def forward(self, x, u):
        h = torch.nn.functional.silu(self.linear(x)) * u
        return torch.tanh(h * self.scale + x) * self.gain


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def run(model, kernels, feeds):
    libraries = [] if kernels.library is None else [kernels.library]
    session = make_session(ir.to_proto(model), provider="cpu", custom_ops=libraries)
    return session.run(None, feeds)


def test_a_chain_becomes_one_node():
    model = graph(GATED)
    done = optimize_model(model, parse_level(LEVEL))
    assert done.fusions == {"ElementWise": 1}
    (node,) = model.graph
    assert (node.domain, node.op_type[:17]) == ("ortmeter.kernels", "Add_Sigmoid_Mul_M")
    assert "Sigmoid" in node.attributes["expression"].as_string()
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == [*"XUBY"]
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(s, np.float32) for n, s in [("X", (5, 8)), ("U", (5, 8)), ("B", 8)]
    }
    (expected,) = ReferenceEvaluator(ir.to_proto(graph(GATED))).run(None, feeds)
    np.testing.assert_allclose(run(model, done.kernels, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_chain_that_reads_another_one_reads_its_kernel():
    text = """g (float[4, 8] X) => (float[4, 8] Y) {
        A = Exp(X)  D = Neg(A)  Z = Softmax(D)  E = Mul(A, D)  Y = Mul(E, Z) }"""
    model, feeds = graph(text), {"X": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)}
    done = optimize_model(model, parse_level(LEVEL))
    first, softmax, second = model.graph
    assert list(softmax.inputs) == [first.outputs[1]]
    assert set(second.inputs) == {*first.outputs, *softmax.outputs}
    (expected,) = ReferenceEvaluator(ir.to_proto(graph(text))).run(None, feeds)
    np.testing.assert_allclose(run(model, done.kernels, feeds)[0], expected, rtol=1e-5)


def test_a_rule_may_be_left_out():
    model = graph(GATED)
    assert optimize_model(model, parse_level(f"{LEVEL}-ElementWise")).fusions == {}
    assert [node.op_type for node in model.graph] == ["Add", "Sigmoid", "Mul", "Mul", "Add"]


def test_chains_of_subgraphs_become_nodes():
    model = graph("""g (float[2, 4] X, bool C) => (float[2, 4] Y) {
        Y = If(C) <then_branch = yes () => (float[2, 4] A) { S = Exp(X)  A = Sqrt(S) },
                  else_branch = no () => (float[2, 4] B) { B = Neg(X) }> }""")
    done = optimize_model(model, parse_level(LEVEL))
    assert done.fusions == {"ElementWise": 1}
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    (got,) = run(model, done.kernels, {"X": x, "C": np.array(True)})
    np.testing.assert_allclose(got, np.exp(x / 2), rtol=1e-6)


def test_without_a_compiler_the_level_below_is_what_one_gets(without_compiler):
    model, below = graph(GATED), graph(GATED)
    with pytest.warns(KernelWarning, match=r"ElementWise: 1 chains.*g\+\+.*CXX") as told:
        done = optimize_model(model, parse_level(LEVEL))
    assert len(told) == 1
    assert done.fusions == optimize_model(below, parse_level(BELOW)).fusions == {}
    assert done.kernels.library is None
    assert "no compiler of C++" in done.kernels.reason
    assert [n.op_type for n in model.graph] == [n.op_type for n in below.graph]


def test_without_chains_no_compiler_is_needed(without_compiler):
    model = graph("g (float[2, 8] X) => (float[2, 8] Y) { Y = Softmax(X) }")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert optimize_model(model, parse_level(LEVEL)).fusions == {}


def test_a_library_that_fails_its_trial_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    monkeypatch.setattr("ortmeter.child._BOOT", "raise SystemExit(3)")
    model = graph(GATED)
    with pytest.warns(KernelWarning, match="the process died with exit code 3"):
        done = optimize_model(model, parse_level(LEVEL))
    assert done.fusions == {}
    assert "the process died with exit code 3" in done.kernels.reason


def test_a_chain_whose_kernel_is_wrong_is_left_alone(monkeypatch):
    def build_one_wrong(expressions, provider):
        library, wrong = build_library(expressions, provider)
        assert wrong == {}
        return library, {e.name: "1 expected, 2 got" for e in expressions if "Exp" in e.name}

    monkeypatch.setattr("ortmeter.backend.kernels.chains.build_library", build_one_wrong)
    text = body("A = Exp(X)  D = Neg(A)  E = Softmax(D)  F = Abs(E)  Y = Neg(F)")
    model, before = graph(text), graph(text)
    left = r"1 chains .*, Exp_Neg_\w+ fails its trial: 1 expected, 2 got$"
    with pytest.warns(KernelWarning, match=left) as told:
        done = optimize_model(model, parse_level("default+onnxruntime+experimental"))
    assert len(told) == 1
    assert done.fusions == {"ElementWise": 1}
    assert done.kernels.reason == ""
    operators = [node.op_type for node in model.graph]
    assert operators[:3] == ["Exp", "Neg", "Softmax"]
    feeds = {"X": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}
    session = make_session(ir.to_proto(model), provider="cpu", custom_ops=[done.kernels.library])
    names = {value.name for value in session.get_inputs()}
    zeros = {"U": np.zeros((2, 8), np.float32), "B": np.zeros(8, np.float32)}
    given = {**feeds, **zeros, "C": np.zeros((2, 8), bool)}
    (got,) = session.run(None, {name: given[name] for name in names})
    (expected,) = ReferenceEvaluator(ir.to_proto(before)).run(None, given)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def compiled(model, backend, *inputs):
    with torch.no_grad():
        return torch.compile(model, backend=backend)(*inputs)


def test_torch_compile_runs_the_kernels():
    model, inputs = Gated().eval(), (torch.randn(3, 8), torch.randn(3, 8))
    backend = OrtBackend(LEVEL, fallback=False)
    got = compiled(model, backend, *inputs)
    with torch.no_grad():
        torch.testing.assert_close(got, model(*inputs))
    (done,) = backend.graphs
    assert isinstance(done, CompiledGraph)
    assert done.level == LEVEL
    assert done.fusions["ElementWise"] == 1
    assert done.kernels.is_file()
    assert not done.without_kernels
    assert any(name.startswith("ortmeter.kernels.") for name in done.operators)
    assert done.custom_count >= 1


def test_the_record_says_when_kernels_are_missing(without_compiler):
    backend = OrtBackend(LEVEL, fallback=False)
    inputs = torch.randn(3, 8), torch.randn(3, 8)
    model = Gated().eval()
    with pytest.warns(KernelWarning):
        got = compiled(model, backend, *inputs)
    with torch.no_grad():
        torch.testing.assert_close(got, model(*inputs))
    (done,) = backend.graphs
    assert "ElementWise" not in done.fusions
    assert "no kernel compiled: no compiler of C++" in str(done)


def test_a_dumped_model_runs_with_its_library(tmp_path):
    backend = OrtBackend(LEVEL, fallback=False, dump=tmp_path)
    x = torch.randn(4, 8)
    got = compiled(lambda v: torch.exp(torch.sin(v)).neg().sigmoid() * v, backend, x)
    (done,) = backend.graphs
    session = make_session(done.file, provider="cpu", custom_ops=[done.kernels])
    (again,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_array_equal(again, got.numpy())


def test_a_change_of_the_weights_is_seen():
    model, inputs = Gated().eval(), (torch.randn(3, 8), torch.randn(3, 8))
    backend = OrtBackend(LEVEL, fallback=False)
    with torch.no_grad():
        function = torch.compile(model, backend=backend)
        function(*inputs)
        model.gain.fill_(2.0)  # a number in the expression
        model.scale.mul_(3.0)  # an input of the kernel
        torch.testing.assert_close(function(*inputs), model(*inputs))
    assert backend.graphs[0].builds == 2


def test_dynamic_shapes():
    backend = OrtBackend(LEVEL, fallback=False)
    model = Gated().eval()
    with torch.no_grad():
        function = torch.compile(model, backend=backend)
        x = torch.randn(3, 8)
        torch._dynamo.mark_dynamic(x, 0)
        for size in (3, 5000, 1, 17):
            x = x if size == 3 else torch.randn(size, 8)
            u = torch.randn(8)
            torch.testing.assert_close(function(x, u), model(x, u))
    assert all(done.fusions["ElementWise"] == 1 for done in backend.graphs)


@pytest.mark.parametrize("rows", [3, 70_000])
def test_several_results_are_those_of_torch(rows):
    def function(x, u, b):
        h = (x + u) * b
        y = torch.sigmoid(h) * u
        return torch.tanh(y) + h, h, y > 0.25, torch.softmax(y, -1)

    inputs = [torch.randn(rows, 8), torch.randn(rows, 1), torch.randn(8)]
    backend = OrtBackend(LEVEL, fallback=False)
    got = compiled(function, backend, *inputs)
    (done,) = backend.graphs
    assert (done.fusions["ElementWise"], done.custom_count) == (1, 1)
    wide = function(*(t.double() for t in inputs))
    for result, expected in zip(got, wide, strict=True):
        if result.dtype == torch.bool:
            assert (result == expected).double().mean() > 0.999
        else:
            torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


def test_half_precision():
    backend = OrtBackend(LEVEL, fallback=False)
    x, u = torch.randn(64, 8).half(), torch.randn(8).half()

    def function(x, u):
        return torch.tanh(x * u + x).sigmoid() * u

    got = compiled(function, backend, x, u)
    assert backend.graphs[0].fusions == {"ElementWise": 1}
    wide = function(x.double(), u.double())
    assert (got.double() - wide).abs().max() <= 2**-11 * 1.01 * wide.abs().max()


def test_explain_shows_the_kernel():
    def function(x):
        return torch.exp(x).sigmoid() * x

    explanation = explain(function, torch.randn(4, 8), backend=OrtBackend(LEVEL))
    assert "ElementWise 1" in str(explanation)
    assert [graph.compiled.custom_count for graph in explanation.graphs] == [1]
    assert explanation.discrepancy.ulp_at_max < 8


NAMES = ("Neg", "Abs", "Sigmoid", "Tanh", "Relu", "Softplus", "Exp")
PAIRS = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def random_graphs(draw):
    """Graphs of element-wise operators whose results are read anywhere."""
    values, nodes = ["X", "U", "B", "S"], []
    for i in range(draw(st.integers(2, 12))):
        pair = draw(st.booleans())
        op = draw(st.sampled_from(PAIRS if pair else NAMES))
        recent = st.sampled_from(values[-6:])
        read = f"{draw(recent)}, {draw(recent)}" if pair else draw(recent)
        nodes.append(f"T{i} = {op}({read})")
        if op in {"Exp", "Mul", "Add"}:  # numbers stay small
            nodes.append(f"V{i} = Tanh(T{i})")
            values.append(f"V{i}")
        else:
            values.append(f"T{i}")
    outputs = {values[-1], *draw(st.lists(st.sampled_from(values[4:]), max_size=2))}
    return " ".join(nodes), sorted(outputs)


@settings(
    deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(case=random_graphs())
def test_random_graphs_give_the_same_results(case):
    nodes, outputs = case
    text = (
        "g (float[3, 40] X, float[3, 40] U, float[1, 40] B, float[3, 1] S) => "
        f"({', '.join(f'float[p, q] {name}' for name in outputs)}) {{ {nodes} }}"
    )
    model = graph(text)
    reference = ReferenceEvaluator(ir.to_proto(graph(text)))
    done = optimize_model(model, parse_level(LEVEL))
    rng = np.random.default_rng(0)
    shapes = {"X": (3, 40), "U": (3, 40), "B": (1, 40), "S": (3, 1)}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    got = run(model, done.kernels, feeds)
    for expected, result in zip(reference.run(None, feeds), got, strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
