"""Images and signals."""

import numpy as np
from kernel_checks import assert_agrees, case, run_ort

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


def test_a_cubic_grid_of_opset_16():
    grid = case("GridSample", 16, floats(1, 2, 5, 6), floats(1, 3, 3, 2), mode="bicubic")
    assert_agrees(grid, run_ort)
