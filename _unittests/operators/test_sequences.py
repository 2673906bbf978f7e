"""Sequences and optionals."""

import numpy as np
from kernel_checks import assert_same, case, run_kernel

RNG = np.random.default_rng(0)


X = RNG.standard_normal((5, 6, 7)).astype("f4")


def ints(*values):
    return np.array(values, np.int64)


def test_sequences():
    one, two = np.float32([1]), np.float32([2, 3])
    for called, expected in (
        (case("SequenceConstruct", 11, one, two), [one, two]),
        (case("SequenceEmpty", 11), []),
        (case("SequenceInsert", 11, [one], two), [one, two]),
        (case("SequenceInsert", 11, [one], two, np.array(-1)), [two, one]),
        (case("SequenceErase", 11, [one, two], np.array(0)), [two]),
        (case("SequenceErase", 11, [one, two]), [one]),
        (case("SplitToSequence", 11, X, keepdims=0), list(X)),
        (case("SplitToSequence", 11, X, np.array(2)), [X[:2], X[2:4], X[4:]]),
        (case("SplitToSequence", 24, X, ints(4, 1)), [X[:4], X[4:]]),
    ):
        assert_same(expected, run_kernel(called)[0])
    assert_same([two], run_kernel(case("SequenceAt", 11, [one, two], np.array(-1))))
    assert_same([np.int64(2)], run_kernel(case("SequenceLength", 11, [one, two])))
    joined = case("ConcatFromSequence", 11, [X, X], axis=-1, new_axis=1)
    assert_same([np.stack([X, X], -1)], run_kernel(joined))


def test_optionals():
    for value, present in ((None, False), (X, True), ([X], True)):
        assert_same([np.array(present)], run_kernel(case("OptionalHasElement", 18, value)))
    assert_same([X], run_kernel(case("OptionalGetElement", 18, X)))
