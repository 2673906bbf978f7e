"""Convolutions and pooling."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, case, run_ort

RNG = np.random.default_rng(0)


SIZES = (7, 8, 6)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


def each(*values, rank):
    """Repeat values for each spatial dimension, one block a value as in pads."""
    return [value for value in values for _ in range(rank)]


def geometries(rank):
    one, two = each(1, rank=rank), each(2, rank=rank)
    return [
        {},
        {"strides": two},
        {"pads": each(1, 2, rank=rank)},
        {"pads": each(1, 1, rank=rank), "dilations": two},
        {"auto_pad": "SAME_UPPER", "strides": two},
        {"auto_pad": "SAME_LOWER", "strides": each(3, rank=rank)},
        {"auto_pad": "VALID", "strides": one},
    ]


CONVOLUTIONS = [
    case("Conv", opset, floats(2, 4, *SIZES[:rank]), floats(6, 2, *[3] * rank), floats(6),
         group=2, **options)
    for rank, opset in ((1, 11), (2, 1), (2, 22), (3, 11))
    for options in geometries(rank)
]  # fmt: skip


def transposed(rank):
    sizes, two, three = SIZES[:rank], each(2, rank=rank), each(3, rank=rank)
    one = each(1, rank=rank)
    less, more = [2 * n - 2 for n in sizes], [2 * n + 1 for n in sizes]
    return [
        {},
        {"strides": two},
        {"pads": each(1, 2, rank=rank), "strides": two},
        {"pads": each(1, 1, rank=rank), "dilations": two},
        {"strides": three, "output_padding": one},
        {"strides": three, "output_padding": two, "pads": each(0, 1, rank=rank)},
        {"strides": two, "output_shape": more},
        {"strides": two, "output_shape": less, "auto_pad": "SAME_UPPER"},
        {"strides": two, "output_shape": less, "auto_pad": "SAME_LOWER"},
        {"strides": two, "auto_pad": "SAME_UPPER"},
        {"strides": two, "auto_pad": "SAME_LOWER"},
    ]


TRANSPOSED = [
    case("ConvTranspose", 11, floats(2, 4, *SIZES[:rank]), floats(4, 3, *[3] * rank), floats(6),
         group=2, **options)
    for rank in (1, 2, 3)
    for options in transposed(rank)
]  # fmt: skip


def pools(rank):
    two = each(2, rank=rank)
    return [
        {},
        {"strides": two},
        {"strides": two, "ceil_mode": 1},
        {"pads": each(1, 2, rank=rank), "strides": two},
        {"pads": each(1, 1, rank=rank), "strides": two, "ceil_mode": 1},
        {"pads": each(2, 2, rank=rank), "strides": each(3, rank=rank), "ceil_mode": 1},
        {"pads": each(0, 1, rank=rank), "strides": each(3, rank=rank), "ceil_mode": 1},
        {"auto_pad": "SAME_UPPER", "strides": two},
        {"auto_pad": "SAME_LOWER", "strides": two},
        {"dilations": two, "pads": each(1, 1, rank=rank)},
    ]


OPERATORS = [("MaxPool", {}), ("LpPool", {"p": 3}), ("AveragePool", {"count_include_pad": 1})]


POOLS = [
    case(op_type, 22, floats(2, 3, *SIZES[:rank]), kernel_shape=[3] * rank, **extra, **options)
    for rank in (1, 2, 3)
    for op_type, extra in [*OPERATORS, ("AveragePool", {})]
    for options in pools(rank)
]


OLD = [
    case("MaxPool", 1, floats(1, 1, 5, 5), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", 8, floats(1, 1, 5, 5), storage_order=0, kernel_shape=[2, 2]),
    case("MaxPool", 12, RNG.integers(-99, 99, (1, 1, 5, 5)).astype("i1"), kernel_shape=[2, 2],
         pads=[1, 1, 1, 1]),
    case("AveragePool", 7, floats(1, 1, 5, 5), kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
    case("GlobalLpPool", 2, floats(2, 3, 4, 5), p=3),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CONVOLUTIONS, *TRANSPOSED, *POOLS, *OLD], ids=str)
def test_windows(case):
    assert_agrees(case, run_ort)
