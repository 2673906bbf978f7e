import numpy as np
import onnx.parser
import onnx.reference
import pytest

from ortmeter.observatory.bounds import error_bounds, weight_bounds
from ortmeter.observatory.case import Case, call
from ortmeter.observatory.reference import reference

U = 2.0**-24


def bounds(case):
    model = case.model()
    feeds = case.feeds()
    expected = reference(model, feeds).outputs
    found = error_bounds(model, feeds, expected)
    return feeds, {n: e for n, e in expected.items() if n in found}, found


def only(case):
    feeds, expected, found = bounds(case)
    assert found.keys() == {"Y"}
    return feeds, expected["Y"], found["Y"]


PRODUCTS = {
    "MatMul": (call("MatMul", "T[3,5,40] X, T[3,40,7] Z"), 40),
    "vector": (call("MatMul", "T[5,40] X, T[40] Z"), 40),
    "Einsum": (call('Einsum<equation = "ij,kj->ik">', "T[4,9] X, T[6,9] Z"), 9),
    "Gemm": (call("Gemm<alpha = -0.5, beta = 2.0>", "T[4,9] X, T[9,6] Z, T[6] B"), 10),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_bounds_of_products_are_those_of_their_terms(name):
    case, terms = PRODUCTS[name]
    feeds, exact, found = only(case)
    x, z = (np.abs(feeds[n]).astype(np.float64) for n in "XZ")
    magnitude = {"Einsum": lambda: x @ z.T, "Gemm": lambda: 0.5 * (x @ z) + 2 * np.abs(feeds["B"])}
    expected = (terms + 4) * U * magnitude.get(name, lambda: x @ z)()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found.shape == exact.shape


def test_bounds_of_a_convolution_count_the_patches():
    case = Case("Conv", "Y = Conv<pads = [1,1,1,1]>(X, W)", "T[1,2,4,4] X, T[3,2,3,3] W")
    feeds, _, found = only(case)
    x = np.pad(np.abs(feeds["X"][0]).astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    magnitude = np.einsum("chwij,ocij->ohw", patches, np.abs(feeds["W"]).astype(np.float64))
    np.testing.assert_allclose(found[0], (18 + 4) * U * magnitude, rtol=1e-4)


@pytest.mark.parametrize(("op", "count"), [("ReduceSum", 1), ("ReduceMean", 200)])
def test_bounds_of_reductions_are_near_the_derived_ones(op, count):
    inputs = "T[6,200] X, i64[1] A = 1"
    case = Case(op, f"Y = {op}<keepdims = 0>(X, A)", inputs, opset=18)
    feeds, _, found = only(case)
    x = feeds["X"].astype(np.float64)  # n - 1 additions, then the roundings of a mean
    expected = U * (199 * np.abs(x).sum(1) + 3 * (count > 1) * np.abs(x.sum(1))) / count
    assert ((found > expected) & (found < 1.05 * expected)).all()


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize(("op", "inputs"), [("Add", "XZ"), ("Div", "XZ"), ("Sqrt", "X")])
def test_a_correct_rounding_is_within_its_bound_and_the_next_number_is_not(op, inputs, kind):
    tensors = ", ".join(f"T[99] {n} = positive" for n in inputs)
    _, exact, found = only(call(op, tensors, type=kind))
    dtype = np.dtype({"f32": "float32", "f16": "float16"}[kind])
    rounded = exact.astype(dtype)
    assert (np.abs(rounded - exact) <= found).all()
    for side in (np.inf, -np.inf):
        beside = np.nextafter(rounded, dtype.type(side))
        assert (np.abs(beside - exact) >= found).all()


NORMALIZATIONS = {
    "LayerNormalization": ("T[4,50] X, T[50] S, T[50] B", 17),
    "InstanceNormalization": ("T[2,3,5,5] X, T[3] S, T[3] B", 13),
    "GroupNormalization<num_groups = 2>": ("T[2,4,5] X, T[4] S, T[4] B", 21),
    "BatchNormalization": ("T[2,3,5] X, T[3] S, T[3] B, T[3] M, T[3] V = positive", 15),
    "RMSNormalization": ("T[4,50] X, T[50] S", 23),
    "LpNormalization<p = 2>": ("T[4,50] X", 22),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_float32_is_within_the_bounds_of_normalizations(name):
    inputs, opset = NORMALIZATIONS[name]
    case = call(name, inputs, opset=opset)
    feeds, exact, found = only(case)
    (narrow,) = onnx.reference.ReferenceEvaluator(case.model()).run(None, feeds)
    error = np.abs(narrow - exact)
    assert (error <= found).all()
    assert (found < 1e-3 * np.abs(exact).max()).all()
    assert not np.array_equal(narrow, exact.astype(np.float32))  # it has errors to bound


def test_what_moves_elements_has_no_error():
    for case in (
        Case("Transpose", "U = Transpose(X) Y = Relu(U)", "T[2,3] X"),
        Case("Where", "Y = Where(B, X, Z)", "b8[4] B, T[4] X, T[4] Z"),
        Case("Less", "Y = Less(X, Z)", "T[4] X, T[4] Z", outputs="b8 Y"),
        Case("Add", "Y = Add(X, Z)", "T[4] X, T[4] Z", type="i64"),
    ):
        assert not only(case)[2].any()


def test_a_scatter_that_adds_rounds():
    text = 'Y = ScatterElements<axis = 0, reduction = "add">(X, I, U)'
    inputs = "T[4] X = positive, i64[3] I = 0 0 1, T[3] U = positive"
    case = Case("Scatter", text, inputs, opset=16)
    _, exact, found = only(case)
    np.testing.assert_allclose(found, (3 + 4) * U * exact, rtol=1e-4)  # three meet at a place


def test_a_range_is_not_a_cumulative_sum():
    case = Case("Range", "Y = Range(X, L, D)", "T[] X = 0, T[] L = 300, T[] D = 0.1")
    _, exact, found = only(case)
    steps = np.arange(exact.size, dtype=np.float32) * np.float32(0.1)
    assert (np.abs(steps - exact) <= found).all()
    added = np.cumsum(np.full(exact.size, 0.1, np.float32), dtype=np.float32) - np.float32(0.1)
    assert (np.abs(added - exact) > found).any()


def test_what_is_not_known_has_no_bound():
    for case in (
        Case("Exp", "Y = Exp(X)", "T[4] X"),
        Case("Mul", "U = Mul(X, X) Y = Mul(U, X)", "T[4] X"),
        Case("Mul", "Y = Mul(X, X)", "T[4] X", type="f64"),
    ):
        assert bounds(case)[2] == {}
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "unknown": 1]>
        g (float[2] X) => (float[2] Y) { Y = unknown.Mul(X) }""")
    assert error_bounds(model, {"X": np.ones(2, np.float32)}, {}) == {}


def test_bounds_of_a_network_are_what_its_weights_move():
    """Matrices move, up or down; vectors and the model stay."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 8] X) => (float[1, 8] Y) <float[8] b> { Z = MatMul(X, w)  Y = Add(Z, b) }"""
    model = onnx.parser.parse_model(text)
    weights = {"w": np.eye(8, dtype=np.float32), "b": np.arange(8, dtype=np.float32)}
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    before = model.SerializeToString()
    feeds = {"X": np.linspace(1, 8, 8, dtype=np.float32)[None]}
    expected = reference(model, feeds).outputs
    assert weight_bounds(model, feeds, expected, 2.0**-10) == {"Y": 8 * 2.0**-10}
    assert weight_bounds(model, feeds, expected, 0.0) == {"Y": 0.0}
    assert model.SerializeToString() == before
