"""Rules on several nodes at once, and what they reuse or write in several places."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_attention_patterns import band
from backend_graphs import Graph, apply, operators, relative_errors
from backend_patterns import EVERY, GROUP_QUERY, HALF, PATTERNS, angles

from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.products import MOST_ROWS, allow_copies
from ortmeter.dtypes import unit_roundoff
from ortmeter.evaluator import Evaluator
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.sessions import make_session

# Projections as they are before the rules: a weight is constant, or an input that may be copied.
LINEAR = """T{i} = Transpose<perm=[1,0]>(W{i})  {y} = MatMul(X, T{i})"""
MERGED = Graph(
    f"""g (real[2, 4, 8] X, real[3, 8] W0, real[5, 8] W1, real[4, 8] W2)
    => (real[2, 4, 3] A, real[2, 4, 5] B, real[2, 4, 4] C) {{
        {LINEAR.format(i=0, y="A")}  {LINEAR.format(i=1, y="B")}  {LINEAR.format(i=2, y="C")}
    }}"""
)
PACKED = GROUP_QUERY.replace(
    {
        "real[2, 16, 64] Q, real[2, 16, 32] K, real[2, 16, 32] V": "real[2, 16, 128] X",
        "        A = Rotary": "        Q, K, V = Split<axis=-1>(X, parts)\n        A = Rotary",
    },
    parts=np.array([64, 32, 32]),
)


def merge(graph, element="float", provider="cuda", *, copies=True, refusals=None):
    """Apply the rule to products that read their weight as torch stores it."""
    model, _ = apply("TransposedWeight", graph, element, provider=provider)
    if copies:
        allow_copies(value for value in model.graph.inputs if value.name.startswith("W"))
    return model, RULES["MergedProducts"].apply(model, provider, refusals)


def pack(graph, element="float16", provider="cuda", refusals=None):
    model, _ = apply("GroupQuery", graph, element, provider=provider)
    return model, RULES["PackedGroupQuery"].apply(model, provider, refusals)


def without_constants(model):
    return [operator for operator in operators(model) if operator != "Constant"]


@pytest.mark.parametrize("element", ["float", "double"])
def test_products_of_the_same_rows_become_one(element):
    model, count = merge(MERGED, element)
    assert count == 3
    assert without_constants(model) == ["Concat", "FusedMatMul", "Split"]
    assert max(relative_errors(MERGED, model, element)) <= 16 * unit_roundoff(element)


def test_constant_weights_are_merged_without_being_marked():
    weight = np.random.default_rng(0).standard_normal((3, 8))
    graph = MERGED.replace({", real[3, 8] W0, real[5, 8] W1": ", real[5, 8] W1"}, W0=weight)
    model, count = merge(graph, copies=False)
    assert count == 0  # alone
    graph = graph.replace({", real[4, 8] W2": ""}, W2=weight[[0, 1, 2, 0]])
    model, count = merge(graph, copies=False)
    assert count == 2
    assert sorted(without_constants(model)) == ["Concat", "FusedMatMul", "FusedMatMul", "Split"]
    assert max(relative_errors(graph, model)) <= 16 * unit_roundoff("float")


@pytest.mark.parametrize("element", EVERY)
def test_products_are_merged_on_cuda_only(element):
    assert merge(MERGED, element)[1] == 3
    assert merge(MERGED, element, "cpu")[1] == 0


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        pytest.param(
            MERGED.replace({"[2, 4, ": f"[2, {MOST_ROWS}, "}), "128 rows: above 64", id="many rows"
        ),
        pytest.param(
            MERGED.replace({"[2, 4, ": "[n, 4, "}),
            "the number of rows is not known",
            id="an unknown number of rows",
        ),
        pytest.param(
            Graph(
                f"""g (real[2, 8] X, real[2, 8] Z, real[3, 8] W0, real[5, 8] W1)
                => (real[2, 3] A, real[2, 5] B) {{
                    {LINEAR.format(i=0, y="A")}  {LINEAR.format(i=1, y="B").replace("X", "Z")}
                }}"""
            ),
            "",
            id="other rows",
        ),
        pytest.param(
            Graph(
                f"""g (real[2, 8] X, real[3, 8] W0) => (real[2, 3] A, real[2, 3] B) {{
                    {LINEAR.format(i=0, y="A")}  T = Transpose<perm=[1,0]>(W0)  B = MatMul(X, T)
                }}"""
            ),
            "two products have the same weight",
            id="the same weight",
        ),
    ],
)
def test_products_are_not_merged(graph, reason):
    refusals = []
    model, count = merge(graph, refusals=refusals)
    assert count == 0
    assert reason in "".join(map(str, refusals))
    assert bool(reason) == bool(refusals)  # a product that is alone is no news
    assert set(operators(model)) == {"FusedMatMul"}


def test_weights_that_may_not_be_copied_are_not_merged():
    refusals = []
    model, count = merge(MERGED, copies=False, refusals=refusals)
    assert count == 0
    assert {refusal.reason for refusal in refusals} == {"the weight may not be copied"}
    assert operators(model) == ["FusedMatMul"] * 3


def test_queries_keys_and_values_are_left_in_one_piece():
    model, count = pack(PACKED)
    assert count == 1
    assert without_constants(model) == ["GroupQueryAttention"]
    assert max(relative_errors(PACKED, model, "float16")) <= 16 * unit_roundoff("float16")
    session = make_session(ir.to_proto(model), provider="cpu", optimization="none")
    assert {node.op_type for node in node_assignment(session)} == {"GroupQueryAttention"}


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


@pytest.mark.parametrize("element", EVERY)
def test_packed_queries_have_the_types_of_the_kernel(element):
    assert pack(PACKED, element)[1] == (element in HALF)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param({"Q, K, V = Split": "Q, V, K = Split"}, id="values before keys"),
        pytest.param(
            {"real[2, 16, 128] X": "real[2, 16, 128] X, real[2, 16, 32] Z", "B, V)": "B, Z)"},
            id="values from elsewhere",
        ),
    ],
)
def test_parts_in_another_order_are_left(pieces):
    refusals = []
    model, count = pack(PACKED.replace(pieces), refusals=refusals)
    assert count == 0
    assert "not queries, keys and values in this order" in refusals[0].reason
    assert "Split" in operators(model)


# The sum of a residual is read before it is normalized.
SUM_BEFORE = Graph(
    """g (real[2, 4, 8] X, real[2, 4, 8] R, real[8] G) => (real[2, 4, 8] Y, real[2, 4, 8] Z) {
        T = Add(X, R)  Z = Neg(T)  Y = RMSNormalization<axis=-1>(T, G)
    }"""
)
SCALE_OF_THE_SUM = Graph(
    """g (real[2, 4, 8] X, real[2, 4, 8] R) => (real[2, 4, 8] Y, real[2, 4, 8] T) {
        T = Add(X, R)  G = ReduceMax<keepdims=0>(T, first)  Y = RMSNormalization<axis=-1>(T, G)
    }""",
    {"first": np.array([0, 1])},
)
NAMED = "T{0} = Transpose<perm=[1,0]>({0})  {1} = MatMul(X, T{0})  "
# A product by weights that the model puts together itself, and by one of them.
OWN_CONCAT = Graph(
    f"""g (real[2, 8] X, real[3, 8] A, real[5, 8] B) => (real[2, 8] Y, real[2, 3] Z) {{
        W = Concat<axis=0>(A, B)  {NAMED.format("W", "P")} Y = Relu(P)  {NAMED.format("A", "Z")}
    }}"""
)


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


def test_a_sum_is_computed_before_what_reads_it():
    model = SUM_BEFORE.model()
    assert RULES["SkipRMSNorm"].apply(model, "cuda") == 1
    check(SUM_BEFORE, model)


def test_a_kernel_that_gives_the_sum_is_not_scaled_by_it():
    model = SCALE_OF_THE_SUM.model()
    assert RULES["SkipRMSNorm"].apply(model, "cuda") == 0
    check(SCALE_OF_THE_SUM, model)


def merged(graph):
    model = graph.model()
    RULES["TransposedWeight"].apply(model, "cuda")
    allow_copies(value for value in model.graph.inputs if value.name != "X")
    return model, RULES["MergedProducts"].apply(model, "cuda")


def test_a_product_of_another_concatenation_is_not_a_merged_one():
    model, count = merged(OWN_CONCAT)
    assert count == 0
    assert operators(model).count("FusedMatMul") == 2
    check(OWN_CONCAT, model)


def test_a_split_of_the_model_is_not_that_of_a_merged_product():
    graph = OWN_CONCAT.replace(
        {
            "real[2, 8] Y, real": "real[2, 5] Y, real[2, 3] Q, real",
            "Y = Relu(P)": "Y, Q = Split<axis=1>(P, parts)",
        },
        parts=np.array([5, 3]),
    )
    model, count = merged(graph)
    assert count == 0
    check(graph, model)


def test_products_are_merged_before_the_constants_that_they_read():
    weights = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    graph = Graph(
        f"""g (real[2, 8] X) => (real[2, 3] Y, real[2, 3] Z) {{
            {NAMED.format("A", "Y")} {NAMED.format("B", "Z")}
        }}""",
        {"A": weights[0], "B": weights[1]},
    )
    proto = graph.proto()
    nodes = list(proto.graph.node)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    del proto.graph.node[:], proto.graph.initializer[:]
    for name, pair in (("A", nodes[:2]), ("B", nodes[2:])):
        constant = onnx.helper.make_node("Constant", [], [name], value=tensors[name])
        proto.graph.node.extend([constant, *pair])
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    RULES["TransposedWeight"].apply(model, "cuda")
    for node in model.graph:
        if node.op_type == "Constant":
            node.outputs[0].const_value = node.attributes["value"].as_tensor()
    assert RULES["MergedProducts"].apply(model, "cuda") == 2
    check(graph, model)


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
