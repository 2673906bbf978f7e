import logging

import numpy as np
import onnx_ir as ir
import pytest
from backend_graphs import Graph, operators, relative_errors
from backend_patterns import ATTENTION_SPLIT, LINEAR, PATTERNS, angles, split, splits

from ortmeter.backend.levels import LEVELS, Level, optimize_model, parse_level
from ortmeter.backend.rules import DEFAULT, RULES
from ortmeter.errors import InvalidArgumentError

STANDARD = {"", "ai.onnx"}
ORT = "default+onnxruntime"


def fuse(model, level, provider="cpu"):
    """Optimise a model; count the rules."""
    return optimize_model(model, parse_level(level), provider=provider)[0]


@pytest.mark.parametrize(
    ("text", "name", "without"),
    [
        ("none", "none", set()),
        ("default", "default", set()),
        ("default+onnxruntime", "default+onnxruntime", set()),
        (
            "default+onnxruntime-GroupQuery-CausalMask",
            "default+onnxruntime",
            {"CausalMask", "GroupQuery"},
        ),
        (
            "default-CausalMask+onnxruntime-GroupQuery",
            "default+onnxruntime",
            {"CausalMask", "GroupQuery"},
        ),
    ],
)
def test_a_level_is_read(text, name, without):
    level = parse_level(text)
    assert level == Level(name, frozenset(without))
    assert {rule.name for rule in level.rules}.isdisjoint(without)
    assert parse_level(str(level)) == level


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Level '' is not known. Accepted: none, default, default\\+onnxruntime"),
        ("Default", "'Default' is not known"),
        ("default+experimental", "'default\\+experimental' is not known"),
        ("default-", "disables , which 'default' does not have"),
        (
            "default-Mask",
            "disables Mask, which 'default' does not have. Its rules: Flattening, RMSNorm, ",
        ),
        ("default-GroupQuery", "disables GroupQuery, which 'default' does not have"),
        ("none-Rotary", "disables Rotary, which 'none' does not have. Its rules: none"),
    ],
)
def test_an_unknown_level_is_an_error(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parse_level(text)


def test_a_level_has_the_rules_of_those_below():
    rules = {name: [rule.name for rule in Level(name).rules] for name in LEVELS}
    assert rules["none"] == []
    assert rules["default+onnxruntime"] == list(RULES)
    assert rules["default"] == rules["default+onnxruntime"][: len(rules["default"])]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_default_level_writes_operators_of_the_standard_only(name):
    model = PATTERNS[name].graph.model()
    counts = fuse(model, "default")
    assert {node.domain for node in model.graph} <= STANDARD
    assert set(model.opset_imports) <= STANDARD
    assert set(counts) <= {rule.name for rule in DEFAULT}


# One block of a Llama: what each rule writes feeds the next ones.
BLOCK = Graph(
    f"""g (real[2, 16, 32] X, real[32, 32] Wq, real[32, 32] Wk, real[32, 32] Wv, real[32] G)
    => (real[2, 16, 32] Y) {{
        P = Pow(X, two)  M = ReduceMean<keepdims=1>(P, last)  E = Add(M, epsilon)
        S = Sqrt(E)  R = Reciprocal(S)  N = Mul(X, R)  Z = Mul(N, G)
        Tq = Transpose<perm=[1,0]>(Wq)  Q = MatMul(Z, Tq)
        Tk = Transpose<perm=[1,0]>(Wk)  K = MatMul(Z, Tk)
        Tv = Transpose<perm=[1,0]>(Wv)  V = MatMul(Z, Tv)
        {split("Q", 2, 16)} {split("K", 2, 16)} {split("V", 2, 16)}
        Fq = Slice(Qh, zero, middle, axis, one)  Sq = Slice(Qh, middle, end, axis, one)
        Nq = Neg(Sq)  Rq = Concat<axis=-1>(Nq, Fq)
        Aq = Mul(Qh, cos)  Bq = Mul(Rq, sin)  Eq = Add(Aq, Bq)
        Fk = Slice(Kh, zero, middle, axis, one)  Sk = Slice(Kh, middle, end, axis, one)
        Nk = Neg(Sk)  Rk = Concat<axis=-1>(Nk, Fk)
        Ak = Mul(Kh, cos)  Bk = Mul(Rk, sin)  Ek = Add(Ak, Bk)
        T = Transpose<perm=[0,1,3,2]>(Ek)  D = MatMul(Eq, T)  C = Mul(D, scale)
        A = Add(C, mask)  W = Softmax<axis=-1>(A)  H = MatMul(W, Vh)
        L = Transpose<perm=[0,2,1,3]>(H)  O = Reshape(L, merged)
        U = Add(X, O)
        P2 = Pow(U, two)  M2 = ReduceMean<keepdims=1>(P2, last)  E2 = Add(M2, epsilon)
        S2 = Sqrt(E2)  R2 = Reciprocal(S2)  N2 = Mul(U, R2)  Z2 = Mul(N2, G)
        I = Sigmoid(Z2)  J = Mul(Z2, I)  Y = Add(U, J)
    }}""",
    {
        **angles(16, 16),
        **splits(2, 16),
        "two": np.float64(2),
        "last": np.array([-1]),
        "epsilon": np.float64(1e-3),
        "zero": np.array([0]),
        "middle": np.array([8]),
        "end": np.array([2**63 - 1]),
        "axis": np.array([3]),
        "one": np.array([1]),
        "scale": np.float64(0.25),
        "mask": np.where(np.tri(16, dtype=bool), 0.0, np.finfo(np.float32).min),
        "merged": np.array([0, 0, -1]),
    },
)
DEFAULT_COUNTS = {
    "RMSNorm": 2,
    "Rotary": 2,
    "RotaryBeforeSplit": 2,
    "EagerAttention": 1,
    "AttentionBeforeSplit": 1,
    "CausalMask": 1,
}
ORT_COUNTS = {"TransposedWeight": 3}


@pytest.mark.parametrize(
    ("level", "counts", "nodes"),
    [
        ("none", {}, 52),
        ("default", DEFAULT_COUNTS, 15),
        ("default+onnxruntime", DEFAULT_COUNTS | ORT_COUNTS, 12),
    ],
)
def test_each_rule_feeds_those_that_follow(level, counts, nodes):
    model = BLOCK.model()
    assert fuse(model, level) == counts
    assert len(operators(model)) == nodes
    assert max(relative_errors(BLOCK, model)) < 1e-5
    rotary = [node.inputs[1:] for node in model.graph if node.op_type == "RotaryEmbedding"]
    assert not counts or rotary[0] == rotary[1]


def test_a_rule_that_is_left_out_is_not_applied():
    model = BLOCK.model()
    counts = fuse(model, "default+onnxruntime-CausalMask")
    assert counts | {"CausalMask": 1} == DEFAULT_COUNTS | ORT_COUNTS
    assert "CausalMask" not in counts


def test_the_provider_decides_of_the_kernels():
    model = BLOCK.model()
    assert fuse(model, "default+onnxruntime", "cuda:1") == DEFAULT_COUNTS | ORT_COUNTS
    half = fuse(BLOCK.model("float16"), "default+onnxruntime", "cuda")
    assert half["GroupQuery"] == 1


def test_an_unknown_provider_is_an_error():
    with pytest.raises(InvalidArgumentError, match="provider='tpu' is not known"):
        fuse(LINEAR.model(), "default", provider="tpu")


def test_inputs_and_outputs_keep_their_places():
    model = ATTENTION_SPLIT.model()
    inputs, outputs = list(model.graph.inputs), [o.name for o in model.graph.outputs]
    fuse(model, "default+onnxruntime")
    assert all(a is b for a, b in zip(model.graph.inputs, inputs, strict=True))
    assert [o.name for o in model.graph.outputs] == outputs


def test_subgraphs_are_rewritten():
    graph = Graph(
        """g (real[2, 2] X, bool C) => (real[2, 2] Y) {
            Y = If(C) <then_branch = yes () => (real[2, 2] A) {
                          T = Transpose<perm=[1,0]>(X)  A = MatMul(X, T) },
                      else_branch = no () => (real[2, 2] B) { B = Neg(X) }>
        }"""
    )
    model = graph.model()
    assert fuse(model, "default+onnxruntime") == {"TransposedWeight": 1}
    (node,) = model.graph
    assert operators(ir.Model(node.attributes["then_branch"].as_graph(), ir_version=10)) == [
        "FusedMatMul"
    ]


def test_folding_says_nothing(caplog, recwarn):
    # the logarithm of zero, as in the buckets of T5, and a constant that is an output
    graph = Graph(
        "g (real[2] X) => (real[2] Y, real[2] Z) { L = Log(zero)  Y = Max(X, L)  Z = Exp(L) }",
        {"zero": np.zeros(2)},
    )
    with caplog.at_level(logging.WARNING):
        fuse(graph.model(), "default")
    assert not caplog.records
    assert not recwarn.list
