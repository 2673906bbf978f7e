"""Tests of ortmeter.attribution.entering: ONNX Runtime runs the model as it is, and entered."""

import numpy as np
import onnx
import pytest

import ortmeter
from ortmeter.attribution import align, explain_session
from ortmeter.attribution.entering import enter_bodies
from ortmeter.runtime.iobinding import run_session

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
NESTED = f"""{HEADER} g (bool C, float[4] X) => (float[4] Y, float[4] W) {{
    [abs] A = Abs(X)
    [outer] Z, W = If(C) <
        then_branch = t () => (float[4] T, float[4] S) <float[1] k = {{0.5}}> {{
            [exp] E = Exp(A)  [many] M = ReduceSum<keepdims = 0>(E)  [large] L = Greater(M, A1)
            [inner] T = If(L) <
                then_branch = u () => (float[4] U) {{ [log] E2 = Log(E) [mul] U = Mul(E2, k) }},
                else_branch = v () => (float[4] V) {{ V = Identity(E) }}>
            [sqrt] S = Sqrt(A) }},
        else_branch = e () => (float[4] Q, float[4] R) {{ Q = Neg(A) R = Identity(X) }}>
    [tanh] Y = Tanh(Z) }}""".replace("A1", "A0").replace(
    "[abs]", "A0 = Constant<value_float = 1.0>() [abs]"
)
LOOP = f"""{HEADER} g (int64 N, float[2] X) => (float[2] Y, float[k, 2] rows) <bool go = {{1}}> {{
    [loop] Y, rows = Loop(N, go, X) <body = b (int64 i, bool on, float[2] a)
        => (bool stay, float[2] next, float[2] row) <float[1] half = {{0.5}}> {{
        [cast] f = Cast<to = 1>(i)  [add] s = Add(a, f)  [mul] next = Mul(s, half)
        [sin] row = Sin(next)  [sum] t = ReduceSum<keepdims = 0>(next)
        [limit] most = Constant<value_float = 3.0>()  [less] stay = Less(t, most) }}> }}"""


def ran(model, feeds):
    return run_session(ortmeter.make_session(model, provider="cpu"), feeds)


def check(text, feeds):
    """Enter the model, and check that it gives what the model gives; return the new nodes."""
    proto = onnx.parser.parse_model(text)
    entered = enter_bodies(proto, feeds, provider="cpu")
    onnx.checker.check_model(entered, full_check=True)
    expected, got = ran(proto, feeds), ran(entered, feeds)
    assert list(expected) == list(got)
    for name, value in expected.items():
        np.testing.assert_array_equal(value, got[name])
    return [node.name or node.output[0] for node in entered.graph.node]


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken(condition):
    nodes = check(NESTED, {"C": np.array(condition), "X": np.float32([1, -2, 3, 0.5])})
    taken = {"exp", "log", "mul", "sqrt"}
    assert taken.intersection(nodes) == (taken if condition else set())
    assert not {"outer", "inner"}.intersection(nodes)


@pytest.mark.parametrize(("count", "ran"), [(1, 1), (3, 3), (100, 4)])
def test_the_iterations_of_a_loop(count, ran):
    nodes = check(LOOP, {"N": np.array(count), "X": np.float32([0.1, -1])})
    assert [n for n in nodes if n.startswith("add")] == [
        f"add of iteration {i}" for i in range(ran)
    ]


def test_what_is_not_entered_stays():
    text = f"""{HEADER} g (int64 N, float[2] X, float[n, 2] A) => (float[2] Y, float[2] Z) {{
        [scan] Y = Scan(X, A) <num_scan_inputs = 1, body = b (float[2] s, float[2] a)
            => (float[2] t) {{ t = Add(s, a) }}>
        [long] Z = Loop(N, , X) <body = b (int64 i, bool on, float[2] s)
            => (bool stay, float[2] t) {{ stay = Identity(on) t = Sin(s) }}> }}"""
    feeds = {"N": np.array(2501), "X": np.float32([1, 2]), "A": np.ones((5, 2), np.float32)}
    assert check(text, feeds) == ["scan", "long"]
    assert check(LOOP, {"N": np.array(0), "X": np.float32([0.1, -1])}) == ["loop"]


def test_a_loop_in_a_branch_and_names_in_both():
    text = f"""{HEADER} g (bool C, float[2] X) => (float[2] Y) <int64 n = {{2}}, bool go = {{1}}> {{
        [if] Z = If(C) <
            then_branch = t () => (float[2] L) {{ B = Abs(X) L = Loop(n, go, B) <body =
                b (int64 i, bool on, float[2] a) => (bool stay, float[2] B2)
                    {{ stay = Identity(on) B2 = Mul(a, X) }}> }},
            else_branch = e () => (float[2] B) {{ B = Neg(X) }}>
        [again] B = If(C) <then_branch = t () => (float[2] L) {{ L = Neg(Z) }},
                           else_branch = e () => (float[2] L) {{ L = Identity(Z) }}>
        Y = Add(B, Z) }}"""
    for condition in (True, False):
        nodes = check(text, {"C": np.array(condition), "X": np.float32([2, -3])})
        assert not {"if", "again"}.intersection(nodes)
        assert ("B2 of iteration 1" in nodes) == condition


def test_the_node_of_a_branch_whose_error_is_the_largest():
    x = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    text = f"""{HEADER} g (bool C, float[8, 512] X) => (float[8, 8] Y) {{
        [same] A = Identity(X)
        [if] Y = If(C) <then_branch = t () => (float[8, 8] Z) {{
            [turn] T = Transpose(A) [product] Z = MatMul(A, T) }},
            else_branch = e () => (float[8, 8] Z2) {{ [k] Z2 = Constant<value_float = 1.0>()
            }}> }}"""
    feeds = {"C": np.array(True), "X": x}
    found = explain_session(text, feeds, provider="cpu", sources=("reference",))
    first = found.ranking()[0]
    assert (first.name, first.op) == ("product", "MatMul")
    exact = x.astype(np.float64) @ x.T.astype(np.float64)
    error = np.abs(ran(text, feeds)["Y"] - exact).max()
    assert first.effect.abs == pytest.approx(error, rel=1e-6)


def test_two_models_part_in_a_branch():
    text = f"""{HEADER} g (bool C, float[4] X) => (float[4] Y) {{
        [if] Y = If(C) <then_branch = t () => (float[4] Z) {{ [a] T = Abs(X) [b] Z = Exp(T) }},
            else_branch = e () => (float[4] Z2) {{ [c] Z2 = Neg(X) }}> }}"""
    feeds = {"C": np.array(True), "X": np.float32([1, -2, 3, 4])}
    found = align(text, text.replace("Abs", "Neg"), feeds, provider="cpu")
    assert found.first.expected.node == "a"
