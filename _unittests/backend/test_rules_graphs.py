"""Rules on several nodes at once, and what they reuse or write in several places."""

from dataclasses import replace

import numpy as np
import pytest
from backend_graphs import relative_errors
from backend_patterns import GROUP_QUERY, PATTERNS, half_angles

from ortmeter.backend.rules import RULES
from ortmeter.dtypes import unit_roundoff


@pytest.mark.parametrize(("length", "count"), [(2047, 0), (2048, 1)])
def test_long_sequences_have_their_own_kernel_on_cpu(length, count):
    graph = GROUP_QUERY.replace(
        {"2, 16,": f"1, {length},"},
        **half_angles(length, 8),
        positions=np.arange(length)[None],
    )
    refusals = []
    assert RULES["GroupQuery"].apply(graph.model(), "cpu", refusals) == count
    why = f"GroupQuery at Y: {length} positions: below 2048, Attention of the standard is faster"
    assert [str(refusal) for refusal in refusals] == [why] * (1 - count)


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.rule == "GroupQuery"])
def test_the_kernel_for_long_sequences_is_right_in_32_bits(name):
    """CUDA has no such kernel: what is written there is run here."""
    rule = RULES["GroupQuery"]
    model = PATTERNS[name].graph.model()
    assert replace(rule, fusions=rule.on_cuda).apply(model) == 1
    assert max(relative_errors(PATTERNS[name].graph, model)) <= 16 * unit_roundoff("float")


def test_heads_are_not_shared_in_32_bits_on_cuda():
    refusals = []
    model = PATTERNS["repeated"].graph.model()
    assert RULES["RepeatedHeads"].apply(model, "cuda", refusals) == 0
    assert "slower, except for bfloat16, float16" in refusals[0].reason
