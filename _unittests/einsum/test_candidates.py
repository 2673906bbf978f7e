"""Candidates of an equation: what they compute, which ones there are."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from einsum_cases import CASES, operands_of

from ortmeter.einsum import decompose_einsum
from ortmeter.einsum.parse import read_operands
from ortmeter.einsum.search import distinct_orders, list_candidates
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

SEED = "bsnh,btnh->bnts"
CPU = Provider("cpu", 0)
# Transpositions that move elements one by one, which are split, then other mechanisms.
EQUATIONS = [
    ("ij,kl->ljki", [(48, 32), (2, 40)]),
    ("abcd->dcba", [(12, 10, 14, 16)]),
    ("abcd,e->edcba", [(12, 10, 14, 16), (2,)]),
    *CASES["product"][-5:],
    *CASES["vector"][-2:],
    *CASES["diagonal"][-2:],
    *CASES["ellipsis"][:1],
    *CASES["broadcast"][:2],
    *CASES["many operands"][:2],
    *CASES["degenerate"][:3],
]


def candidates_of(equation, shapes):
    return list_candidates(read_operands(equation, shapes, "float32"))


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_every_candidate_computes_the_equation(equation, shapes):
    operands = operands_of(shapes)
    expected = np.einsum(equation, *operands, dtype=np.float64)
    for candidate in candidates_of(equation, shapes)[:40]:
        session = make_session(candidate.model, provider=CPU)
        names = [node.name for node in session.get_inputs()]
        got = session.run(None, dict(zip(names, operands, strict=True)))[0]
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


def test_the_candidates_are_the_same_in_every_process():
    code = (
        "from ortmeter.einsum.parse import read_operands;"
        "from ortmeter.einsum.search import list_candidates;"
        "operands = read_operands('bi,ijk,bk->bj', ((4, 6), (6, 5, 7), (4, 7)), None);"
        "print([(c.name, c.cost, c.plan.steps) for c in list_candidates(operands)])"
    )
    told = {
        subprocess.check_output(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True
        )
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "order bijk" in told.pop()
