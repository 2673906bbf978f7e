"""Candidates of an equation: what they compute, which ones there are."""

import numpy as np
import pytest
from einsum_cases import EQUATIONS, assert_same, full_range, operands_of, oracle, wrapped

from ortmeter.einsum.parse import read_operands
from ortmeter.einsum.search import list_candidates, list_orders
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

CPU = Provider("cpu", 0)


@pytest.mark.parametrize(
    ("equation", "shapes"), [*EQUATIONS[::3], ("abcd->dcba", [(12, 10, 8, 6)])]
)
def test_every_candidate_computes_the_equation(equation, shapes):
    operands = operands_of(shapes)
    for candidate in list_candidates(read_operands(equation, operands, None))[:40]:
        session = make_session(candidate.model, provider=CPU)
        got = session.run(None, candidate.plan.feeds(*operands))[0]
        assert_same(got, oracle(equation, operands), candidate.name)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("equation", "shapes", "has_einsum"),
    [
        ("ij,jk->ik", [(3, 9), (9, 4)], True),
        ("bi,bi->b", [(3, 9), (3, 9)], True),
        ("iij->ji", [(3, 3, 2)], True),
        # letters that Einsum sums in one operand
        ("ij->i", [(3, 9)], False),
        ("ii", [(9, 9)], False),
        ("ija,jk->ik", [(2, 3, 9), (3, 5)], False),
        ("ij,jk->ik", [(3, 1), (9, 4)], False),
        ("ij,ij,j->i", [(3, 9), (3, 9), (1,)], False),
    ],
)
def test_every_candidate_wraps_integers_around(dtype, equation, shapes, has_einsum):
    operands = full_range(shapes, dtype)
    expected = wrapped(equation, operands)
    found = list_candidates(read_operands(equation, operands, None))
    assert any(not c.decomposed for c in found) == has_einsum
    for candidate in found:
        session = make_session(candidate.model, provider=CPU)
        got = session.run(None, candidate.plan.feeds(*operands))[0]
        np.testing.assert_array_equal(got, expected, err_msg=candidate.name)


def test_einsum_is_no_candidate_for_empty_operands():
    """A diagonal of nothing may end the process."""
    found = list_candidates(read_operands("iji->ij", [(0, 2, 0)], None))
    assert all(c.decomposed for c in found)


def test_the_candidates_are_distinct_and_the_most_promising_is_first():
    found = list_candidates(read_operands("bsnh,btnh->bnts", [(20,) * 4] * 2, None))
    assert [c.cost for c in found] == sorted(c.cost for c in found)
    assert len({c.name for c in found}) == len(found)
    written = {c.model.SerializeToString() for c in found}
    assert len(written) == len(found)
    assert [c.name for c in found if not c.decomposed] == ["Einsum"]


def test_orders_are_drawn_when_there_are_too_many():
    operands = read_operands("abcdefgh,abcdefgi->gfedcbahi", [(2,) * 8] * 2, None)
    orders = [list_orders(operands, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert len(set(orders[0])) == len(orders[0]) <= 120
    assert all(sorted(order) == sorted("abcdefghi") for order in orders[0])
