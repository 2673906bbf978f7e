import re

import numpy as np
import pytest
from einsum_cases import EQUATIONS

from ortmeter.einsum import EinsumError, decompose_einsum, einsum_model, optimize_einsum
from ortmeter.einsum.parse import parse_equation
from ortmeter.errors import InvalidArgumentError, OrtMeterError


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_the_explicit_equation_is_the_same(equation, shapes):
    parsed = parse_equation(equation, tuple(map(len, shapes)))
    arrays = [np.arange(np.prod(s), dtype=np.float64).reshape(s) for s in shapes]
    expected = np.einsum(equation, *arrays)
    np.testing.assert_array_equal(np.einsum(str(parsed), *arrays), expected)


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        # implicit: letters that appear once, in the order of NumPy, upper case first
        ("ij,jk", [2, 2], "ij,jk->ik"),
        ("ba", [2], "ba->ab"),
        ("aB", [2], "aB->Ba"),
        ("ii", [2], "ii->"),
        # ellipsis: aligned on the right, first in an implicit result
        ("...ij,...jk", [4, 3], "cdij,djk->cdik"),
        ("i...,...j->j...i", [2, 1], "ib,j->jbi"),
        ("...", [0], "->"),
        # spaces
        (" i j , j -> i ", [2, 1], "ij,j->i"),
    ],
)
def test_equations_are_spelled_out(equation, ranks, expected):
    assert str(parse_equation(equation, tuple(ranks))) == expected


def test_an_ellipsis_may_stand_for_many_dimensions():
    parsed = parse_equation("...a->a...", (15,))
    assert len(set(parsed.output)) == 15
    assert parsed.output[1:] == parsed.inputs[0][:-1]


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        # characters
        ("i?->i", [(2,)], "'?' is not accepted at position 1. Accepted: letters a to z and A to"),
        ("i.j->i", [(2, 2)], "'.' is not accepted at position 1"),
        ("ij - > i", [(2, 2)], "'-' is not accepted at position 3"),
        ("é->é", [(2,)], "'é' is not accepted at position 0"),
        ("i1,i", [(2, 2), (2,)], "'1' is not accepted at position 1"),
        ("ij->i->", [(2, 2)], "'-' is not accepted at position 5"),
        ("ij->i,j", [(2, 2)], "',' is not accepted at position 5"),
        # result
        ("ij,jk->iz", [(2, 2), (2, 2)], "Output character 'z' did not appear in the input"),
        ("ij->ii", [(2, 2)], "Output character 'i' appeared more than once in the output"),
        ("...ij->ij", [(2, 2, 2)], "'...' stands for 1 of the dimensions, the result needs it"),
        ("i->......", [(2,)], "a second '...'"),
        # operands
        ("ij,j", [(2, 2)], "the equation has 2 operands, 1 were given"),
        ("i->i", [(2,), (2,)], "the equation has 1 operands, 2 were given"),
        ("ik,ij->i", [(2, 2), (2, 2, 2)], "'ij' has 2 letters, its array has 3 dimensions"),
        ("...ij->...", [(2,)], "'...ij' has 2 letters or more, its array has 1 dimensions"),
        ("...i...->i", [(2, 2)], "a second '...' in the same operand or result. Accepted: one"),
        ("i,...j", [], "shapes are needed to know how many dimensions '...' stands for"),
        # sizes
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j' has sizes 3 and 4. Accepted: equal sizes, or 1"),
        ("ij,kj,jk", [(2, 1), (2, 3), (4, 2)], "'j' has sizes 3 and 4"),
        ("ii->i", [(2, 3)], "'i' has sizes 2 and 3"),
        ("ii->i", [(1, 3)], "'i' has sizes 1 and 3"),
        ("a...,...->...", [(2, 3), (4,)], "a dimension of '...' has sizes 3 and 4"),
    ],
)
def test_what_is_wrong_is_said_after_the_equation(equation, shapes, message):
    with pytest.raises(EinsumError, match=f"^{re.escape(f'{equation!r}: {message}')}") as caught:
        decompose_einsum(equation, *shapes)
    assert caught.value.equation == equation
    assert isinstance(caught.value, OrtMeterError)


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "i", "ii", "i,i,i", "->", ",", "i->", "ij->i,", "..i", "i...", "...,i->...i"],
)
@pytest.mark.parametrize("shapes", [[(2, 2), (2, 2)], [(2,)], [()], [(2,), (3,)], [(), (2, 2)]])
def test_numpy_refuses_the_same(equation, shapes):
    try:
        expected = np.einsum(equation, *(np.ones(shape) for shape in shapes))
    except ValueError:
        with pytest.raises(EinsumError):
            decompose_einsum(equation, *shapes)
    else:
        plan = decompose_einsum(equation, *shapes)
        (output,) = plan.to_onnx().graph.output
        dims = output.type.tensor_type.shape.dim
        assert tuple(dim.dim_value for dim in dims) == expected.shape


@pytest.mark.parametrize("shape", [(2, -1), (2, 1.5), "ij", None, object()])
def test_what_is_not_a_shape_is_refused(shape):
    with pytest.raises(InvalidArgumentError, match="neither an array nor a shape"):
        decompose_einsum("ij->ji", shape)


@pytest.mark.parametrize("given", [(None,), (3,), (["ij", "jk"],), (np.ones((2, 3)), [0, 1])])
@pytest.mark.parametrize("function", [decompose_einsum, einsum_model, optimize_einsum])
def test_an_equation_is_a_text(function, given):
    with pytest.raises(InvalidArgumentError, match="Accepted: a str such as"):
        function(*given)
