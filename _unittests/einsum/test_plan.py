import itertools

import numpy as np
import onnx.reference
import opt_einsum
import pytest
from einsum_cases import CASES, EQUATIONS, assert_same, operands_of, oracle

from ortmeter.einsum import EinsumError, decompose_einsum
from ortmeter.einsum.cost import estimate_steps, merge_axes
from ortmeter.einsum.parse import read_operands
from ortmeter.einsum.plan import make_plan
from ortmeter.einsum.steps import absorb_transposes
from ortmeter.errors import InvalidArgumentError

ATTENTION = "bsnh,btnh->bnts"
SHAPES = (2, 3, 4, 5), (2, 6, 4, 5)


def kinds(plan):
    return [step.kind for step in plan.steps]


def results_of(plan, operands):
    """The operands, then the result of each step, by name."""
    feeds = {f"X{i}": operand for i, operand in enumerate(operands)}
    names = [step.output for step in plan.steps]
    found = onnx.reference.ReferenceEvaluator(plan.to_onnx()).run(names, feeds)
    return {**feeds, **dict(zip(names, found, strict=True))}


def run(plan, operands):
    (got,) = onnx.reference.ReferenceEvaluator(plan.to_onnx()).run(None, plan.feeds(*operands))
    return got


def spelled(step):
    """The step as an equation of numpy.einsum, one letter for each axis."""
    if step.kind == "diagonal":  # of two axes, even when a letter is there three times
        (first,) = step.where
        letters = "".join(chr(ord("a") + i) for i in range(len(step.axes)))
        return f"{letters[: first + 1]}{letters[first:]}->{letters}"
    names = {}
    for axes in (*step.input_axes, step.axes):
        for axis in filter(None, axes):
            names.setdefault(axis, chr(ord("a") + len(names)))
    terms = ["".join(names[axis] for axis in axes if axis) for axes in step.input_axes]
    return f"{','.join(terms)}->{''.join(names[axis] for axis in step.axes if axis)}"


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_each_step_computes_its_subscripts(equation, shapes):
    operands = operands_of(shapes)
    plan = decompose_einsum(equation, *shapes)
    results = results_of(plan, operands)
    for step in plan.steps:
        inputs = [results[name] for name in step.inputs]
        got = results[step.output]
        assert got.shape == step.shape
        if step.kind == "reshape":
            np.testing.assert_array_equal(got.ravel(), inputs[0].ravel())
            continue
        if step.kind == "transpose":  # a letter may still be repeated
            np.testing.assert_array_equal(got, inputs[0].transpose(step.where))
            assert step.axes == tuple(step.input_axes[0][i] for i in step.where)
            continue
        without_units = [
            x.reshape([n for n, axis in zip(x.shape, axes, strict=True) if axis])
            for x, axes in zip(inputs, step.input_axes, strict=True)
        ]
        expected = oracle(spelled(step), without_units)
        assert_same(got, expected.reshape(step.shape), step.subscripts)


@pytest.mark.parametrize(("equation", "shapes"), CASES["many operands"])
def test_any_path_computes_the_same(equation, shapes):
    operands = operands_of(shapes)
    count = len(shapes)
    paths = [[(0, 1)] * (count - 1), [(1, 0)] * (count - 1), [tuple(range(count))]]
    for path in paths:
        plan = make_plan(read_operands(equation, shapes, None), path=tuple(path))
        assert_same(results_of(plan, operands)["Y"], oracle(equation, operands), path)


def test_the_path_is_that_of_opt_einsum():
    equation, shapes = "ab,bc,cd->ad", [(50, 2), (2, 50), (50, 2)]
    plan = decompose_einsum(equation, *shapes)
    assert plan.steps[0].subscripts == "bc,cd->bd"
    _, info = opt_einsum.contract_path(equation, *shapes, shapes=True)
    assert plan.flop == info.opt_cost


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        *CASES["product"],
        ("i,j->ij", [(3,), (4,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,j->i", [(2, 3), (3,)]),
        ("ab,bc,cd,de->ea", [(2, 3), (3, 4), (4, 5), (5, 6)]),
        ("bqhd,bkhd,bkhe->bqhe", [(2, 3, 4, 5), (2, 6, 4, 5), (2, 6, 4, 5)]),
    ],
)
def test_operations_are_those_of_opt_einsum(equation, shapes):
    _, info = opt_einsum.contract_path(equation, *shapes, shapes=True)
    assert decompose_einsum(equation, *shapes).flop == info.opt_cost


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        # a sum of n terms has n - 1 additions
        ("ijk->j", [(2, 3, 4)], 24 - 3),
        ("ii->", [(5, 5)], 4),
        ("bi,bi->b", [(3, 4), (3, 4)], 12 + 12 - 3),
        ("ija,jk->ik", [(2, 3, 4), (3, 5)], 24 - 6 + 2 * 2 * 3 * 5),
        # moves have none
        ("iji->ji", [(2, 3, 2)], 0),
    ],
)
def test_operations_of_sums(equation, shapes, expected):
    assert decompose_einsum(equation, *shapes).flop == expected


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        # nothing to move: the layout is the one of MatMul
        ("ij,jk->ik", [(20, 30), (30, 40)], 0),
        # two that the product can absorb, rather than one of the result
        ("ij,jk->ki", [(20, 30), (30, 40)], 2),
        ("jk,ij->ik", [(30, 40), (20, 30)], 0),
        ("bnst,bnth->bnsh", [(2, 3, 4, 5), (2, 3, 5, 6)], 0),
        ("bnsh,bnht->bnst", [(2, 3, 4, 5), (2, 3, 5, 6)], 0),
        ("abc,cd->abd", [(2, 3, 4), (4, 5)], 0),
        ("abc,cde->abde", [(2, 3, 4), (4, 5, 6)], 0),
        # attention, (batch, heads, sequence, channels): one swap of the last two axes
        ("bnsh,bnth->bnst", [(2, 3, 4, 5), (2, 3, 6, 5)], 1),
        # attention, (batch, sequence, heads, channels): one for each operand, none afterwards
        ("bsnh,btnh->bnts", [(2, 4, 3, 5), (2, 6, 3, 5)], 2),
        ("bsnh,btnh->bnst", [(2, 4, 3, 5), (2, 6, 3, 5)], 2),
        # attention, probabilities by values: one for the values, one for the result, by tiles, for
        # one more that the product absorbs
        ("bnst,btnh->bsnh", [(2, 3, 4, 6), (2, 6, 3, 5)], 3),
        # attention, the sequence first
        ("sbnh,tbnh->bnst", [(4, 2, 3, 5), (6, 2, 3, 5)], 2),
        # a vector goes to the side where the matrix is not transposed
        ("ij,i->j", [(20, 30), (20,)], 0),
        ("ij,j->i", [(20, 30), (30,)], 0),
        ("bij,bi->bj", [(4, 20, 30), (4, 20)], 0),
        # element by element, in the order of the result
        ("ij,ij->ij", [(2, 3), (2, 3)], 0),
        ("a,b,c->abc", [(2,), (3,), (4,)], 0),
        # chains
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)], 0),
    ],
)
def test_transposes_are_few_or_absorbed(equation, shapes, expected):
    assert kinds(decompose_einsum(equation, *shapes)).count("transpose") == expected


@pytest.mark.parametrize("equation", ["bsnh,btnh,btnd->bsnd", "btnh,bsnh,btnd->bsnd"])
def test_a_product_is_written_as_the_next_one_reads_it(equation):
    plan = decompose_einsum(equation, *[(2, 6, 3, 9)] * 3)
    # One transpose for each operand and for the result, none for the scores.
    moved = [step.inputs[0] for step in plan.steps if step.kind == "transpose"]
    assert sorted(name.partition("_")[0] for name in moved) == ["T1", "X0", "X1", "X2"]


@pytest.mark.parametrize(
    ("left", "right"), [((2, 100, 3, 50), (2, 4, 3, 50)), ((2, 4, 3, 50), (2, 100, 3, 50))]
)
@pytest.mark.parametrize("result", ["bnts", "bnst"])
def test_operands_are_not_moved_element_by_element(left, right, result):
    plan = decompose_einsum(f"bsnh,btnh->{result}", left, right)
    shapes = {"X0": left, "X1": right}
    for step in plan.steps:
        if step.kind == "transpose" and step.inputs[0] in shapes:
            _, moved = merge_axes(shapes[step.inputs[0]], step.where)
            # copies runs of h, or exchanges s and (n, h) by tiles
            assert moved in {(0, 2, 1, 3), (0, 2, 1)}


@pytest.mark.parametrize("sizes", [(4, 8, 12, 16), (64, 8, 32, 2), (2, 2, 50, 50)])
@pytest.mark.parametrize(
    "equation", ["abc,ad,bd->cd", "abc,dc,bd->ad", "ab,bc,cd->da", "abcd,ac,bd->dba"]
)
def test_layouts_cost_no_more_than_any_imposed_order(equation, sizes):
    of = dict(zip("abcd", sizes, strict=True))
    shapes = [tuple(of[x] for x in term) for term in equation.partition("->")[0].split(",")]
    operands = read_operands(equation, shapes, None)

    def seconds(order):
        steps, _ = absorb_transposes(make_plan(operands, order=order).steps)
        return estimate_steps(operands, steps).whole

    orders = map("".join, itertools.permutations("abcd"))
    # Both estimate a swap of rows and columns differently.
    assert seconds(None) <= 1.1 * min(map(seconds, orders)) + 1e-6


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("i->i", [(3,)], []),
        ("ij->ji", [(2, 3)], ["transpose"]),
        ("ijk->ki", [(2, 3, 4)], ["reduce_sum", "transpose"]),
        ("ii->i", [(3, 3)], ["diagonal"]),
        ("ii", [(3, 3)], ["diagonal", "reduce_sum"]),
        ("iji->ij", [(3, 2, 3)], ["transpose", "diagonal"]),
        ("ij,jk->ik", [(2, 3), (3, 4)], ["matmul"]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], ["matmul"]),
        # summed early
        ("ija,jk->ik", [(2, 3, 4), (3, 5)], ["reduce_sum", "matmul"]),
        # merged letters are split at the end
        ("abij,bjk->abik", [(2, 3, 4, 5), (3, 5, 2)], ["transpose", "reshape", "matmul"]),
        # matrices of one element
        ("bi,bi->b", [(2, 3), (2, 3)], ["mul", "reduce_sum"]),
        ("i,j->ij", [(2,), (3,)], ["reshape", "mul"]),
        # broadcast: an axis of size 1 stays one
        ("ij,ij->ij", [(2, 1), (1, 3)], ["mul"]),
        ("ij,jk->ik", [(2, 1), (4, 3)], ["reduce_sum", "mul"]),
        # without an element there is nothing to multiply
        ("ij,jk->ik", [(2, 0), (0, 3)], ["reshape", "mul", "reduce_sum"]),
    ],
)
def test_steps_are_those_that_are_needed(equation, shapes, expected):
    found = kinds(decompose_einsum(equation, *shapes))
    assert found[: len(expected)] == expected
    assert set(found[len(expected) :]) <= {"reshape", "transpose"}


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_vectors_are_multiplied_as_matrices(equation, shapes):
    for step in decompose_einsum(equation, *shapes).steps:
        assert step.kind != "matmul" or min(map(len, step.input_axes)) >= 2


def test_bytes_follow_the_type():
    shapes = (2, 3), (3, 4)
    single = decompose_einsum("ij,jk->ik", *shapes)
    assert single.bytes_moved == 4 * (6 + 12 + 8)
    assert decompose_einsum("ij,jk->ik", *shapes, dtype="f64").bytes_moved == 8 * 26
    operands = operands_of(shapes, np.float16)
    assert decompose_einsum("ij,jk->ik", *operands).bytes_moved == 2 * 26


def test_a_diagonal_reads_what_it_writes_and_a_view_nothing():
    plan = decompose_einsum("iij,jk->ik", (5, 5, 3), (3, 2))
    diagonal, product = plan.steps
    assert (diagonal.bytes_moved, diagonal.flop) == (4 * 2 * 15, 0)
    assert product.bytes_moved == 4 * (15 + 6 + 10)
    view, product = decompose_einsum("i,j->ij", (2,), (3,)).steps
    assert (view.kind, view.bytes_moved) == ("reshape", 0)
    assert product.bytes_moved == 4 * (2 + 3 + 6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"order": "ij"}, EinsumError, r"order='ij' is not a permutation of its letters, 'ijk'"),
        ({"order": "ijkk"}, EinsumError, "not a permutation"),
        ({"dtype": "f3"}, InvalidArgumentError, "not an ONNX element type"),
    ],
)
def test_choices_that_do_not_suit_the_equation_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        decompose_einsum("ij,jk->ik", (2, 3), (3, 4), **arguments)


def test_free_sizes_have_no_cost():
    plan = decompose_einsum("bsnh,nhd->bsd", ("batch", None, 4, 5), (4, 5, 6))
    assert (plan.flop, plan.bytes_moved) == (None, None)
    assert [step.shape for step in plan.steps] == [("batch", "s", 20), (20, 6), ("batch", "s", 6)]
    merged = decompose_einsum("bsd,bse->de", ("batch", None, 4), ("batch", None, 5)).steps[0]
    assert merged.shape == (None, 4)
    chains = [decompose_einsum("ab,bc,cd,de->ea", *known) for known in ([], [(16, 16)] * 4)]
    assert len({tuple(step.subscripts for step in plan.steps) for plan in chains}) == 1


def test_operands_have_one_type():
    with pytest.raises(InvalidArgumentError, match="several types: float32, float64"):
        decompose_einsum("i,i->", np.ones(2, np.float32), np.ones(2))
    assert decompose_einsum("i,i->", np.ones(2), 2 * np.ones(2)).operands.dtype == np.float64
    assert decompose_einsum(",->", 2.0, 3.0).operands.shapes == ((), ())
