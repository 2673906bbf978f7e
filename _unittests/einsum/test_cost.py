"""Estimated times: which transpositions are slow, which two replace one."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmeter.einsum import decompose_einsum
from ortmeter.einsum.cost import (
    estimate_einsum,
    estimate_steps,
    merge_axes,
    split_transpose,
    transpose_seconds,
)
from ortmeter.einsum.parse import read_operands

shapes_and_orders = st.lists(st.integers(1, 4), min_size=1, max_size=6).flatmap(
    lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))))
)


@settings(max_examples=100, deadline=None)
@given(shapes_and_orders)
def test_merged_axes_are_the_same_transposition(drawn):
    shape, order = drawn
    array = np.arange(np.prod(shape)).reshape(shape)
    merged, moved = merge_axes(shape, order)
    expected = np.transpose(array, order)
    got = np.transpose(array.reshape(merged), moved)
    np.testing.assert_array_equal(got.ravel(), expected.ravel())
    assert 1 not in merged
    assert not any(b == a + 1 for a, b in itertools.pairwise(moved))


@settings(max_examples=100, deadline=None)
@given(shapes_and_orders)
def test_two_transpositions_make_one(drawn):
    shape, order = (tuple(16 * size for size in drawn[0]), drawn[1])
    split = split_transpose(shape, tuple(order), 4)
    if split is None:
        return
    array = np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)
    expected = np.transpose(array, order).shape
    tags = np.arange(len(split.shape))
    assert tags[list(split.first)][list(split.second)].tolist() == list(merge_axes(shape, order)[1])
    assert np.prod(split.shape) == np.prod(expected)
    assert split.seconds(4) < transpose_seconds(shape, tuple(order), 4)


def test_transpositions_are_told_apart():
    shape = (20, 20, 20, 20)
    seconds = {
        order: transpose_seconds(shape, order, 4) for order in itertools.permutations(range(4))
    }
    kept = {order for order in seconds if order[-1] == 3}
    # One matrix, or a batch of matrices, once the axes that stay side by side are merged.
    tiled = {(0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)}
    scattered = set(seconds) - kept - tiled
    assert min(seconds[order] for order in scattered) > 3 * max(seconds[o] for o in kept | tiled)
    assert min(seconds, key=seconds.get) == (0, 1, 2, 3)
    assert all(split_transpose(shape, tuple(order), 4) for order in scattered)
    assert not any(split_transpose(shape, tuple(order), 4) for order in kept | tiled)


def test_estimates_follow_the_work():
    small, large = (decompose_einsum("ij,jk->ik", (n, n), (n, n)) for n in (64, 256))
    times = [estimate_steps(p.operands, p.steps).whole for p in (small, large)]
    assert 16 < times[1] / times[0] < 64
    plan = decompose_einsum("bij,bjk->bik", (16, 64, 64), (16, 64, 64))
    one, two = (estimate_steps(plan.operands, plan.steps, threads=n).whole for n in (1, 2))
    assert 1.5 < one / two <= 2


def test_the_order_of_the_products_changes_the_estimate_of_einsum():
    ij, jk, kl = (2, 200), (200, 200), (200, 2)
    good = estimate_einsum(read_operands("ij,jk,kl->il", [ij, jk, kl], None))
    bad = estimate_einsum(read_operands("ij,kl,jk->il", [ij, kl, jk], None))
    assert bad > 2 * good
