"""The level +experimental: what it writes, when it gives up, and that results are the same."""

import sys
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
from ortmeter.backend.levels import apply_level, optimize_model, parse_level
from ortmeter.runtime.sessions import make_session

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
    assert done.fusions == {"Silu": 1, "ElementWise": 1}
    (node,) = model.graph
    assert (node.domain, node.op_type[:18]) == ("ortmeter.kernels", "Add_QuickGelu_Mul_")
    assert "com.microsoft.QuickGelu<alpha=1.0>" in node.attributes["expression"].as_string()
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == [*"XUBY"]
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(s, np.float32) for n, s in [("X", (5, 8)), ("U", (5, 8)), ("B", 8)]
    }
    (expected,) = ReferenceEvaluator(ir.to_proto(graph(GATED))).run(None, feeds)
    np.testing.assert_allclose(run(model, done.kernels, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_rule_may_be_left_out():
    model = graph(GATED)
    assert apply_level(model, parse_level(f"{LEVEL}-ElementWise")) == {"Silu": 1}
    model = graph(GATED)
    done = optimize_model(model, parse_level(f"{LEVEL}-Silu"))
    assert done.fusions == {"ElementWise": 1}
    assert [node.op_type[:17] for node in model.graph] == ["Add_Sigmoid_Mul_M"]


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
    assert done.fusions == apply_level(below, parse_level(BELOW)) == {"Silu": 1}
    assert done.kernels.library is None
    assert "no compiler of C++" in done.kernels.reason
    assert [n.op_type for n in model.graph] == [n.op_type for n in below.graph]


def test_without_chains_no_compiler_is_needed(without_compiler):
    model = graph("g (float[2, 8] X) => (float[2, 8] Y) { Y = Softmax(X) }")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apply_level(model, parse_level(LEVEL)) == {}


def test_a_library_that_fails_its_trial_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr("ortmeter.child.child_command", lambda *_: fails)
    model = graph(GATED)
    with pytest.warns(KernelWarning, match="the process died with exit code 3"):
        assert apply_level(model, parse_level(LEVEL)) == {"Silu": 1}


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
    assert explanation.to_frame().custom_nodes.to_list() == [1]
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
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow], derandomize=True
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
