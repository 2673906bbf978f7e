import onnx.parser

from ortmeter.backend.record import CompiledGraph, Fallback

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


def test_a_record_counts_the_nodes_of_subgraphs_and_functions():
    graph = CompiledGraph(
        model=onnx.parser.parse_model(NESTED),
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
    twice = {"com.microsoft.QuickGelu": 2}
    assert graph.operators == twice | dict.fromkeys(("local.twice", "If", "Abs", "Add"), 1)
    assert (graph.node_count, graph.custom_count) == (6, 3)
    assert str(graph) == (
        "default on cpu: 7 -> 6 nodes, 3 of them custom, compiled in 1.50 s, fusions: Silu 2"
    )
    assert str(Fallback("aten.svd", 3)) == "runs on torch, 3 operations: aten.svd"
