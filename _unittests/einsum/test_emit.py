"""Models of plans and of equations, against numpy and onnx.reference."""

import hypothesis
import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.reference
import pytest
from einsum_cases import EQUATIONS, assert_same, operands_of, oracle
from hypothesis import strategies as st

from ortmeter import make_session
from ortmeter.dtypes import numpy_dtype
from ortmeter.einsum import EinsumError, decompose_einsum, einsum_model
from ortmeter.einsum.emit import emit_model
from ortmeter.einsum.parse import parse_equation
from ortmeter.runtime.sessions import optimized_model

ATTENTION = "bsnh,btnh->bnts"
SHAPES = (2, 3, 4, 5), (2, 6, 4, 5)


def run(model, operands, optimization="all"):
    session = make_session(model, provider="cpu", optimization=optimization)
    feeds = {f"X{i}": x for i, x in enumerate(operands)}
    (got,) = session.run(None, feeds)
    return got


def refer(model, operands):
    feeds = {f"X{i}": x for i, x in enumerate(operands)}
    (got,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    return got


def operators(model):
    return [node.op_type for node in model.graph.node]


def freed(shapes, known=(1,)):
    """The same shapes where only some sizes are known, such as those that are broadcast."""
    return [tuple(size if size in known else None for size in shape) for shape in shapes]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
@pytest.mark.parametrize("free", [False, True], ids=["known", "free"])
def test_models_compute_the_equation(equation, shapes, free):
    operands = operands_of(shapes)
    expected = oracle(equation, operands)
    plan = decompose_einsum(equation, *(freed(shapes, (0, 1)) if free else shapes))
    model = plan.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    assert_same(refer(model, operands), expected, "onnx.reference")
    assert_same(run(model, operands), expected, "ONNX Runtime")
    assert_same(run(model, operands, "none"), expected, "ONNX Runtime, not optimized")
    assert_same(run(plan.to_onnx(contrib=True), operands), expected, "com.microsoft")


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_the_plain_model_computes_the_equation(equation, shapes):
    operands = operands_of(shapes)
    model = einsum_model(equation, *operands)
    onnx.checker.check_model(model, full_check=True)
    assert operators(model) == ["Einsum"]
    expected = oracle(equation, operands)
    assert_same(refer(model, operands), expected, "onnx.reference")
    assert_same(run(model, operands), expected, "ONNX Runtime")


ROWS, HEADS = ("batch", "rows", 3, 4), (3, 4, 5)


@pytest.mark.parametrize(
    ("equation", "given", "sizes"),
    [
        (ATTENTION, [], [SHAPES, [(1, 7, 3, 2), (1, 2, 3, 2)], [(0, 1, 2, 1), (0, 4, 2, 1)]]),
        ("iij->ij", [], [[(3, 3, 2)], [(1, 1, 4)], [(0, 0, 2)]]),
        ("iii->", [], [[(3, 3, 3)], [(1, 1, 1)], [(0, 0, 0)]]),
        ("iij->ij", [("n", 2, "m")], [[(2, 2, 3)], [(2, 2, 0)]]),
        ("jii->ji", [(None, 0, 0)], [[(3, 0, 0)], [(0, 0, 0)]]),
        ("ijab,ijcd->abcd", [], [[(2, 3, 4, 5), (2, 3, 2, 3)], [(1, 2, 0, 4), (1, 2, 5, 6)]]),
        ("abcij,jka->abick", [], [[(2, 3, 2, 4, 5), (5, 6, 2)], [(1, 2, 0, 1, 2), (2, 3, 1)]]),
        ("ijk,ljk->il", [], [[(2, 3, 4), (5, 3, 4)], [(0, 2, 2), (1, 2, 2)], [(2, 0, 3)] * 2]),
        ("ij,j->i", [], [[(2, 3), (3,)], [(4, 0), (0,)]]),
        (
            "bsnh,nhd->bsd",
            [ROWS, HEADS],
            [[(b, s, 3, 4), HEADS] for b in (0, 1, 2) for s in (0, 7)],
        ),
        # an ellipsis, a 1 that is stretched to a free size
        (
            "...ij,...jk->...ik",
            [("b", None, 3, 4), (4, 5)],
            [[(b, 2, 3, 4), (4, 5)] for b in (0, 6)],
        ),
        ("ab,jkb->abk", [(None, "b"), (None, None, 1)], [[(2, n), (5, 6, 1)] for n in (0, 1, 3)]),
        (
            "abi,jkib->abik",
            [(None, 1, None), (2, 3, 1, "b")],
            [[(n, 1, n), (2, 3, 1, 4)] for n in (0, 5)],
        ),
    ],
)
@pytest.mark.parametrize("contrib", [False, True])
def test_one_model_runs_at_several_sizes(equation, given, sizes, contrib):
    model = decompose_einsum(equation, *given).to_onnx(contrib=contrib)
    for shapes in sizes:
        operands = operands_of(shapes)
        assert_same(run(model, operands), oracle(equation, operands), shapes)
        if 0 not in {size for shape in shapes for size in shape}:
            plain = einsum_model(equation, *given)
            assert_same(run(plain, operands), oracle(equation, operands), shapes)


def dimensions(model):
    return {
        info.name: [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in (*model.graph.input, *model.graph.output)
    }


def test_a_free_size_has_a_name_and_what_one_operand_tells_is_known():
    given = (None, None, 4, "n"), ("batch", 6, "heads", 5)
    shapes = {"X0": ["batch", "s", 4, 5], "X1": ["batch", 6, 4, 5], "Y": ["batch", 4, 6, "s"]}
    for model in (decompose_einsum(ATTENTION, *given).to_onnx(), einsum_model(ATTENTION, *given)):
        assert dimensions(model) == shapes
        with pytest.raises(Exception, match="X0"):
            run(model, operands_of([(2, 3, 4, 1), (2, 6, 4, 5)]))


@pytest.mark.parametrize(("equation", "shape"), [("ii->i", (2, 8)), ("iij->ij", (2, 8, 3))])
def test_a_matrix_that_is_not_square_has_no_diagonal(equation, shape):
    with pytest.raises(Exception, match="reshape"):
        run(decompose_einsum(equation).to_onnx(), operands_of([shape]))


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        (ATTENTION, [], "Transpose Transpose MatMul"),
        ("bij,bj->bi", [], "Unsqueeze MatMul Squeeze"),
        ("ijk,ljk->il", [], "Flatten Flatten Transpose MatMul"),
        ("bsnh,nhd->bsd", [ROWS, HEADS], "Reshape Reshape MatMul"),
        ("bsd,bse->de", [("b", "s", 3), ("b", "s", 4)], "Reshape Transpose Reshape MatMul"),
        (
            "abij,bjk->abik",
            [(2, 3, None, 5), (3, 5, 4)],
            "Transpose Reshape MatMul Reshape Transpose",
        ),
    ],
)
def test_shapes_are_constants_where_they_can_be(equation, shapes, expected):
    assert " ".join(operators(decompose_einsum(equation, *shapes).to_onnx())) == expected


def test_names_say_what_they_hold():
    model = decompose_einsum(ATTENTION, *SHAPES).to_onnx()
    assert [node.output[0] for node in model.graph.node] == ["X1_b_n_t_h", "X0_b_n_h_s", "Y"]
    assert [node.name for node in model.graph.node] == [
        "Transpose_X1_b_n_t_h",
        "Transpose_X0_b_n_h_s",
        "MatMul_Y",
    ]
    assert model.graph.name == ATTENTION
    merged = decompose_einsum("ijab,ijcd->abcd", (2, 3, 4, 5), (2, 3, 2, 3)).to_onnx()
    assert {tensor.name for tensor in merged.graph.initializer} == {
        "shape_6_20",
        "shape_6_6",
        "shape_4_5_2_3",
    }


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_names_are_unique_and_reproducible(equation, shapes):
    for contrib in (False, True):
        model, again = (
            decompose_einsum(equation, *shapes).to_onnx(contrib=contrib) for _ in range(2)
        )
        assert model.SerializeToString() == again.SerializeToString()
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)


def test_intermediate_results_have_a_type_and_a_shape():
    model = decompose_einsum(ATTENTION, *SHAPES).to_onnx(contrib=True)
    inferred = onnx.shape_inference.infer_shapes(decompose_einsum(ATTENTION, *SHAPES).to_onnx())
    shapes = {
        info.name: [d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in model.graph.value_info
    }
    assert shapes == {"X1_b_n_t_h": [2, 4, 6, 5], "X0_b_n_s_h": [2, 4, 3, 5]}
    assert len(inferred.graph.value_info) == 2


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        (ATTENTION, SHAPES, {"transB": 1}),
        ("ij,kj->ik", [(2, 3), (4, 3)], {"transB": 1}),
        ("ji,jk->ik", [(3, 2), (3, 4)], {"transA": 1}),
        ("ij,jk->ki", [(2, 3), (3, 4)], {"transA": 1, "transB": 1}),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)], {"transB": 1}),
        ("snh,tnh->nts", [(3, 2, 4), (5, 2, 4)], {"transB": 1, "transBatchA": 1, "transBatchB": 1}),
        ("nsh,tnh->nst", [(2, 3, 4), (5, 2, 4)], {"transB": 1, "transBatchB": 1}),
    ],
)
def test_products_absorb_transposes(equation, shapes, expected):
    model = decompose_einsum(equation, *shapes).to_onnx(contrib=True)
    product = model.graph.node[-1]
    assert (product.domain, product.op_type) == ("com.microsoft", "FusedMatMul")
    flags = {a.name: a.i for a in product.attribute}
    assert flags == expected
    # What remains keeps the last axis.
    transposes = [node for node in model.graph.node if node.op_type == "Transpose"]
    for node in transposes:
        perm = onnx.helper.get_node_attr_value(node, "perm")
        assert perm[-1] == len(perm) - 1
    assert len(transposes) == (2 if equation == ATTENTION else 0)
    operands = operands_of(shapes)
    assert_same(run(model, operands), oracle(equation, operands))


def test_only_models_that_need_it_import_the_domain_of_onnx_runtime():
    plain = decompose_einsum("ij,jk->ik", (2, 3), (3, 4)).to_onnx(contrib=True)
    assert [opset.domain for opset in plain.opset_import] == [""]
    standard = decompose_einsum(ATTENTION, *SHAPES).to_onnx()
    assert {node.domain for node in standard.graph.node} == {""}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        (ATTENTION, SHAPES),
        ("aab,b->a", [(3, 3, 2), (2,)]),
        ("ij->j", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("bi,bi->b", [(2, 3), (2, 3)]),
        ("ij->ji", [(2, 3)]),
    ],
)
def test_types_that_operators_take(dtype, equation, shapes):
    operands = operands_of(shapes, dtype)
    plan = decompose_einsum(equation, *operands)
    expected = np.einsum(equation, *operands)
    for model in (plan.to_onnx(), plan.to_onnx(contrib=True)):
        for got in (run(model, operands), run(model, operands, "none")):
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(refer(plan.to_onnx(), operands), expected)


@pytest.mark.parametrize(
    "dtype",
    ["int32", "uint8", "bool", "bfloat16", "complex64", "string", "float8e4m3fn", "int4"],
)
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij->i", [(2, 1)]),
        ("ii", [(2, 2)]),
    ],
)
@pytest.mark.parametrize("make", [decompose_einsum, einsum_model])
def test_types_that_are_not_computed_as_numpy_does_are_refused(make, equation, shapes, dtype):
    told = f"their type is {numpy_dtype(dtype).name}. Accepted: float16, float32, float64, and any"
    with pytest.raises(EinsumError, match=told) as caught:
        make(equation, *shapes, dtype=dtype)
    assert str(caught.value).startswith(f"{equation!r}: ")


@pytest.mark.parametrize("dtype", ["complex64", "bool", "int8", "int64"])
def test_moves_take_every_type(dtype):
    operand = np.arange(12).astype(dtype).reshape(2, 2, 3)
    models = [decompose_einsum("iij->ji", operand).to_onnx()]
    if dtype == "int64":
        models.append(einsum_model("iij->ji", operand))
    for model in models:
        got = refer(model, [operand])
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.einsum("iij->ji", operand))


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ((20, 21, 22, 23), "adcb"),
        ((20, 21, 22, 23), "dcba"),
        ((20, 1, 22, 23, 20), "edbca"),
        ((8, 2, 10, 2, 12, 16), "fcdeab"),
    ],
)
def test_a_slow_transposition_is_split_and_stays_split(shape, result):
    equation = f"{''.join(sorted(result))}->{result}"
    plan = decompose_einsum(equation, shape)
    model = emit_model(plan.operands, plan.steps, split=True)
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.einsum(equation, value)
    assert_same(run(model, [value]), expected, "ONNX Runtime")
    assert_same(refer(model, [value]), expected, "onnx.reference")
    ran = optimized_model(model, provider="cpu")
    assert operators(ran).count("Transpose") == 2


def test_a_transposition_that_is_fast_is_not_split():
    plan = decompose_einsum("abcd->acbd", (20, 20, 20, 20))
    assert operators(emit_model(plan.operands, plan.steps, split=True)) == ["Transpose"]


LETTERS = "abcdXY"


@st.composite
def terms(draw, sizes, hidden):
    """An operand: its subscripts and its shape, with sizes of 1 that are broadcast."""
    letters = draw(st.lists(st.sampled_from(LETTERS), max_size=4))
    ones = draw(st.sets(st.sampled_from(LETTERS), max_size=1))
    subscripts = list(letters)
    shape = [1 if letter in ones else sizes[letter] for letter in letters]
    if hidden is not None and draw(st.booleans()):
        place = draw(st.integers(0, len(letters)))
        start = draw(st.integers(0, len(hidden)))
        subscripts.insert(place, "...")
        shape[place:place] = hidden[start:]
    return "".join(subscripts), tuple(shape)


@st.composite
def equations(draw):
    """An equation and the shapes of its operands."""
    largest = st.sampled_from([1, 2, 2, 3, 3, 4, 0])
    sizes = {letter: draw(largest) for letter in LETTERS}
    hidden = draw(st.one_of(st.none(), st.lists(st.integers(1, 3), max_size=2)))
    operands = draw(st.lists(terms(sizes, hidden), min_size=1, max_size=4))
    equation = draw(st.sampled_from([",", " , "])).join(subscripts for subscripts, _ in operands)
    if draw(st.integers(0, 4)):
        letters = sorted({x for x in equation if x.isalpha()})
        result = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
        if "..." in equation:
            result.insert(draw(st.integers(0, len(result))), "...")
        equation += "->" + "".join(result)
    return equation, [shape for _, shape in operands]


def check_random(examples):
    """Check as many random equations, always the same, through everything that computes one."""

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        equations(), st.booleans(), st.booleans(), st.one_of(st.none(), st.randoms()), st.data()
    )
    def check(case, free, contrib, shuffle, data):
        equation, shapes = case
        operands = operands_of(shapes)
        expected = oracle(equation, operands)
        order = None
        if shuffle is not None:
            inputs = parse_equation(equation, tuple(map(len, shapes))).inputs
            order = "".join(data.draw(st.permutations(sorted(set("".join(inputs))))))
        plan = decompose_einsum(equation, *(freed(shapes) if free else shapes), order=order)
        # A product that absorbs a transpose may be wrong, onnx.reference flattens no such array.
        is_empty = free and not all(operand.size for operand in operands)
        model = plan.to_onnx(contrib=contrib and not is_empty)
        got = run(model, operands, "none" if is_empty else "all")
        assert_same(got, expected, "ONNX Runtime")
        if not (contrib or is_empty):
            assert_same(refer(model, operands), expected, "onnx.reference")

    check()


def test_random_equations():
    check_random(100)


@pytest.mark.slow
def test_many_random_equations():
    check_random(1200)
