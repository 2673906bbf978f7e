"""Attention and rotary embedding."""

import numpy as np
import pytest
from kernel_checks import assert_same, case, one_node, run_reference

from ortmeter.evaluator import Evaluator

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


ROTATIONS = [
    case("RotaryEmbedding", 23, floats(2, 3, 4, 8), floats(9, 4), floats(9, 4),
         RNG.integers(0, 9, (2, 4)), interleaved=mixed)
    for mixed in (0, 1)
] + [
    case("RotaryEmbedding", 23, floats(2, 4, 24), floats(2, 4, 4), floats(2, 4, 4),
         interleaved=mixed, num_heads=3)
    for mixed in (0, 1)
] + [
    case("RotaryEmbedding", 23, floats(2, 3, 4, 8), floats(2, 4, 2), floats(2, 4, 2),
         rotary_embedding_dim=4)
]  # fmt: skip


@pytest.mark.parametrize("case", ROTATIONS, ids=str)
def test_a_rotation_runs_through_the_body_of_its_schema(case):
    model, feeds = one_node(case)
    evaluator = Evaluator(model, sources=("torch",))
    assert_same(run_reference(case), evaluator.run(None, feeds))
    assert evaluator.assignment["source"].tolist() == ["schema"]
