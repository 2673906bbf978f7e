"""Values that are not finite: expected ones by numpy in float64, or by hand."""

import numpy as np
import onnx
import pytest

from ortmeter.attribution import explain_session
from ortmeter.attribution.nonfinite import NonFinite

HEADER = '<ir_version: 10, opset_import: ["": 18]>'
SOURCES = ("reference",)


def explain(graph, expected="float64", **feeds):
    text = f"{HEADER} g {graph}"
    found = explain_session(text, feeds, expected, provider="cpu", sources=SOURCES)
    return found, [str(one) for one in found.non_finite]


def residuals():
    """Draw a chain of residuals in float16, whose largest value is above 65504."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((64, 64)) * 0.9).astype(np.float16) for _ in range(4)]
    x = (rng.standard_normal((2, 64)) * 40).astype(np.float16)
    nodes, last = [], "x"
    for rank in range(4):
        nodes.append(f"[ff{rank}] h{rank} = MatMul ({last}, w{rank})")
        nodes.append(f"[res{rank}] r{rank} = Add ({last}, h{rank})")
        last = f"r{rank}"
    text = f"{HEADER} g (float16[2, 64] x) => (float16[2, 64] r3) {{ {' '.join(nodes)} }}"
    model = onnx.parser.parse_model(text)
    named = {f"w{rank}": weight for rank, weight in enumerate(weights)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in named.items())
    total = x.astype(np.float64)
    for weight in weights:
        total = total + total @ weight.astype(np.float64)
    return model, x, total


def test_the_residual_that_overflows_is_named_with_its_value():
    model, x, total = residuals()
    found = explain_session(model, {"x": x}, provider="cpu", sources=SOURCES)
    (one,) = found.non_finite
    assert one.expected == pytest.approx(total.flat[np.abs(total).argmax()], rel=1e-9)
    assert abs(one.expected) > 65504
    assert str(one) == (
        f"Add res3 overflows float16: its float64 value is {one.expected:.6g}, "
        "the largest float16 is 65504"
    )
    n_inf = np.count_nonzero(np.abs(total) > 65520)  # what rounds to more than the largest one
    assert found.outputs.outputs["r3"].n_inf == pytest.approx(n_inf, abs=2)
    assert " 0 ulp" not in str(found)
    assert " 0 alone" not in str(found)
    rows = found.to_frame().set_index("node")
    assert rows.loc["res3", "effect"] == np.inf


def test_a_session_that_overflows_alone():
    graph = "(float[2] x, int64[1] a) => (float y) { [l2] y = ReduceL2 <keepdims = 0> (x, a) }"
    found, told = explain(graph, x=np.float32([1e30, 1e30]), a=np.int64([0]))
    value = f"{np.hypot(1e30, 1e30):.4g}"
    assert f"by 1 mismatched inf: it is inf where float64 is {value};" in str(found)
    made = "ReduceL2 l2 is the first node to make inf from finite inputs, its float64 value is"
    assert told == [f"{made} {np.hypot(1e30, 1e30):.6g}"]


MASK = """(float[2, 3] x, bool[2, 3] m) => (float[2, 3] y) <float zero = {0}, float low = {-inf}> {
    [bias] b = Where (m, zero, low) [add] s = Add (x, b) [soft] y = Softmax (s) }"""


def test_a_masked_row_is_nan_on_both_sides():
    """Its softmax is 0/0."""
    low = onnx.helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [-np.inf])
    model = onnx.parser.parse_model(HEADER + " g " + MASK.replace("-inf", "0"))
    model.graph.initializer[1].CopyFrom(low)
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    mask = np.array([[True, False, True], [False] * 3])
    found = explain_session(model, {"x": x, "m": mask}, provider="cpu", sources=SOURCES)
    with np.errstate(invalid="ignore"):
        exps = np.where(mask, np.exp(x.astype(np.float64)), 0)
        n_nan = int(np.isnan(exps / exps.sum(1, keepdims=True)).sum())
    assert n_nan == 3
    assert "3 of 6 values are NaN on both sides" in str(found.outputs.outputs["y"])
    assert found.outputs.to_frame()["both NaN"].tolist() == [3]
    assert [str(one) for one in found.non_finite] == [
        "Softmax soft is the first node to make NaN from infinities, as float64 does from them"
    ]


@pytest.mark.parametrize(
    ("graph", "x", "expected"),
    [
        ("[a] A = Exp(x) [b] y = Log(x)", [-1, 1], "Log b is the first node to make NaN from fin"),
        ("[b] y = Log(x)", [0, 1], "Log b is the first node to make -inf from finite inputs, as"),
        ("[a] A = Abs(x) [b] y = Sub(A, A)", [np.inf, 1], "Sub b is the first node to make NaN fr"),
        ("[a] A = Abs(x) [b] y = Neg(A)", [np.nan, 1], None),
        ("[a] A = Exp(x) [b] y = Reciprocal(A)", [100, 1], "Exp a overflows float32: its float64 "),
        ("[a] A = Log(x) [b] y = Exp(A)", [0, 1], None),  # -inf is expected, and is in no output
        (
            "[a] A = MatMul(x, x) [b] B = Add(A, A) [c] y = Relu(x)",
            [2e19, 1],
            "MatMul a overflows float32: its float64 value is 4e+38, the largest float32 is 3.402",
        ),
    ],
)
def test_what_makes_them(graph, x, expected):
    graph = f"(float[2] x) => (float[2] y) {{ {graph} }}"
    _, told = explain(graph, x=np.float32(x))
    assert [text[: len(expected)] for text in told] == ([expected] if expected else [])
    if expected and expected.startswith("Log"):
        _, again = explain(graph, "reference", x=np.float32(x))
        assert again == [told[0].replace("float64", "reference")]


@pytest.mark.parametrize(
    ("got", "expected", "told"),
    [
        (np.nan, np.inf, "(fused with a) is the first node to make NaN from finite inputs, its r"),
        (np.inf, -np.inf, "(fused with a) is the first node to make inf from finite inputs, its"),
        (-np.inf, 7e4, "overflows float16: its r value is 70000, the largest float16 is 65504"),
    ],
)
def test_the_expected_value_is_told_unless_it_is_the_same(got, expected, told):
    one = NonFinite("b", "B", "r", ("a",), False, np.dtype(np.float16), got, expected)
    assert str(one).startswith(f"B b {told}")
