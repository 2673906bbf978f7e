"""Images and signals."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, case, run_ort

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


IMAGE = floats(1, 2, 5, 6)


@pytest.mark.parametrize(
    "case",
    [
        *(
            case("GridSample", 20, IMAGE, RNG.uniform(-1.5, 1.5, (1, 3, 3, 2)).astype("f4"),
                 mode=mode, padding_mode=padding, align_corners=corners)
            for mode in ("linear", "nearest", "cubic")
            for padding in ("zeros", "border", "reflection")
            for corners in (0, 1)
        ),
        case("GridSample", 16, IMAGE, floats(1, 3, 3, 2), mode="bicubic"),
    ],
    ids=str,
)  # fmt: skip
def test_grids(case):
    assert_agrees(case, run_ort)
