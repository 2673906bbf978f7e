"""Graphs that nearly hold the pattern of a rule on attention."""

import numpy as np
import pytest
from backend_attention_patterns import band
from backend_graphs import Graph, apply, operators, run
from backend_patterns import PATTERNS

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
    near("capped group query", "a wide window", mask=np.where(band(512, 65), 0.0, -np.inf)),
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
