"""Candidates of an equation: what they compute, which ones there are."""

import itertools

import numpy as np
import pytest
from einsum_cases import full_range, wrapped

from ortmeter.einsum import decompose_einsum
from ortmeter.einsum.parse import read_operands
from ortmeter.einsum.search import distinct_orders, list_candidates
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

SEED = "bsnh,btnh->bnts"
CPU = Provider("cpu", 0)
EQUATIONS = [
    # attention
    (SEED, [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("bnst,btnh->bsnh", [(2, 3, 4, 5), (2, 5, 3, 6)]),
    # transpositions that move elements one by one, which are split
    ("ij,kl->ljki", [(48, 32), (2, 40)]),
    ("abcd->dcba", [(12, 10, 14, 16)]),
    ("abcd,e->edcba", [(12, 10, 14, 16), (2,)]),
    # small products, also as a product then a sum
    ("bh,bh->b", [(4, 5), (4, 5)]),
    ("ij,ij->", [(4, 5), (4, 5)]),
    # diagonal, broadcasting, scalar, size 0
    ("aab,b->a", [(3, 3, 4), (4,)]),
    ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
    ("...ij,...jk", [(2, 3, 4), (4, 5)]),
    ("ii->", [(4, 4)]),
    ("ij,jk->ik", [(3, 0), (0, 2)]),
    ("abij,j->abi", [(2, 3, 2, 0), (0,)]),
    # several operands
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bcd,def,fgc,ge->a", [(2, 3), (3, 4, 2), (2, 2, 3), (3, 4, 4), (4, 2)]),
]


def draw(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


def candidates_of(equation, shapes):
    return list_candidates(read_operands(equation, shapes, "float32"))


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_every_candidate_computes_the_equation(equation, shapes):
    operands = draw(shapes)
    expected = np.einsum(equation, *operands, dtype=np.float64)
    for candidate in candidates_of(equation, shapes)[:40]:
        session = make_session(candidate.model, provider=CPU)
        names = [node.name for node in session.get_inputs()]
        got = session.run(None, dict(zip(names, operands, strict=True)))[0]
        np.testing.assert_array_equal(got, expected, err_msg=candidate.name)


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
    found = candidates_of("iji->ij", [(0, 2, 0)])
    assert all(c.decomposed for c in found)


def test_the_candidates_are_distinct_and_the_most_promising_is_first():
    found = candidates_of("bsnh,btnh->bnts", [(20,) * 4] * 2)
    assert [c.cost for c in found] == sorted(c.cost for c in found)
    assert len({c.name for c in found}) == len(found)
    written = {c.model.SerializeToString() for c in found}
    assert len(written) == len(found)
    assert [c.name for c in found if not c.decomposed] == ["Einsum"]
    assert any(c.split for c in found)


def test_the_orders_stand_for_all_permutations():
    shapes = [(2, 3, 4, 5), (2, 6, 4, 5)]
    kept = distinct_orders(read_operands(SEED, shapes, None), np.random.default_rng(0))
    assert len(kept) == 4
    graphs = {decompose_einsum(SEED, *shapes, order=order).steps for order in kept}
    for order in map("".join, itertools.permutations("bsnht")):
        assert decompose_einsum(SEED, *shapes, order=order).steps in graphs


def test_orders_are_drawn_when_there_are_too_many():
    operands = read_operands("abcdefgh,abcdefgi->gfedcbahi", [(2,) * 8] * 2, None)
    orders = [distinct_orders(operands, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert 120 <= len(set(orders[0])) <= 240
    assert all(sorted(order) == sorted("abcdefghi") for order in orders[0])
