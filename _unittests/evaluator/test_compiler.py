"""Local functions, the bodies of schemas, the operators that execute graphs."""

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator import Evaluator
from ortmeter.operators import registry

X = np.float32([[1, -2, 3], [4, 5, -6]])
FUNCTIONS = """<ir_version: 10, opset_import: ["": 18, "local": 1]>
g (float[m, n] X) => (float[m, n] Y, float[m] Z) {
    [call] Y = local.Scaled <factor = 3.0> (X)
    [default] D = local.Scaled (Y)
    Z = local.Total <which = 1> (D)
}
<domain: "local", opset_import: ["": 18]>
Times <factor> (x) => (y) {
    [k] k = Constant <value_float : float = @factor> ()
    [times] y = Mul(x, k)
}
<domain: "local", opset_import: ["": 18, "local": 1]>
Scaled <factor: float = 2.0> (x) => (y) {
    [inner] a = local.Times <factor : float = @factor> (x)
    [soft] y = LeakyRelu <alpha : float = @factor> (a)
}
<domain: "local", opset_import: ["": 12]>
Total <which> (x) => (y) {
    flag = Constant <value_int : int = @which> ()
    yes = Cast <to = 9> (flag)
    y = If (yes) <then_branch = t () => (float[m] u) {
            u = ReduceSum <axes = [1], keepdims = 0> (x) },
        else_branch = e () => (float[m] v) { v = ReduceMax <axes = [1], keepdims = 0> (x) }>
}
"""
SOURCES = [("torch",), ("ort",), ("torch", "ort", "reference")]


def scaled(x, factor):
    product = x * np.float32(factor)
    return np.where(product < 0, product * np.float32(factor), product)


@pytest.mark.parametrize("sources", SOURCES, ids=" ".join)
def test_functions_take_attributes_and_defaults_and_their_own_opset(sources):
    evaluator = Evaluator(FUNCTIONS, sources=sources)
    y, z = evaluator.run(None, {"X": X})
    np.testing.assert_allclose(y, scaled(X, 3), rtol=1e-6)
    np.testing.assert_allclose(z, scaled(scaled(X, 3), 2).sum(1), rtol=1e-6)


def test_kernels_are_replaced_in_functions():
    kernels = {"node:times": lambda x, k: x * k * 10, "LeakyRelu": lambda x, alpha: x + alpha}
    evaluator = Evaluator(FUNCTIONS, kernels)
    (got,) = evaluator.run(["Y"], {"X": X})
    np.testing.assert_allclose(got, X * 30 + 3, rtol=1e-6)
    frame = evaluator.assignment
    chosen = frame[frame["source"] == "callable"]
    assert set(chosen["graph"]) == {"local.Times", "local.Scaled"}


def test_a_function_is_replaced_as_a_whole():
    kernels = {("local", "Scaled"): lambda x, factor=2.0: x - factor}
    (got,) = Evaluator(FUNCTIONS, kernels).run(["Y"], {"X": X})
    np.testing.assert_array_equal(got, X - 3)
    with pytest.raises(InvalidArgumentError, match=r"local\.Scaled.*executes other nodes.*'ort'"):
        Evaluator(FUNCTIONS, {("local", "Scaled"): "ort"})


def test_a_function_has_absent_inputs_and_unused_outputs():
    text = """<ir_version: 10, opset_import: ["": 18, "local": 1]>
    g (float[m, n] X) => (float[m, n] Y) { , Y = local.Clipped(X, , X) }
    <domain: "local", opset_import: ["": 18]>
    Clipped (x, low, high, more) => (a, b) { a = Unknown(x) b = Clip(x, low, more) }"""
    (got,) = Evaluator(text).run(None, {"X": X})
    np.testing.assert_array_equal(got, X)


def test_a_function_that_calls_itself_is_refused():
    text = FUNCTIONS.replace("y = Mul(x, k)", "y = local.Scaled(x)").replace(
        'opset_import: ["": 18]>\nTimes', 'opset_import: ["": 18, "local": 1]>\nTimes'
    )
    with pytest.raises(ModelError, match="'Scaled' of domain 'local' calls itself"):
        Evaluator(text)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("value = float[2] {1, 2}", np.float32([1, 2])),
        ("value_float = 1.5", np.float32(1.5)),
        ("value_floats = [1.5, 2.0]", np.float32([1.5, 2])),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [3, 4]", np.int64([3, 4])),
        ('value_string = "a"', np.array("a", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
    ],
)
def test_constants_have_every_form(form, expected):
    text = f"""<ir_version: 10, opset_import: ["": 18]> g () => (float Y)
    {{ Y = Constant <{form}> () }}"""
    (got,) = Evaluator(text).run(None, {})
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(ModelError, match="has the values none. Accepted: exactly one of value"):
        Evaluator(text.replace(f"<{form}>", ""))


def test_a_schema_body_runs_when_no_kernel_exists(monkeypatch):
    find = registry.find_kernel
    monkeypatch.setattr(
        registry,
        "find_kernel",
        lambda domain, op, opset: None if op in {"Softmax", "Celu"} else find(domain, op, opset),
    )
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[m, n] X) => (float[m, n] Z)
    { Y = Softmax <axis = 0> (X) Z = Celu <alpha = 0.5> (Y) }"""
    evaluator = Evaluator(text, sources=("torch",))
    (expected,) = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {"X": X})
    np.testing.assert_allclose(evaluator.run(None, {"X": X})[0], expected, rtol=1e-6)
    assert evaluator.assignment["source"].tolist() == ["schema", "schema"]


def test_a_body_that_needs_shapes_is_compiled_for_each():
    text = """<ir_version: 13, opset_import: ["": 27]>
    g (float[b, c, t] X, float[c, 1, k] W) => (float[b, c, t] Y)
    { Y = CausalConvWithState(X, W) }"""
    evaluator = Evaluator(text, sources=("torch",))
    rng = np.random.default_rng(0)
    for length in (5, 8):
        x, w = rng.random((2, 4, length), np.float32), rng.random((4, 1, 3), np.float32)
        (got,) = evaluator.run(None, {"X": x, "W": w})
        padded = torch.nn.functional.pad(torch.from_numpy(x).double(), (2, 0))
        expected = torch.nn.functional.conv1d(padded, torch.from_numpy(w).double(), groups=4)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)


HEAD = '<ir_version: 10, opset_import: ["": 18]>'
VECTOR = np.float32([1, -2, 3])

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
            {"X": VECTOR, "a": np.array(a), "b": np.array(b)}
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
        [{"X": VECTOR, "N": np.array(n)} for n in (1, 4)],
    ),
    "scan": (
        f"""{HEAD} g (float[n] S, float[t, n] X) => (float[n] Y, float[t, n] All) {{
        k = Constant <value_float = 0.5> ()
        Y, All = Scan (S, X) <num_scan_inputs = 1, body = b (float[n] s, float[n] x)
            => (float[n] z, float[n] out) {{
            y = Mul(s, k) z = Add(y, x) out = Identity(z) }}> }}""",
        [{"S": VECTOR, "X": np.arange(12, dtype=np.float32).reshape(4, 3)}],
    ),
}
CASES = [(name, text, feeds) for name, (text, many) in MODELS.items() for feeds in many]
EACH = [("torch",), ("ort",), ("reference",)]


@pytest.mark.parametrize("sources", EACH, ids=" ".join)
@pytest.mark.parametrize(("name", "text", "feeds"), CASES)
def test_bodies_give_what_the_reference_gives(name, text, feeds, sources):
    expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, feeds)
    got = Evaluator(text, sources=sources).run(None, feeds)
    for left, right in zip(expected, got, strict=True):
        assert right.dtype == left.dtype
        np.testing.assert_allclose(right, left, rtol=1e-6)


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
    y, rows = Evaluator(text).run(None, {"X": VECTOR, **feeds})
    np.testing.assert_array_equal(y, VECTOR * 2**count)
    expected = np.stack([-VECTOR * 2 ** (i + 1) for i in range(count)]) if count else None
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


def test_kernels_are_replaced_in_bodies():
    text, feeds = MODELS["nested if"]
    seen = []

    def negate(x):
        seen.append(x)
        return -x

    evaluator = Evaluator(text, {"Neg": negate, "node:w": lambda p, k: p * k * 100})
    (got,) = evaluator.run(None, feeds[0])
    np.testing.assert_array_equal(got, np.abs(VECTOR) * 1000 - VECTOR)
    np.testing.assert_array_equal(seen[0], VECTOR)
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
