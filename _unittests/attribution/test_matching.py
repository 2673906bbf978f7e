"""Tests of ortmeter.attribution.matching."""

import itertools

import numpy as np

from ortmeter.attribution.matching import Result, match


def test_pairs_have_the_largest_sum_in_order():
    """Against every monotone matching of two short lists."""
    generator = np.random.default_rng(0)
    ops = ["A", "B"]
    chain = [frozenset(), *(frozenset([i]) for i in range(4))]
    for _ in range(20):
        first, second = (
            [
                Result(f"{side}{i}", "", ops[generator.integers(2)], generator.normal(size=3), read)
                for i, read in enumerate(chain)
            ]
            for side in "ab"
        )
        found = match(first, second)
        assert found == sorted(found)
        assert all(a < b for (_, a), (_, b) in itertools.pairwise(found))
        # Values are far apart: a pair is as good as another of the same operator.
        sizes = [
            len(rows)
            for n in range(6)
            for rows in itertools.combinations(range(5), n)
            for columns in itertools.combinations(range(5), n)
            if all(first[i].op == second[j].op for i, j in zip(rows, columns, strict=True))
        ]
        assert len(found) == max(sizes)


def test_values_count_more_than_operators():
    """A convolution that was fused with its normalization gives the results of this one."""
    value = np.random.default_rng(0).normal(size=64).astype(np.float32)
    first = [Result("c", "", "Conv", value * np.float32(1 + 5e-6)), Result("n", "", "Norm", value)]
    second = [Result("f", "", "Conv", value * np.float32(1 + 4e-7))]
    assert match(first, second) == [(1, 0)]


def test_operators_count_when_values_are_far():
    values = np.random.default_rng(0).normal(size=(3, 64))
    first = [Result("a", "", "Exp", values[0]), Result("b", "", "Abs", values[1])]
    assert match(first, [Result("c", "", "Abs", values[2])]) == [(1, 0)]
    assert match(first, [Result("c", "", "Neg", values[2])]) == []
    assert match(first, [Result("a", "", "Neg", values[2])]) == [(0, 0)]
    assert match(first, [Result("c", "", "Neg", values[2], alias="b")]) == [(1, 0)]
    assert match(first, [Result("c", "", "Abs", values[2][:32])]) == []
