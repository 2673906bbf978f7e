"""If, Loop, Scan and SequenceMap beside onnx.reference and NumPy."""

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import ModelError
from ortmeter.evaluator import Evaluator

HEAD = '<ir_version: 10, opset_import: ["": 18]>'
X = np.float32([1, -2, 3])

MODELS = {
    # a branch without nodes, outer names at two levels, an initializer in a branch
    "nested if": (
        f"""{HEAD} g (float[n] X, bool a, bool b) => (float[n] Y) {{
        P = Abs(X)
        Y = If (a) <then_branch = t () => (float[n] u) {{
                Q = Neg(X)
                u = If (b) <then_branch = tt () => (float[n] v) <float[1] k = {{10}}>
                    {{ w = Mul(P, k) v = Add(w, Q) }},
                    else_branch = te () => (float[n] s) {{ s = Sub(P, Q) }}>
            }}, else_branch = e () => (float[n] P) {{ }}> }}""",
        [
            {"X": X, "a": np.array(a), "b": np.array(b)}
            for a in (True, False)
            for b in (True, False)
        ],
    ),
    "loop with a limit": (
        f"""{HEAD} g (float[n] X, int64 N) => (float[n] Y, float[m, n] All) {{
        k = Constant <value_float = 2.0> ()
        c = Constant <value_int = 1> ()
        go = Cast <to = 9> (c)
        Y, All = Loop (N, go, X) <body = b (int64 i, bool d, float[n] x)
            => (bool e, float[n] z, float[n] out) {{
            e = Identity(d) f = Cast <to = 1> (i) y = Mul(x, k) z = Add(y, f)
            out = Neg(z) }}> }}""",
        [{"X": X, "N": np.array(n)} for n in (1, 4)],
    ),
    "loop with a condition": (
        f"""{HEAD} g (float X) => (float Y, int64[m] Steps) {{
        limit = Constant <value_float = 100.0> ()
        start = Less (X, limit)
        N = Constant <value_int = 50> ()
        Y, Steps = Loop (N, start, X) <body = b (int64 i, bool d, float x)
            => (bool e, float z, int64 out) {{
            z = Add(x, x) e = Less(z, limit) out = Identity(i) }}> }}""",
        [{"X": np.float32(x)} for x in (1.5, 60.0)],
    ),
    "scan": (
        f"""{HEAD} g (float[n] S, float[t, n] X) => (float[n] Y, float[t, n] All) {{
        k = Constant <value_float = 0.5> ()
        Y, All = Scan (S, X) <num_scan_inputs = 1, body = b (float[n] s, float[n] x)
            => (float[n] z, float[n] out) {{
            y = Mul(s, k) z = Add(y, x) out = Identity(z) }}> }}""",
        [{"S": X, "X": np.arange(12, dtype=np.float32).reshape(4, 3)}],
    ),
}
CASES = [(name, text, feeds) for name, (text, many) in MODELS.items() for feeds in many]
SOURCES = [("torch",), ("ort",), ("reference",)]


@pytest.mark.parametrize("sources", SOURCES, ids=" ".join)
@pytest.mark.parametrize(("name", "text", "feeds"), CASES)
def test_bodies_give_what_the_reference_gives(name, text, feeds, sources):
    expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, feeds)
    got = Evaluator(text, sources=sources).run(None, feeds)
    for left, right in zip(expected, got, strict=True):
        assert right.dtype == left.dtype
        # onnx.reference stacks scalars into columns
        np.testing.assert_allclose(right, left.reshape(right.shape), rtol=1e-6)


LOOP = """ g (float[n] X{inputs}) => (float[n] Y, float[m, n] All) {{
    Y, All = Loop ({given}, X) <body = b (int64 i, bool d, float[n] x)
    => (bool e, float[n] z, float[n] out) {{ {going} z = Add(x, x) out = Neg(z) }}> }}"""
FOREVER = "t = Constant <value_int = 1> () e = Cast <to = 9> (t)"
TWICE = "one = Constant <value_int = 1> () e = Less(i, one)"


@pytest.mark.parametrize(
    ("inputs", "given", "going", "feeds", "count"),
    [
        (", int64 N", "N, ", FOREVER, {"N": np.array(3)}, 3),
        (", int64 N", "N, ", TWICE, {"N": np.array(9)}, 2),
        (", bool C", ", C", TWICE, {"C": np.array(True)}, 2),
        (", bool C", ", C", TWICE, {"C": np.array(False)}, 0),
        (", int64 N, bool C", "N, C", FOREVER, {"N": np.array(4), "C": np.array(False)}, 0),
        (", int64 N", "N, ", FOREVER, {"N": np.array(0)}, 0),
        ("", ", ", TWICE, {}, 2),
    ],
)
def test_a_loop_stops_when_it_should(inputs, given, going, feeds, count):
    text = HEAD + LOOP.format(inputs=inputs, given=given, going=going)
    y, rows = Evaluator(text).run(None, {"X": X, **feeds})
    np.testing.assert_array_equal(y, X * 2**count)
    expected = np.stack([-X * 2 ** (i + 1) for i in range(count)]) if count else None
    assert rows.dtype == np.float32
    if count:
        np.testing.assert_array_equal(rows, expected)
    else:
        assert rows.shape[0] == 0


def test_a_scan_has_axes_and_directions():
    text = f"""{HEAD} g (float[t, n] A, float[n, t] B) => (float[n, t] Up, float[t, n] Down) {{
    Up, Down = Scan (A, B) <num_scan_inputs = 2, scan_input_axes = [0, -1],
        scan_input_directions = [1, 0], scan_output_axes = [-1, 0],
        scan_output_directions = [0, 1],
        body = b (float[n] a, float[n] b) => (float[n] u, float[n] d)
        {{ u = Sub(a, b) d = Add(a, b) }}> }}"""
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 3), np.float32), rng.random((3, 4), np.float32)
    up, down = Evaluator(text).run(None, {"A": a, "B": b})
    np.testing.assert_array_equal(up, (a[::-1] - b.T).T)
    np.testing.assert_array_equal(down, (a[::-1] + b.T)[::-1])


def test_an_empty_scan_has_the_declared_type():
    text = f"""{HEAD} g (float16[t, 2] A) => (float16[2, t] Y) {{
    Y = Scan (A) <num_scan_inputs = 1, scan_output_axes = [1],
        body = b (float16[2] a) => (float16[2] y) {{ y = Neg(a) }}> }}"""
    (got,) = Evaluator(text).run(None, {"A": np.zeros((0, 2), np.float16)})
    assert (got.dtype, got.shape) == (np.float16, (2, 0))


def test_a_sequence_is_mapped_with_outer_names():
    text = f"""{HEAD} g (seq(float[n]) S, float K) => (seq(float[n]) T) {{
    T = SequenceMap (S) <body = b (float[n] s) => (float[n] t) {{ t = Mul(s, K) }}> }}"""
    values = [X, X[:2], X[:0]]
    (got,) = Evaluator(text).run(None, {"S": values, "K": np.float32(3)})
    assert len(got) == len(values)
    for value, mapped in zip(values, got, strict=True):
        np.testing.assert_array_equal(mapped, value * 3)
    (got,) = Evaluator(text).run(
        None, {"S": [torch.ones(2), torch.zeros(1)], "K": torch.tensor(3.0)}
    )
    assert [value.tolist() for value in got] == [[3, 3], [0]]


def test_kernels_are_replaced_in_bodies():
    text, feeds = MODELS["nested if"]
    seen = []

    def negate(x):
        seen.append(x)
        return -x

    evaluator = Evaluator(text, {"Neg": negate, "node:w": lambda p, k: p * k * 100})
    (got,) = evaluator.run(None, feeds[0])
    np.testing.assert_array_equal(got, np.abs(X) * 1000 - X)
    np.testing.assert_array_equal(seen[0], X)
    frame = evaluator.assignment.set_index("node")
    assert frame.loc["w", ["graph", "source"]].tolist() == ["u/then_branch", "callable"]
    assert frame.loc["Q", ["graph", "source"]].tolist() == ["Y/then_branch", "callable"]
    assert frame.loc["Y", "source"] == "evaluator"


def test_the_callback_sees_the_nodes_of_bodies():
    text, feeds = MODELS["loop with a limit"]
    seen = []
    evaluator = Evaluator(text, callback=lambda node, i, o: seen.append((node.op_type, len(i))))
    evaluator.run(None, feeds[1])
    body = [("Identity", 1), ("Cast", 1), ("Mul", 2), ("Add", 2), ("Neg", 1)]
    assert seen == [("Cast", 1), *body * 4, ("Loop", 3)]


def test_a_name_that_nobody_defines_is_an_error():
    text, _ = MODELS["scan"]
    with pytest.raises(ModelError, match=r"node 'Y' \(Scan\) needs 'q', which nothing before it"):
        Evaluator(text.replace("Mul(s, k)", "Mul(s, q)"))


def test_a_failure_in_a_body_names_the_node_and_its_graph():
    text, feeds = MODELS["scan"]
    with pytest.raises(ModelError, match=r"kernel of node 'z' \(Add\) of Y/body fails.*planted"):
        Evaluator(text, {"Add": fail}).run(None, feeds[0])


def fail(*_):
    raise ValueError("planted")
