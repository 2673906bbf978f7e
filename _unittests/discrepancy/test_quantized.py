"""Products of few bits, beside values computed by hand and brute force."""

import numpy as np
import pytest

from ortmeter.discrepancy import quantized
from ortmeter.discrepancy.quantized import quantized_matmul_bound, saturated_matmul
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("x", "w", "expected", "pairs"),
    [
        ([255, 255], [127, 127], 32767, 1),  # 64770
        ([255, 255], [-128, -128], -32768, 1),  # -65280
        ([255, 255], [127, -128], -255, 0),
        ([129, 129], [127, 127], 32766, 0),  # the largest sum that fits
        ([255, 255, 255], [127, 127, 127], 32767 + 255 * 127, 1),  # the last pair has one product
        ([255, 0, 255, 0], [127, 0, 127, 0], 2 * 255 * 127, 0),  # no pair is full
    ],
)
def test_pairs_by_hand(x, w, expected, pairs):
    got, saturated = saturated_matmul(np.uint8([x]), np.int8(w)[:, None])
    assert (got.tolist(), saturated) == ([[expected]], pairs)


def test_small_numbers_are_exact():
    x = RNG.integers(0, 256, (5, 33)).astype(np.uint8)
    w = RNG.integers(-63, 64, (33, 7)).astype(np.int8)  # 7 bits: 2 * 255 * 63 fits
    got, saturated = saturated_matmul(x, w)
    assert saturated == 0
    assert np.array_equal(got, x.astype(int) @ w.astype(int))


def test_rows_in_parts_give_the_same(monkeypatch):
    x = RNG.integers(0, 256, (5, 32)).astype(np.uint8)
    w = RNG.integers(-128, 128, (32, 7)).astype(np.int8)
    expected, pairs = saturated_matmul(x, w)
    assert pairs > 0
    monkeypatch.setattr(quantized, "_ROWS", 1)
    got, same = saturated_matmul(x, w)
    assert np.array_equal(got, expected)
    assert same == pairs


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (np.int8([[1]]), np.int8([[1]])),
        (np.uint8([[1]]), np.uint8([[1]])),
        (np.uint8([1]), np.int8([[1]])),
        (np.uint8([[1, 2]]), np.int8([[1]])),
    ],
)
def test_other_operands_are_refused(x, w):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        saturated_matmul(x, w)


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


@pytest.mark.parametrize("grids", [(8, 8), (8, 1, None)])
def test_wrong_grids_are_refused(grids):
    with pytest.raises(InvalidArgumentError, match="Accepted: three, with 2 bits"):
        quantized_matmul_bound(np.eye(2), np.eye(2), grids)
