"""Rules on products: what several nodes become together, near misses, models that need them."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from backend_graphs import Graph, apply, operators, relative_errors
from backend_models import ARCHITECTURES, tensors
from backend_patterns import EVERY, GROUP_QUERY, HALF, PATTERNS

from ortmeter.backend import OrtBackend, weights
from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.merging import MOST_ROWS, allow_copies
from ortmeter.dtypes import unit_roundoff
from ortmeter.runtime.sessions import make_session, node_assignment

SLICES = Graph(
    """g (real[n, 4, 8] X) => (real[n, 4, 3] A, real[n, 4, 1] B, real[n, 4, 4] C) {
        A = Slice(X, zero, three, last, one)  B = Slice(X, three, four, two, one)
        C = Slice(X, four, end, last, one)
    }""",
    {
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "three": np.array([3]),
        "four": np.array([4]),
        "end": np.array([2**63 - 1]),
        "last": np.array([-1]),
    },
)
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
        "real[2, 512, 64] Q, real[2, 512, 32] K, real[2, 512, 32] V": "real[2, 512, 128] X",
        "        A = Rotary": "        Q, K, V = Split<axis=-1>(X, parts)\n        A = Rotary",
    },
    parts=np.array([64, 32, 32]),
)


def merge(graph, element="float", provider="cuda", *, copies=True):
    """Apply the rule to products that read their weight as torch stores it."""
    model, _ = apply("TransposedWeight", graph, element, provider=provider)
    if copies:
        allow_copies(value for value in model.graph.inputs if value.name.startswith("W"))
    return model, RULES["MergedProducts"].apply(model, provider)


def pack(graph, element="float", provider="cpu"):
    model, _ = apply("GroupQuery", graph, element, provider=provider)
    return model, RULES["PackedGroupQuery"].apply(model, provider)


def without_constants(model):
    return [operator for operator in operators(model) if operator != "Constant"]


@pytest.mark.parametrize("element", ["float", "double", "float16"])
def test_slices_become_one_split(element):
    model, count = apply("SlicesToSplit", SLICES, element)
    assert count == 3
    assert without_constants(model) == ["Split"]
    assert max(relative_errors(SLICES, model, element)) == 0


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(
            SLICES.replace(
                {"Slice(X, four": "Slice(X, five", "4, 4] C": "4, 3] C"}, five=np.array([5])
            ),
            id="a hole",
        ),
        pytest.param(SLICES.replace({}, three=np.array([5])), id="an overlap"),
        pytest.param(SLICES.replace({}, end=np.array([7])), id="the end is missing"),
        pytest.param(SLICES.replace({}, zero=np.array([1])), id="the begin is missing"),
        pytest.param(SLICES.replace({}, two=np.array([1])), id="two axes"),
        pytest.param(SLICES.replace({}, one=np.array([2])), id="a step"),
        pytest.param(SLICES.replace({"[n, 4, 8] X": "[n, 4, m] X"}), id="an unknown size"),
        pytest.param(
            SLICES.replace({"[n, 4, 8] X": "[n, 4, 8] X, int64[1] zero"}, zero=None),
            id="a bound that is an input",
        ),
    ],
)
def test_slices_that_are_not_the_parts_of_a_whole_are_left(graph):
    model, count = apply("SlicesToSplit", graph)
    assert count == 0
    assert operators(model) == ["Slice"] * 3


def test_slices_of_two_axes_are_two_splits():
    graph = SLICES.replace(
        {
            "C) {": "C, real[n, 1, 8] D, real[n, 3, 8] E) {\n"
            "D = Slice(X, zero, one, one, one)  E = Slice(X, one, four, one, one)"
        }
    )
    model, count = apply("SlicesToSplit", graph)
    assert count == 5
    assert without_constants(model) == ["Split"] * 2
    assert max(relative_errors(graph, model)) == 0


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
    "graph",
    [
        pytest.param(MERGED.replace({"[2, 4, ": f"[2, {MOST_ROWS}, "}), id="many rows"),
        pytest.param(MERGED.replace({"[2, 4, ": "[n, 4, "}), id="an unknown number of rows"),
        pytest.param(
            Graph(
                f"""g (real[2, 8] X, real[2, 8] Z, real[3, 8] W0, real[5, 8] W1)
                => (real[2, 3] A, real[2, 5] B) {{
                    {LINEAR.format(i=0, y="A")}  {LINEAR.format(i=1, y="B").replace("X", "Z")}
                }}"""
            ),
            id="other rows",
        ),
        pytest.param(
            Graph(
                f"""g (real[2, 8] X, real[3, 8] W0) => (real[2, 3] A, real[2, 3] B) {{
                    {LINEAR.format(i=0, y="A")}  T = Transpose<perm=[1,0]>(W0)  B = MatMul(X, T)
                }}"""
            ),
            id="the same weight",
        ),
    ],
)
def test_products_are_not_merged(graph):
    model, count = merge(graph)
    assert count == 0
    assert set(operators(model)) == {"FusedMatMul"}


def test_weights_that_may_not_be_copied_are_not_merged():
    model, count = merge(MERGED, copies=False)
    assert count == 0
    assert operators(model) == ["FusedMatMul"] * 3


@pytest.mark.parametrize("element", ["float", "float16"])
def test_queries_keys_and_values_are_left_in_one_piece(element):
    model, count = pack(PACKED, element)
    assert count == 1
    assert without_constants(model) == ["GroupQueryAttention"]
    # sums of up to 512 terms
    assert max(relative_errors(PACKED, model, element)) <= 64 * unit_roundoff(element)
    session = make_session(ir.to_proto(model), provider="cpu", optimization="none")
    assert {node.op_type for node in node_assignment(session)} == {"GroupQueryAttention"}


@pytest.mark.parametrize("element", EVERY)
def test_packed_queries_have_the_types_of_the_kernel(element):
    assert pack(PACKED, element)[1] == (element in {"float", "float16"})
    assert pack(PACKED, element, "cuda")[1] == (element in HALF)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param({"Q, K, V = Split": "Q, V, K = Split"}, id="values before keys"),
        pytest.param(
            {"real[2, 512, 128] X": "real[2, 512, 128] X, real[2, 512, 32] Z", "B, V)": "B, Z)"},
            id="values from elsewhere",
        ),
    ],
)
def test_parts_in_another_order_are_left(pieces):
    model, count = pack(PACKED.replace(pieces))
    assert count == 0
    assert "Split" in operators(model)


def near(name, reason, pieces=None, **constants):
    """The graph of a pattern with one thing wrong."""
    graph = PATTERNS[name].graph.replace(pieces or {}, **constants)
    return pytest.param(name, graph, id=f"{name}: {reason}")


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        near("flat product", "half of it", {"Gemm(": "Gemm<alpha=0.5>("}),
        near("flat product", "half of the bias", {"Gemm(": "Gemm<beta=0.5>("}),
        near("flat product", "columns", {"Gemm(": "Gemm<transA=1>("}),
        near("flat product", "a bias of each row", {"real[6] B": "real[8, 1] B"}),
        near("flat product", "one bias", {"real[6] B": "real[1] B"}),
        near("flat product", "a matrix", {"real[2, 4, 8] X": "real[8, 8] X"}),
        near("flat product", "rows are cut", {"real[2, 4, 8] X": "real[2, 8, 4] X"}),
        near("flat product", "a batch of images", {"real[2, 4, 8] X": "real[8, 2, 4] X"}),
        near("flat product", "an unknown size", {"real[2, 4, 8] X": "real[2, 4, n] X"}),
        near("flat heads", "a batch of images", {"[2, 4, 2, 4] X": "[8, 2, 2, 2] X"}),
        near(
            "flat norm", "the matrix", {"axis=1": "axis=0", "[8] G": "[8,8] G", "[8] S": "[8,8] S"}
        ),
        near("flat norm", "no shift", {"(R, G, S)": "(R, G)"}),
        near("flat relu", "rows are cut", {"real[2, 4, 8] X": "real[2, 8, 4] X"}),
        near("flat sum", "other rows", {"real[2, 4, 8] Z": "real[4, 2, 8] Z"}),
        near(
            "flat sum", "a row", {"real[2, 4, 8] Z": "real[8] Z", "= Reshape(Z, rows)": "= Neg(Z)"}
        ),
        near(
            "there and back",
            "another shape",
            {"[n, 4, 8] Y": "[n, 8, 4] Y"},
            back=np.array([-1, 8, 4]),
        ),
        near("tanh gelu", "another factor", half=np.float64(0.4)),
        near("tanh gelu", "another slope", slope=np.float64(0.7979)),
        near("tanh gelu", "another coefficient", cubic=np.float64(0.045)),
        near("tanh gelu", "a square", three=np.float64(2)),
        near("tanh gelu", "a root", three=np.float64(0.5)),
        near("tanh gelu", "less one", one=np.float64(-1)),
        near(
            "tanh gelu",
            "another argument",
            {"X) =>": "X, real[2, 4] Z) =>", "Mul(X, half)": "Mul(Z, half)"},
        ),
        near("tanh gelu", "a cube of another", {"X) =>": "X, real[2, 4] Z) =>", "Pow(X": "Pow(Z"}),
        near("tanh gelu", "a vector of factors", half=np.full(4, 0.5)),
        near("tanh gelu", "a factor that is an input", {"X) =>": "X, real half) =>"}, half=None),
        near("tanh gelu", "more dimensions", {"[2, 4] Y": "[1, 2, 4] Y"}, one=np.ones((1, 1, 1))),
        near("tanh gelu factored", "a missing factor", {"Mul(C, X)": "Neg(C)"}),
        near("bias tanh gelu", "exact", {'approximate="tanh"': 'approximate="none"'}),
        near("bias tanh gelu", "one bias", {"real[8] B": "real[1] B"}),
        near("scaled", "the default scale", {"scale=0.5, ": ""}),
        near("scaled", "a negative scale", factor=np.float64(-0.3)),
        near("scaled", "a factor for each feature", factor=np.linspace(1, 2, 8)),
        near("scaled", "a factor that is an input", {"V) =>": "V, real factor) =>"}, factor=None),
        near("scaled", "a sum", {"Mul(Q": "Add(Q"}),
        near(
            "partial rotary",
            "a hole",
            {"Slice(X, middle, end": "Slice(X, four, end"},
            four=np.array([5]),
        ),
        near(
            "partial rotary",
            "the rest is before",
            {"Concat<axis=-1>(R, S)": "Concat<axis=-1>(S, R)"},
        ),
        near("partial rotary", "the end is missing", {"5, 8] Y": "5, 7] Y"}, end=np.array([7])),
        near(
            "partial rotary",
            "rotated in part",
            {"= Rotary": "= Rotary", "(F, cos": "<rotary_embedding_dim=2>(F, cos"},
        ),
    ],
)
def test_a_rule_leaves_what_it_cannot_stand_for(name, graph):
    pattern = PATTERNS[name]
    model, count = apply(pattern.rule, graph, pattern.cpu[0])
    assert count == 0
    assert operators(model) == operators(graph.model(pattern.cpu[0]))


# Two layers; what the rules before these leave out of each model.
FUSIONS = {
    "gpt2": {"Flattening": 16, "TanhGelu": 2, "BiasFastGelu": 2, "AttentionBeforeSplit": 2},
    "opt": {"Flattening": 12, "ScaledQueries": 2, "AttentionBeforeSplit": 2, "SkipLayerNorm": 5},
    "phi3": {"SlicesToSplit": 6, "AttentionBeforeSplit": 2, "Silu": 2},
    "gpt-neox": {"PartialRotary": 4},
}


def compile_and_compare(model, inputs):
    """Check a model against torch; return what was done."""
    backend = OrtBackend(fallback=False)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        expected, got = tensors(model(**inputs)), tensors(compiled(**inputs))
    for x, y in zip(expected, got, strict=True):
        assert (x - y).abs().max() <= 1e-5 * x.abs().max()
    (graph,) = backend.graphs
    return graph


@pytest.mark.parametrize("name", FUSIONS)
def test_the_rules_find_their_pattern_in_a_model(name, monkeypatch):
    monkeypatch.setattr(weights, "SMALL_BYTES", 256)
    graph = compile_and_compare(*ARCHITECTURES[name].build("sdpa"))
    assert {rule: graph.fusions.get(rule, 0) for rule in FUSIONS[name]} == FUSIONS[name]
    assert "Gemm" not in graph.operators
    assert "Tanh" not in graph.operators
    assert "Slice" not in graph.operators


def test_packed_queries_of_a_long_sequence_reach_the_kernel():
    config = transformers.Phi3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        max_position_embeddings=512,
        use_cache=False,
    )
    inputs = {"input_ids": torch.randint(50, (1, 512))}
    graph = compile_and_compare(transformers.Phi3Model(config).eval(), inputs)
    assert graph.fusions["PackedGroupQuery"] == 1
    assert graph.operators["com.microsoft.GroupQueryAttention"] == 1
    assert graph.operators["Split"] == 1  # gates and values
