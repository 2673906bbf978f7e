import onnx
import onnx.parser
import pytest

from ortmeter.backend.record import CompiledGraph, Fallback, count_operators

NESTED = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]>
g (float[n] X, bool C) => (float[n] Y) {
    A = local.twice(X)
    Y = If (C) <
        then_branch = yes () => (float[n] T) { T = com.microsoft.QuickGelu(A) },
        else_branch = no () => (float[n] E) { E = Abs(A) }
    >
}
<domain: "local", opset_import: ["": 21, "com.microsoft": 1]>
twice (x) => (y) { z = com.microsoft.QuickGelu(x)  y = Add(z, z) }
"""


@pytest.fixture
def nested():
    return onnx.parser.parse_model(NESTED)


@pytest.fixture
def graph(nested):
    return CompiledGraph(
        model=nested,
        level="default",
        provider="cpu",
        exported_operators={"Abs": 7},
        fusions={"Silu": 2},
        export_s=1.0,
        optimization_s=0.25,
        session_s=0.25,
        weight_bytes=8,
        placement={"CPUExecutionProvider": 2},
    )


def test_operators_of_subgraphs_and_functions_count(nested):
    assert count_operators(nested) == {
        "com.microsoft.QuickGelu": 2,
        "local.twice": 1,
        "If": 1,
        "Abs": 1,
        "Add": 1,
    }


def test_a_record_counts_its_nodes(graph):
    assert graph.node_count == 6
    assert graph.custom_count == 3
    assert str(graph) == (
        "default on cpu: 7 -> 6 nodes, 3 of them custom, compiled in 1.50 s, fusions: Silu 2"
    )


def test_a_fallback_says_why():
    assert str(Fallback("aten.svd", 3)) == "runs on torch, 3 operations: aten.svd"
