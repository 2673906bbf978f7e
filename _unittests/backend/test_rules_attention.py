"""Rules on attention: what nearly matches, masks that are proved, and what real decoders become."""

import numpy as np
import onnx
import pytest
import torch
import transformers
from backend_attention_patterns import band
from backend_graphs import Graph, apply, operators, run
from backend_patterns import PATTERNS
from onnx.reference import ReferenceEvaluator

from ortmeter.backend import OrtBackend
from ortmeter.backend.rules.affine import Affine
from ortmeter.backend.rules.indices import affine
from ortmeter.backend.rules.masks import window
from ortmeter.dtypes import unit_roundoff

LENGTHS = (2, 3, 7, 20)
BAND = np.where(band(512, 100), 0.0, -np.inf)


def near(name, reason, pieces=None, **constants):
    """The graph of a pattern with one thing wrong."""
    graph = PATTERNS[name].graph.replace(pieces or {}, **constants)
    return pytest.param(name, graph, id=f"{name}: {reason}")


NEAR_MISSES = [
    # tables
    near("half table", "unequal halves", {"X) =>": "X, real[1, 5, 4] Z) =>", "(X, X)": "(X, Z)"}),
    near("half table", "three parts", {"(X, X)": "(X, X, X)", "5, 8]": "5, 12]"}),
    near(
        "half table",
        "another axis",
        {"axis=-1": "axis=1", "=> (real[1, 5, 8]": "=> (real[1, 10, 4]"},
    ),
    near("half table", "a factor for each angle", factor=np.linspace(1, 2, 8)),
    near(
        "half table",
        "a factor with more axes",
        {"=> (real[1, 5, 8]": "=> (real[1, 1, 5, 8]"},
        factor=np.float64([[[[2]]]]),
    ),
    near("rotary computed", "one position for all", {"l, 4] C, real[1, l": "1, 4] C, real[1, 1"}),
    near("rotary computed", "another axis is new", {"Unsqueeze(Dd, one)": "Unsqueeze(Dd, zero)"}),
    near("rotary computed", "halves of a new axis", {"axis=2>(D, D)": "axis=2>(D, C)"}),
    # heads
    near("normalized heads", "two axes", {"axis=-1": "axis=2"}),
    near("normalized heads", "one scale", {"real[4] G": "real[1] G"}),
    near("normalized heads", "a scale of each position", {"real[4] G": "real[5, 1] G"}),
    near(
        "rotary of merged heads",
        "features are exchanged",
        {"[0,2,1,3]": "[0,3,1,2]", "[2, 5, 3, 4] X": "[2, 5, 4, 3] X"},
    ),
    # scores
    near("capped group query", "two caps", {"Div(S, cap)": "Div(S, two)"}, two=np.float64(2)),
    near("capped group query", "a cap for each head", cap=np.linspace(1, 2, 4)[:, None, None]),
    near("capped group query", "a negative cap", cap=np.float64(-1.5)),
    near(
        "capped group query",
        "the mask is capped",
        {
            "Div(S, cap)": "Div(N, cap)",
            "R = ": "N = Add(S, mask)  R = ",
            "Add(C, mask)": "Mul(C, one)",
        },
        one=np.float64(1),
    ),
    near(
        "capped group query",
        "scaled after",
        {
            "Div(S, cap)": "Div(D, cap)",
            "S = Mul(D, scale)": "",
            "Add(C": "Add(Z",
            "M =": "Z = Mul(C, scale)  M =",
        },
    ),
    near("capped group query", "sines", {"Tanh(": "Sin("}),
    near("capped group query", "no cap", {"Add(C": "Add(S", "C =": "Unused ="}),
    near("capped group query", "a wide window", mask=np.where(band(512, 129), 0.0, -np.inf)),
    near("capped group query", "all of the past", mask=np.where(band(512, 512), 0.0, -np.inf)),
    near("capped group query", "other angles", {"(K, cos, sin": "(K, sin, cos"}),
    near(
        "capped group query", "keys are not rotated", {"Reshape(B, split2)": "Reshape(K, split2)"}
    ),
    near("capped group query", "other positions", positions=np.zeros((2, 512), np.int64)),
    near(
        "eager widened",
        "values of another type",
        {
            "real[2, 3, 6, 4] V": "double[2, 3, 6, 4] V",
            "<to=REAL>": "<to=11>",
            "real[2, 3, 5, 4] Y": "double[2, 3, 5, 4] Y",
        },
    ),
    *(
        near(
            "eager widened",
            f"capped by {cap}",
            {"W =": "R = Div(S, cap)  H = Tanh(R)  C = Mul(H, cap)  W =", "WIDE>(S)": "WIDE>(C)"},
            cap=np.float64(cap),
        )
        for cap in (1.5, -1.5)
    ),
    # long sequences
    near("group query in a window", "a bias", mask=BAND - np.eye(512)),
    near("group query in a window", "the future is seen", mask=np.zeros((512, 512))),
    near(
        "group query in a window", "two windows", mask=np.stack([BAND] * 3 + [np.zeros((512, 512))])
    ),
    near("group query in a window", "causal as well", {"scale=0.3": "is_causal=1, scale=0.3"}),
    near("group query of any batch", "positions that go back", row=np.arange(512)[None, ::-1]),
    near("group query of any batch", "the same position", row=np.zeros((1, 512), np.int64)),
]
SHORT = [
    near(
        "group query in a window",
        "a short sequence",
        {"512": "511"},
        positions=np.tile(np.arange(511), (2, 1)),
        mask=BAND[1:, 1:],
    ),
]


@pytest.mark.parametrize(("name", "graph"), NEAR_MISSES + SHORT)
def test_a_rule_leaves_what_it_cannot_stand_for(name, graph):
    pattern = PATTERNS[name]
    model, count = apply(pattern.rule, graph, pattern.cpu[0])
    assert count == 0
    assert operators(model) == operators(graph.model(pattern.cpu[0]))


@pytest.mark.parametrize(("name", "graph"), NEAR_MISSES)
def test_a_near_miss_is_a_model(name, graph):
    if "double[" not in graph.text:  # the reference multiplies no two types
        assert all(array.size for array in graph.expected(graph.feeds()))


ROWS_AND_COLUMNS = """S = Shape<start=0, end=1>(X)  L = Squeeze(S)  P = Range(zero, L, one)
    row = Unsqueeze(P, first)  column = Unsqueeze(P, last)
"""
KNOWN = {
    "zero": np.array(0),
    "one": np.array(1),
    "three": np.array(3),
    "first": np.array([0]),
    "next": np.array([1]),
    "last": np.array([-1]),
    "far": np.array([2**40]),
    "back": np.array([[-1]]),
    "pair": np.array([2, 3]),
    "shown": np.float64(0),
    "hidden": np.float64(-np.inf),
}
TYPES = "int64[l] P, int64[1, l] row, int64[l, 1] column"


def integers(nodes, types="", kind="int64", shape="l, l", **constants):
    """A graph that gives an array Y for a vector X of any length."""
    types = f"{TYPES}, {types}" if types else TYPES
    text = f"g (float[l] X) => ({kind}[{shape}] Y) <{types}> {{ {ROWS_AND_COLUMNS} {nodes} }}"
    return Graph(text, KNOWN | constants)


ROW, COLUMN = {-1: 1}, {-2: 1}
INTEGERS = {
    "sum": (integers("Y = Add(row, column)"), Affine(0, {-1: 1, -2: 1})),
    "difference": (integers("Y = Sub(column, row)"), Affine(0, {-1: -1, -2: 1})),
    "number": (integers("Y = Sub(row, three)", shape="1, l"), Affine(-3, ROW)),
    "steps": (integers("Y = Range(one, L, three)", shape="m"), Affine(1, {-1: 3})),
    "expand": (
        integers("Z = Sub(row, column)  T = Shape(Z)  Y = Expand(row, T)", "int64[l, l] Z"),
        Affine(0, ROW),
    ),
    "start": (integers("Y = Slice(row, next, far, next, next)", shape="1, m"), Affine(1, ROW)),
    "one column": (
        integers("Y = Slice(row, next, pair0, next, next)", shape="1, 1", pair0=np.array([2])),
        Affine(1),
    ),
    "shifted": (integers("Y = Concat<axis=1>(back, row)", shape="1, m"), Affine(-1, ROW)),
    "squeeze": (
        integers(
            "Z = Unsqueeze(row, pair)  Y = Squeeze(Z, first)",
            "int64[1, l, 1, 1] Z",
            shape="l, 1, 1",
        ),
        Affine(0, {-3: 1}),
    ),
    "sum of ones": (
        integers(
            "D = Sub(P, P)  O = Add(D, one)  Y = CumSum(O, zero)",
            "int64[l] D, int64[l] O",
            shape="l",
        ),
        Affine(1, ROW),
    ),
    "equal": (
        integers(
            "D = Sub(row, row)  E = Equal(D, zero)  N = Not(E)  Y = Cast<to=7>(N)",
            "int64[1, l] D, bool[1, l] E, bool[1, l] N",
            shape="1, l",
        ),
        Affine(0),
    ),
    "gathered": (
        integers(
            "C = Add(column, row)  R = Sub(row, C)  Z = Unsqueeze(C, last)  W = Sub(column, column)"
            "E = Add(W, row)  F = Unsqueeze(E, last) G = Unsqueeze(W, last)  H = Add(G, F)"
            "I = Concat<axis=-1>(H, F)  Y = GatherND(C, I)",
            "int64[l, l] C, int64[l, l] R, int64[l, l, 1] Z, int64[l, 1] W, int64[l, l] E,"
            "int64[l, l, 1] F, int64[l, 1, 1] G, int64[l, l, 1] H, int64[l, l, 2] I",
        ),
        Affine(0, {-1: 2}),
    ),
    "constant": (
        Graph(
            "g (float[l] X) => (int64[2, 3] Y) { Y = Identity(grid) }",
            {"grid": np.arange(6).reshape(2, 3)},
        ),
        Affine(0, {-2: 3, -1: 1}),
    ),
}
UNKNOWN = {
    "repeated": integers(
        "Z = Concat<axis=1>(row, row)  Y = Add(Z, Z)", "int64[1, m] Z", shape="1, m"
    ),
    "last numbers": integers("Y = Slice(row, last, far, next, next)", shape="1, 1"),
    "one of two": integers(
        "Y = Slice(row, first, far, next, pair0)", shape="1, m", pair0=np.array([2])
    ),
    "another first": integers("Y = Concat<axis=1>(back, row)", shape="1, m", back=np.array([[-2]])),
    "sum of positions": integers("Y = CumSum(P, zero)", shape="l"),
    "sum before": integers(
        "D = Sub(P, P)  O = Add(D, one)  Y = CumSum<exclusive=1>(O, zero)",
        "int64[l] D, int64[l] O",
        shape="l",
    ),
    "product": integers("Y = Mul(row, column)"),
    "some are equal": integers("E = Equal(row, column)  Y = Cast<to=7>(E)", "bool[l, l] E"),
    "squares": Graph(
        "g (float[l] X) => (int64[4] Y) { Y = Identity(grid) }", {"grid": np.arange(4) ** 2}
    ),
    "numbers that overflow": integers(
        "Z = Cast<to=3>(row)  Y = Cast<to=7>(Z)", "int8[1, l] Z", shape="1, l"
    ),
    "a size that differs": integers("Y = Add(row, column)", "int64[m] Q").replace(
        {"int64[1, l] row": "int64[1, m] row"}
    ),
}


def output(graph):
    """The result Y of a graph, as the rules see it."""
    (value,) = graph.model().graph.outputs
    return value


def evaluate(graph, length):
    (array,) = ReferenceEvaluator(graph.proto()).run(None, {"X": np.zeros(length, np.float32)})
    return array


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_known_whatever_the_length(name):
    graph, expected = INTEGERS[name]
    assert affine(output(graph)) == expected
    for length in LENGTHS:
        array = evaluate(graph, length)
        indices = np.indices(array.shape)
        sums = sum(slope * indices[axis] for axis, slope in expected.slopes.items())
        np.testing.assert_array_equal(array, np.broadcast_to(expected.offset + sums, array.shape))


@pytest.mark.parametrize("name", UNKNOWN)
def test_integers_that_are_no_such_function(name):
    assert affine(output(UNKNOWN[name])) is None


def mask(nodes, types="bool[l, l] M, bool[l, l] N", kind="bool"):
    return integers(nodes, types, kind)


CAUSAL = "M = LessOrEqual(row, column)"
MASKS = {
    "not after": (mask("Y = LessOrEqual(row, column)"), np.inf),
    "not before": (mask("Y = GreaterOrEqual(column, row)"), np.inf),
    "before the next": (
        mask("Z = Add(column, one)  Y = Less(row, Z)", "int64[l, 1] Z"),
        np.inf,
    ),
    "window": (
        mask(
            f"{CAUSAL}  W = Sub(column, three)  N = Greater(row, W)  Y = And(M, N)",
            "int64[l, 1] W, bool[l, l] M, bool[l, l] N",
        ),
        3,
    ),
    "with what is always true": (
        mask(f"{CAUSAL}  N = Equal(row, row)  Y = And(N, M)", "bool[l, l] M, bool[1, l] N"),
        np.inf,
    ),
    "for each sequence": (
        integers(
            f"{CAUSAL} T = Concat<axis=0>(three, S, S)  Y = Expand(M, T)",
            "bool[l, l] M",
            "bool",
            "3, l, l",
            three=np.array([3]),
        ),
        np.inf,
    ),
    "numbers": (mask(f"{CAUSAL} Y = Where(M, shown, hidden)", kind="float"), np.inf),
}
NO_MASKS = {
    "the past is hidden": mask("Y = GreaterOrEqual(row, column)"),
    "the present is hidden": mask("Y = Less(row, column)"),
    "the next is seen": mask("Z = Add(column, one)  Y = LessOrEqual(row, Z)", "int64[l, 1] Z"),
    "all is seen": mask("Y = Equal(row, row)"),
    "one of both": mask(f"{CAUSAL}  N = Greater(row, column)  Y = Or(M, N)"),
    "only the window": mask("W = Sub(column, three)  Y = Greater(row, W)", "int64[l, 1] W"),
    "nothing is seen": mask(
        f"{CAUSAL}  W = Add(column, three)  N = Greater(row, W)  Y = And(M, N)",
        "int64[l, 1] W, bool[l, l] M, bool[l, l] N",
    ),
    "twice as fast": mask("Z = Add(row, row)  Y = LessOrEqual(Z, column)", "int64[1, l] Z"),
    "a bias": mask(f"{CAUSAL} Y = Where(M, one, hidden)", kind="float").replace(
        {}, one=np.float64(1)
    ),
    "dimmed": mask(f"{CAUSAL} Y = Where(M, shown, hidden)", kind="float").replace(
        {}, hidden=np.float64(-1)
    ),
    "the future": mask(f"{CAUSAL} Y = Where(M, hidden, shown)", kind="float"),
    "sizes that differ": mask(CAUSAL + "  Y = Not(M)").replace(
        {"int64[1, l] row": "int64[1, m] row", "  Y = Not(M)": "", "M =": "Y ="}
    ),
}


def seen(array):
    return array if array.dtype == np.bool_ else array == 0


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_proved_whatever_the_length(name):
    graph, expected = MASKS[name]
    assert window(output(graph)) == expected
    for length in LENGTHS:
        array = evaluate(graph, length)
        assert (seen(array) == band(length, min(expected, length))).all()


@pytest.mark.parametrize("name", NO_MASKS)
def test_a_mask_that_cannot_be_proved(name):
    assert window(output(NO_MASKS[name])) is None


ATTENTION = "Y = Attention<q_num_heads=2, kv_num_heads=2>(X, X, X, Z)"
WINDOW_NODES = """W = Sub(column, three)  M = LessOrEqual(row, column)  N = Greater(row, W)
    A = And(M, N)
    S2 = Shape<end=1>(X)  T = Concat<axis=0>(S2, next, next, next)  B = Expand(ready, T)
"""
WINDOW_TYPES = """int64[l] P, int64[1, l] row, int64[l, 1] column, int64[l, 1] W, bool[l, l] M,
    bool[l, l] N, bool[l, l] A, bool[n, 1, 1, 1] B, bool[n, 1, l, l] C"""


def attention_in_a_window(nodes, kind="bool", types=WINDOW_TYPES, **constants):
    """Attention of sequences of any length, whose mask Z is computed for each of them."""
    rows = ROWS_AND_COLUMNS.replace("start=0, end=1", "start=1, end=2")
    text = f"""g (real[n, l, 8] X) => (real[n, l, 8] Y) <{types}, {kind}[n, 1, l, l] Z>
        {{ {rows} {WINDOW_NODES} {nodes} {ATTENTION} }}"""
    return Graph(text, KNOWN | {"ready": np.ones((1, 1, 1, 1), bool)} | constants)


@pytest.mark.parametrize("element", ["float", "float16"])
@pytest.mark.parametrize(
    ("nodes", "kind"),
    [("Z = And(A, B)", "bool"), ("C = And(A, B)  Z = Where(C, shown, hidden)", "real")],
)
def test_a_window_is_computed_once_for_all_the_sequences(nodes, kind, element):
    graph = attention_in_a_window(nodes, kind)
    model, count = apply("WindowMask", graph, element)
    assert count == 1
    assert {name: operators(model).count(name) for name in ("And", "Less", "Expand")} == {
        "And": 1,
        "Less": 2,
        "Expand": 0,
    }
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        feeds = {"X": rng.standard_normal((3, length, 8)).astype(np.float16)}
        (expected,) = graph.expected({"X": feeds["X"].astype(np.float64)})
        (got,) = run(model, feeds, element)
        assert np.abs(got - expected).max() <= 16 * unit_roundoff(element) * np.abs(expected).max()


@pytest.mark.parametrize(
    "graph",
    [
        attention_in_a_window("Z = Or(A, B)"),
        attention_in_a_window("Z = And(A, B)", ready=np.zeros((1, 1, 1, 1), bool)),
        attention_in_a_window("Z = And(M, B)"),  # no window: CausalMask does better
        attention_in_a_window("Z = And(A, B)").replace({"Y) <": "Y, bool[n, 1, l, l] Z) <"}),
        attention_in_a_window("Z = And(A, B)  R = Not(Z)").replace(
            {"Y) <": "Y, bool[n, 1, l, l] R) <"}
        ),
        attention_in_a_window(
            "Z = And(A, B)", types=WINDOW_TYPES.replace("1, l] row", "1, m] row")
        ),
    ],
)
def test_a_window_that_must_stay(graph):
    _, count = apply("WindowMask", graph)
    assert count == 0


SAME_NAMES = Graph(
    """g (real[n, 3, l, 4] X) => (real[l, 3, n, 4] Y) <real[n, 3, l, 4] R> {
        B = Shape<end=1>(X)  L = Shape<start=2, end=3>(X)  S = Concat<axis=0>(B, rest, L, size)
        R = Reshape(X, S)  Y = Transpose<perm=[2,1,0,3]>(R)
    }""",
    {"rest": np.array([-1]), "size": np.array([4])},
)


def test_a_shape_may_be_the_same_by_name():
    model, count = apply("SameShape", SAME_NAMES)
    assert (count, operators(model)[-1], "Reshape" in operators(model)) == (1, "Transpose", False)
    feeds = SAME_NAMES.feeds()
    np.testing.assert_allclose(run(model, feeds)[0], SAME_NAMES.expected(feeds)[0], rtol=1e-6)


def test_a_shape_of_another_name_is_not_the_same():
    other = SAME_NAMES.replace({"<real[n, 3, l, 4] R>": "<real[m, 3, l, 4] R>"})
    _, count = apply("SameShape", other)
    assert count == 0


BATCH, LENGTH, WINDOW = 2, 24, 8
DECODER = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
SLIDING = {"sliding_window": WINDOW}
HEADS = {"head_dim": 16}
# Operators that the rules on attention leave at the level default, beside those of static tables.
TABLES = {
    "Shape": 2,
    "Squeeze": 1,
    "Range": 1,
    "Cast": 1,
    "Cos": 1,
    "Sin": 1,
    "Concat": 1,
    "Expand": 2,
}
STATIC = {
    "Llama": ({}, 0),
    "Mistral": (SLIDING, 0),
    "Qwen2": ({}, 0),
    "Qwen3": (HEADS, 4),  # the heads are split while they are normalized
    "Phi3": (SLIDING | {"pad_token_id": 0}, 0),
    "Gemma2": (HEADS | SLIDING, 0),
    "Gemma3Text": (HEADS | SLIDING, 4),
}
CASES = [(name, how) for name in STATIC for how in ("sdpa", "eager")]
DYNAMIC = [("Llama", "eager"), ("Qwen3", "sdpa"), ("Mistral", "sdpa"), ("Phi3", "eager")]
CAPPED = {"Gemma2"}  # on CPU the kernel takes longer to cap than the nodes do
CASES.remove(("Gemma2", "sdpa"))  # transformers refuses: scores are capped


def decoder(name, attention, **more):
    """A small decoder whose vectors are not what they are initialized to."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **(DECODER | STATIC[name][0] | more), attn_implementation=attention
    )
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def identifiers(length=LENGTH, batch=BATCH):
    return torch.randint(100, (batch, length), generator=torch.Generator().manual_seed(1))


def relative_error(expected, got):
    (expected,), (got,) = expected.values(), got.values()
    return float((expected.double() - got.double()).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_decoder_needs_no_split_heads(name, attention):
    model, backend = decoder(name, attention), OrtBackend("default", fallback=False)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        assert relative_error(model(identifiers()), compiled(identifiers())) <= 1e-5
    (graph,) = backend.graphs
    assert graph.operators["RotaryEmbedding"] == 2
    if name in CAPPED:
        assert "Attention" not in graph.operators
        return
    assert graph.operators["Attention"] == 1
    assert graph.operators.get("Reshape", 0) == STATIC[name][1]
    assert not {"Transpose", "Softmax", "Expand"} & set(graph.operators)


@pytest.mark.parametrize(("name", "attention"), DYNAMIC)
def test_a_decoder_of_any_size(name, attention):
    model, backend = decoder(name, attention), OrtBackend("default", fallback=False)
    tokens = identifiers()
    torch._dynamo.mark_dynamic(tokens, 0)
    torch._dynamo.mark_dynamic(tokens, 1)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for inputs in (tokens, identifiers(5, 3), identifiers(40, 4)):
            assert relative_error(model(inputs), compiled(inputs)) <= 1e-5
    (graph,) = backend.graphs
    assert graph.operators["Attention"] == 1
    assert graph.operators["RotaryEmbedding"] == 2
    assert graph.fusions["WindowMask" if "sliding_window" in STATIC[name][0] else "CausalMask"] == 1
    assert not {"Transpose", "Softmax", "GatherND", "CumSum", "Neg"} & set(graph.operators)
    # the shape that splits heads which are normalized
    split = {"Shape": 3, "Concat": 2} if STATIC[name][1] else {}
    assert {op: graph.operators[op] for op in TABLES} == TABLES | split


@pytest.mark.parametrize("name", ["Mistral", "Phi3", "Gemma2", "Gemma3Text"])
def test_a_long_sequence_has_a_window(name):
    sizes = {"max_position_embeddings": 600, "head_dim": 16}
    model = decoder(name, "eager", **sizes, num_key_value_heads=4)
    backend = OrtBackend("default+onnxruntime", fallback=False)
    tokens = identifiers(512, 1)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        assert relative_error(model(tokens), compiled(tokens)) <= 1e-5
    (graph,) = backend.graphs
    (node,) = [n for n in graph.model.graph.node if n.op_type == "GroupQueryAttention"]
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert options["local_window_size"] == WINDOW
