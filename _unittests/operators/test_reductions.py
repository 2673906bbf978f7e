"""Tests of reductions, positions of extremes, sorting and accumulation, opset by opset."""

import math

import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_reference

RNG = np.random.default_rng(0)


X = RNG.standard_normal((2, 3, 4)).astype("f4")


NO_AXES = np.zeros(0, np.int64)


# Operator -> the reduction of |x| + 1 in float64; axes is a tuple.
REDUCTIONS = {
    "ReduceL1": lambda x, axes, keep: np.abs(x).sum(axes, keepdims=keep),
    "ReduceL2": lambda x, axes, keep: np.sqrt((x * x).sum(axes, keepdims=keep)),
    "ReduceLogSum": lambda x, axes, keep: np.log(x.sum(axes, keepdims=keep)),
    "ReduceLogSumExp": lambda x, axes, keep: np.log(np.exp(x).sum(axes, keepdims=keep)),
    "ReduceMax": lambda x, axes, keep: x.max(axes, keepdims=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdims=keep),
    "ReduceMin": lambda x, axes, keep: x.min(axes, keepdims=keep),
    "ReduceProd": lambda x, axes, keep: x.prod(axes, keepdims=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdims=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdims=keep),
}


DTYPES = ["float16", "float32", "float64", "int32", "int64"]


def check(op_type, dtype, opset, dims, *inputs, keepdims=1, **attributes):
    x = (np.abs(X) * 2 + 1).astype(dtype)
    expected = REDUCTIONS[op_type](x.astype("f8"), dims, bool(keepdims))
    with np.errstate(over="ignore"):  # a product of halves
        expected = expected.astype(dtype)
    called = case(op_type, opset, x, *inputs, keepdims=keepdims, **attributes)
    assert_same([expected], run_kernel(called))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_axes_as_an_attribute_then_as_an_input(op_type, dtype, keepdims):
    check(op_type, dtype, 11, (0, 2), keepdims=keepdims, axes=[0, -1])
    check(op_type, dtype, 18, (0, 2), np.int64([0, -1]), keepdims=keepdims)
    check(op_type, dtype, 11, (0, 1, 2), keepdims=keepdims)
    check(op_type, dtype, 18, (0, 1, 2), keepdims=keepdims)
    check(op_type, dtype, 18, (0, 1, 2), NO_AXES, keepdims=keepdims)


@pytest.mark.parametrize("inputs", [(), (NO_AXES,)], ids=["absent", "empty"])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_no_axes_may_mean_no_reduction(op_type, inputs):
    """The steps around the reduction, a square or a logarithm, are done all the same."""
    check(op_type, "float32", 18, (), *inputs, noop_with_empty_axes=1)


def test_the_axes_of_a_sum_became_an_input_before_those_of_the_others():
    check("ReduceSum", "float32", 12, (1,), axes=[1])
    check("ReduceSum", "float32", 13, (1,), np.int64([1]))
    check("ReduceMax", "float32", 17, (1,), axes=[1])


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -math.inf),
        ("ReduceMin", math.inf),
        ("ReduceL2", 0),
        ("ReduceLogSumExp", -math.inf),
    ],
)
def test_reduction_of_nothing(op_type, expected):
    empty = np.zeros((2, 0, 3), "f4")
    assert_same(
        [np.full((2, 1, 3), expected, "f4")], run_kernel(case(op_type, 20, empty, np.int64([1])))
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "uint32", "uint64"])
@pytest.mark.parametrize(("op_type", "fill"), [("ReduceMax", "min"), ("ReduceMin", "max")])
def test_extremes_of_no_integer(op_type, fill, dtype):
    limit = {"min": False, "max": True} if dtype == "bool" else vars(Limits(dtype))
    got = run_kernel(case(op_type, 20, np.zeros((2, 0), dtype), np.int64([1]), keepdims=0))
    assert_same([np.full(2, limit[fill], dtype)], got)


class Limits:
    def __init__(self, dtype):
        self.min, self.max = np.iinfo(dtype).min, np.iinfo(dtype).max


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_the_first_or_the_last_of_equals(op_type, axis, last, dtype):
    x = RNG.integers(0, 3, (4, 5, 6)).astype(dtype)
    assert_agrees(case(op_type, 13, x, axis=axis, select_last_index=last), run_reference)
    assert_agrees(case(op_type, 11, x, axis=axis, keepdims=0), run_reference)


def test_an_exclusive_sum_is_not_a_difference():
    x = np.float32([1, 1e10, math.inf, 2])
    (got,) = run_kernel(case("CumSum", 14, x, np.array(0), exclusive=1))
    np.testing.assert_array_equal(got, np.float32([0, 1, 1e10, math.inf]))


def test_halves_accumulate_in_a_wider_type():
    ones = np.ones(4096, np.float16)  # 2048 + 1 is 2048 in float16
    assert run_kernel(case("ReduceSum", 13, ones, np.int64([0])))[0] == 4096
