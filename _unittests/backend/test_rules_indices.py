"""Integers and masks that are proved, whatever the length, and those that cannot be."""

import numpy as np
import pytest
from backend_attention_patterns import band
from backend_graphs import Graph, apply, operators, run
from onnx.reference import ReferenceEvaluator

from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.indices import Affine, affine, window
from ortmeter.dtypes import unit_roundoff

LENGTHS = (2, 3, 7, 20)
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
            "g (float[l] X) => (int64[2, 3] Y) { Y = Cast<to=7>(grid) }",
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
        "g (float[l] X) => (int64[4] Y) { Y = Cast<to=7>(grid) }", {"grid": np.arange(4) ** 2}
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
    refusals = []
    assert RULES["WindowMask"].apply(graph.model(), "cpu", refusals) == 0
    assert all("mask" in refusal.reason for refusal in refusals)


def test_a_mask_that_is_no_window_is_told():
    refusals = []
    RULES["WindowMask"].apply(attention_in_a_window("Z = And(M, B)").model(), "cpu", refusals)
    assert [str(each) for each in refusals] == [
        "WindowMask at Z: the mask shows all of the past: it is not a window"
    ]
