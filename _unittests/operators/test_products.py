"""Products of matrices."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_ort

RNG = np.random.default_rng(0)


def floats(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


def integers(dtype, low, high, *shape):
    return RNG.integers(low, high, shape).astype(dtype)


PRODUCTS = [
    case("Gemm", 7, floats(3, 4), floats(4, 5), floats(5), alpha=0.5, beta=2.0),
    case("Gemm", 11, floats(4, 3), floats(5, 4), transA=1, transB=1),
    case("Gemm", 13, floats(0, 4), floats(4, 5), floats(5)),
    case("MatMul", 13, floats(3, 0), floats(0, 4)),
    case("MatMul", 13, integers("i4", -9, 9, 3, 4), integers("i4", -9, 9, 4, 2)),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case):
    assert_agrees(case, run_ort)


def test_sums_of_products_past_float32():
    """A product of int8 matrices is exact past 2**24, where float32 skips integers."""
    x, y = np.full((1, 30001), 255, np.uint8), np.full((30001, 1), 255, np.uint8)
    x[0, 0] = 1
    got = run_kernel(case("MatMulInteger", 10, x, y))
    assert_same([np.int32([[30000 * 255**2 + 255]])], got)
