"""Rules on several nodes at once, and what they reuse or write in several places."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_attention_patterns import band
from backend_graphs import Graph, apply, relative_errors
from backend_patterns import GROUP_QUERY, PATTERNS, angles

from ortmeter.backend.rules import RULES
from ortmeter.dtypes import unit_roundoff
from ortmeter.evaluator import Evaluator


@pytest.mark.parametrize(("length", "count"), [(2047, 0), (2048, 1)])
def test_long_sequences_have_their_own_kernel_on_cpu(length, count):
    tables = angles(length, 16)
    graph = GROUP_QUERY.replace(
        {"2, 16,": f"1, {length},"},
        **{name: table[0, 0, :, :8] for name, table in tables.items()},
        positions=np.arange(length)[None],
    )
    refusals = []
    assert RULES["GroupQuery"].apply(graph.model(), "cpu", refusals) == count
    why = f"GroupQuery at Y: {length} positions: below 2048, Attention of the standard is faster"
    assert [str(refusal) for refusal in refusals] == [why] * (1 - count)


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.rule == "GroupQuery"])
def test_the_kernel_for_long_sequences_is_right_in_32_bits(name):
    """CUDA has no such kernel: what is written there is run here."""
    rule = RULES["GroupQuery"]
    model = PATTERNS[name].graph.model()
    assert replace(rule, fusions={"cpu": rule.fusions["cuda"]}).apply(model) == 1
    assert max(relative_errors(PATTERNS[name].graph, model)) <= 16 * unit_roundoff("float")


@pytest.mark.parametrize("wide", [65, 512])
def test_capped_scores_of_any_window_become_one_kernel_on_cuda(wide):
    pattern = PATTERNS["capped group query"]
    graph = pattern.graph.replace({}, mask=np.where(band(512, wide), 0.0, -np.inf))
    model, count = apply(pattern.rule, graph, "float16", provider="cuda")
    assert count == 1
    (node,) = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert node.attributes.get_int("local_window_size", -1) == (wide if wide < 512 else -1)
    assert max(relative_errors(graph, model, "float16")) <= 16 * unit_roundoff("float16")


def test_heads_are_not_shared_in_32_bits_on_cuda():
    refusals = []
    model = PATTERNS["repeated"].graph.model()
    assert RULES["RepeatedHeads"].apply(model, "cuda", refusals) == 0
    assert "slower, except for bfloat16, float16" in refusals[0].reason


def check(graph, model, element="float"):
    """What reads comes after what is read, and the results are the same."""
    proto = ir.to_proto(model)
    known = {value.name for value in (*proto.graph.input, *proto.graph.initializer)} | {""}
    for node in proto.graph.node:
        assert known.issuperset(node.input), node
        known.update(node.output)
    if all(not node.domain for node in proto.graph.node):
        onnx.checker.check_model(proto)
    Evaluator(proto)
    assert max(relative_errors(graph, model, element)) <= 64 * unit_roundoff(element)


# The rotation of a batch of any size reads tables that are repeated for each sequence.
ROTATED = """F = Slice(X, zero, middle, axis, one)  S = Slice(X, middle, end, axis, one)
    N = Neg(S)  R = Concat<axis=-1>(N, F)  A = Mul(X, cos)  B = Mul(R, sin)  Y = Add(A, B)"""
COMPUTED = Graph(
    f"""g (real[b, 2, 3, 8] X, real[1, 3, 4] H) => (real[b, 2, 3, 8] Y, real[b, 3, 4] E)
    <real[1, 3, 8] T, real[1, 3, 8] C, real[1, 1, 3, 8] cos, real[1, 1, 3, 8] sin> {{
        T = Concat<axis=-1>(H, H)  cos = Unsqueeze(T, one)  sin = Unsqueeze(T, one)  {ROTATED}
        P = Shape<start=0, end=1>(SOURCE)  Q = Concat<axis=0>(P, rest)  E = Expand(H, Q)
    }}""",
    {
        "zero": np.array([0]),
        "one": np.array([1]),
        "middle": np.array([4]),
        "end": np.array([8]),
        "axis": np.array([3]),
        "rest": np.array([3, 4]),
    },
)


@pytest.mark.parametrize("source", ["X", "Y"])
def test_tables_repeated_later_are_reused_unless_they_depend_on_the_rotation(source):
    graph = COMPUTED.replace({"SOURCE": source})
    model = graph.model()
    for value in model.graph:
        for result in value.outputs:
            if result.name == "E":
                result.shape = ir.Shape(["b", 3, 4])
    assert RULES["Rotary"].apply(model) == 1
    check(graph, model)
