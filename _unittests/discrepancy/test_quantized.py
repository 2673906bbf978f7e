"""Low-bit matrix products, beside rounded operands."""

import numpy as np
import pytest

from ortmeter.discrepancy.quantized import quantized_matmul_bound
from ortmeter.dtypes import numpy_dtype

RNG = np.random.default_rng(0)


def rounded(values, grid, offset=0.0):
    """Round to a grid whose zero is moved, or to a type."""
    if grid is None:
        return values
    if isinstance(grid, str):
        return values.astype(numpy_dtype(grid)).astype(float)
    step = np.abs(values).max() / (2 ** (grid - 1) - 1)
    return np.round(values / step + offset) * step - offset * step


@pytest.mark.parametrize(
    "grids",
    [(8, 8, 8), (8, 8, None), (None, 4, None), (8, 4, None), ("float16",) * 3, ("bfloat16",) * 3],
)
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_rounded_products_are_within_their_bound(grids, offset):
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 40), (40, 9)))
    product = rounded(x.astype(float), grids[0], offset) @ rounded(w.astype(float), grids[1])
    error = np.abs(rounded(product, grids[2]) - x.astype(float) @ w.astype(float))
    share = (error / quantized_matmul_bound(x, w, grids)).max()
    assert 0.005 < share < 1


def test_one_bit_less_doubles_the_bound():
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 40), (40, 9)))
    large, small = (quantized_matmul_bound(x, w, (None, bits, None)) for bits in (7, 8))
    assert large / small == pytest.approx(127 / 63, rel=1e-3)
