"""Images and signals."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, case, run_ort, run_reference

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


IMAGE = floats(1, 2, 5, 6)


OTHERS = [
    case("Det", 22, floats(2, 3, 3)),
]


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_images(case):
    assert_agrees(case, run_reference)


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
def test_interpolation_against_onnx_runtime(case):
    assert_agrees(case, run_ort)


SPECTRA = [
    case("DFT", 17, floats(2, 6, 1), axis=1),
    case("DFT", 17, floats(2, 6, 1), axis=1, onesided=1),
    case("DFT", 17, floats(2, 6, 2), axis=1, inverse=1),
    case("DFT", 20, floats(2, 6, 3, 2), None, np.array(1)),
    case("DFT", 20, floats(2, 6, 2), np.array(8)),  # padded
    case("DFT", 20, floats(2, 6, 2), np.array(4)),  # cut
    case("DFT", 20, floats(2, 4, 2), inverse=1, onesided=1),
    case("STFT", 17, floats(1, 20, 1), np.array(4), None, np.array(8)),
    case("STFT", 17, floats(1, 20, 1), np.array(4), floats(8), onesided=0),
    case("STFT", 17, floats(2, 20, 2), np.array(4), floats(8), np.array(8), onesided=0),
]


@pytest.mark.parametrize("case", SPECTRA, ids=str)
def test_spectra(case):
    assert_agrees(case, run_reference)
