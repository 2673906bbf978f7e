"""Graphs that nearly hold the pattern of a rule: they are left, and the reason is told."""

import numpy as np
import pytest
from backend_graphs import Graph, apply, operators, run
from backend_patterns import PATTERNS, angles, band, causal, half_angles

from ortmeter.backend.rules import RULES

INFINITY = np.inf
UNEQUAL = angles(5, 8)["cos"] * np.linspace(1, 2, 8)
SEEN = np.ones((5, 5), dtype=bool)
PAST = np.tri(5, dtype=bool)
POSITIONS = np.tile(np.arange(16), (2, 1))
LONGER = half_angles(17, 8)
BAND = np.where(band(16, 5), 0.0, -np.inf)


def near(name, reason, pieces=None, **constants):
    """The graph of a pattern with one thing wrong."""
    graph = PATTERNS[name].graph.replace(pieces or {}, **constants)
    return f"{name}: {reason}", (name, graph)


NEAR_MISSES = dict(
    [
        # normalizations
        near("rms", "another axis", last=np.array([1])),
        near("rms", "a cube", two=np.float64(3)),
        near("rms", "epsilon of each row", epsilon=np.linspace(1, 2, 4)[:, None]),
        near("rms", "a scale for each row", {"real[8] G": "real[4, 1] G"}),
        near(
            "rms widened",
            "scaled in 32 bits",
            {"<to=REAL>": "<to=WIDE>", "real[8] G": "float[8] G"},
        ),
        # rotary embedding
        near("rotary", "unequal parts", middle=np.array([3])),
        near("rotary", "one column for all", zero=np.array([3]), end=np.array([4])),
        near("rotary", "cosines that differ", cos=UNEQUAL),
        near("rotary", "one position for all", **angles(1, 8)),
        near(
            "rotary before split",
            "the batch is cut",
            {"real[2, 5, 8] X": "real[10, 1, 8] X"},
            split24=np.array([2, 5, 2, 4]),
        ),
        # attention
        near("eager", "weights of the queries", {"<axis=-1>": "<axis=2>"}),
        near("eager", "a scale for each head", scale=np.linspace(1, 2, 3)[:, None, None]),
        near("eager", "a negative scale", scale=np.float64(-0.3)),
        near("eager", "a mask of keys", {"real[2, 1, 5, 6] A": "real[2, 1, 1, 6] A"}),
        near("eager", "shared keys", {"real[2, 3, 6, 4] K": "real[2, 1, 6, 4] K"}),
        near(
            "eager",
            "heads exchanged",
            {"[0,1,3,2]": "[1,0,3,2]", "[2, 3, 6, 4] K": "[3, 2, 6, 4] K"},
        ),
        near(
            "repeated", "values are not", {"Kr, Vr": "Kr, W", "V) =>": "V, real[2, 6, 7, 4] W) =>"}
        ),
        near(
            "repeated",
            "all the heads, again and again",
            {"[2, 6, 5, 4]": "[2, 9, 5, 4]"},
            axis=np.array([1]),
            pairs=np.array([2, 3, 3, 7, 4]),
            merged=np.array([2, 9, 7, 4]),
        ),
        near(
            "split",
            "the batch is merged",
            {"> (real[2, 5, 16]": "> (real[5, 2, 16]"},
            merged=np.array([5, 2, -1]),
        ),
        near(
            "split",
            "heads are not exchanged back",
            {"T = Transpose<perm=[0,2,1,3]>": "T = Transpose<perm=[0,1,2,3]>"},
        ),
        near(
            "repeated",
            "values by three",
            {"[2, 3, 7, 4] V": "[2, 2, 7, 4] V", "Expand(Vu, pairs)": "Expand(Vu, triples)"},
            triples=np.array([2, 2, 3, 7, 4]),
        ),
        near(
            "mask of numbers",
            "more keys than queries",
            {"real[2, 5, 8] K, real[2, 5, 8] V": "real[2, 6, 8] K, real[2, 6, 8] V"},
            mask=np.where(np.tri(5, 6, dtype=bool), 0.0, -INFINITY),
        ),
        near(
            "linear",
            "no transposition",
            {"perm=[1,0]": "perm=[0,1]", "real[6, 8] W": "real[8, 6] W"},
        ),
        # masks
        near("mask", "all is seen", mask=SEEN),
        near("mask", "nothing is seen", mask=~SEEN),
        near("mask", "one head sees all", mask=np.stack([PAST, PAST, SEEN])),
        near("mask of numbers", "the future is dimmed", mask=causal(5, -1.0)),
        # products and activations
        near("linear", "a vector", {"[2, 4, 8] X": "[8] X", "[2, 4, 6] Y": "[6] Y"}),
        # long causal attention
        near("group query", "positions that start at one", positions=POSITIONS + 1, **LONGER),
        near("group query", "it is not causal", {"is_causal=1": "is_causal=0"}),
        near(
            "group query", "pairs are rotated", {"num_heads=4>(Q": "interleaved=1, num_heads=4>(Q"}
        ),
        near("group query", "keys have other angles", {"(K, cos, sin": "(K, sin, cos"}),
        # tables, heads, scores, windows
        near(
            "half table", "unequal halves", {"X) =>": "X, real[1, 5, 4] Z) =>", "(X, X)": "(X, Z)"}
        ),
        near("half table", "a factor for each angle", factor=np.linspace(1, 2, 8)),
        near(
            "rotary computed", "one position for all", {"l, 4] C, real[1, l": "1, 4] C, real[1, 1"}
        ),
        near(
            "rotary computed", "another axis is new", {"Unsqueeze(Dd, one)": "Unsqueeze(Dd, zero)"}
        ),
        near(
            "rotary of merged heads",
            "features are exchanged",
            {"[0,2,1,3]": "[0,3,1,2]", "[2, 5, 3, 4] X": "[2, 5, 4, 3] X"},
        ),
        near(
            "eager widened",
            "values of another type",
            {
                "real[2, 3, 6, 4] V": "double[2, 3, 6, 4] V",
                "<to=REAL>": "<to=11>",
                "real[2, 3, 5, 4] Y": "double[2, 3, 5, 4] Y",
            },
        ),
        near("group query in a window", "causal as well", {"scale=0.3": "is_causal=1, scale=0.3"}),
        near(
            "there and back",
            "another shape",
            {"[n, 4, 8] Y": "[n, 8, 4] Y"},
            back=np.array([-1, 8, 4]),
        ),
    ]
)
# What cannot be known, what the reference does not run, what a kernel refuses, what is slower.
OTHERS = dict(
    [
        near("rms", "unknown sizes", {"real[2, 4, 8] X": "real[2, 4, n] X"}),
        near(
            "group query",
            "heads of eight",
            {"heads=4": "heads=8", "heads=2": "heads=4"},
            **{name: table[:, :4] for name, table in LONGER.items()},
        ),
    ]
)


# What a user reads, for a near miss of each rule.
REASONS = {
    "rms: epsilon of each row": "RMSNorm at Y: epsilon is not one constant number",
    "half table: a factor for each angle": "HalfTable at Y: the factor is not one number",
    "rotary: unequal parts": "Rotary at Y: the slices are not the halves of a head",
    "eager: a negative scale": "EagerAttention at Y: the scale is -0.3: the kernel takes its root",
    "rotary before split: the batch is cut": "RotaryBeforeSplit at Y: the split into heads cuts",
    "repeated: values are not": "RepeatedHeads at Y: keys and values are not repeated in the same",
    "split: the batch is merged": "AttentionBeforeSplit at Y: more than the heads is merged",
    "mask: all is seen": "CausalMask at Y: the mask is not known to hide exactly the future",
    "linear: a vector": "TransposedWeight at Y: a vector is multiplied: the kernel takes matrices",
    "group query: heads of eight": "GroupQuery at Y: the size of a head is not a multiple of 16",
    "eager widened: values of another type": "for double on cpu at opset 23: float, float16",
}


@pytest.mark.parametrize("case", NEAR_MISSES | OTHERS)
def test_a_rule_leaves_what_it_cannot_stand_for(case):
    name, graph = (NEAR_MISSES | OTHERS)[case]
    pattern = PATTERNS[name]
    element, refusals = pattern.elements[0], []
    model = graph.model(element)
    assert RULES[pattern.rule].apply(model, pattern.provider, refusals) == 0
    assert operators(model) == operators(graph.model(element))
    assert all(refusal.rule == pattern.rule and refusal.reason for refusal in refusals)
    assert REASONS.get(case, "") in "".join(map(str, refusals))
    # it is a model; the reference multiplies no two types
    if case in NEAR_MISSES and "double[" not in graph.text:
        assert all(array.size for array in graph.expected(graph.feeds()))


def test_every_rule_tells_why_it_does_not_apply():
    found = {PATTERNS[(NEAR_MISSES | OTHERS)[case][0]].rule for case in REASONS}
    assert found == set(RULES) - {"Flattening"}


SAME_NAMES = Graph(
    """g (real[n, 3, l, 4] X) => (real[l, 3, n, 4] Y) <real[n, 3, l, 4] R> {
        B = Shape<end=1>(X)  L = Shape<start=2, end=3>(X)  S = Concat<axis=0>(B, rest, L, size)
        R = Reshape(X, S)  Y = Transpose<perm=[2,1,0,3]>(R)
    }""",
    {"rest": np.array([-1]), "size": np.array([4])},
)


def test_a_shape_may_be_the_same_by_name():
    model, count = apply("Flattening", SAME_NAMES)
    assert (count, operators(model)[-1], "Reshape" in operators(model)) == (1, "Transpose", False)
    feeds = SAME_NAMES.feeds()
    np.testing.assert_allclose(run(model, feeds)[0], SAME_NAMES.expected(feeds)[0], rtol=1e-6)
    other = SAME_NAMES.replace({"<real[n, 3, l, 4] R>": "<real[m, 3, l, 4] R>"})
    assert apply("Flattening", other)[1] == 0
