"""Images and signals."""

import math

import numpy as np
import pytest
import scipy.signal
import scipy.special
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_ort, run_reference

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


IMAGE = floats(1, 2, 5, 6)


SCALES = [[1, 1, 2, 1.5], [1, 1, 0.6, 0.5], [1, 1, 3, 0.5]]


PYTORCH = "pytorch_half_pixel"


TRANSFORMS = ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def resize(opset=19, *, scales=None, sizes=None, **attributes):
    inputs = [None, None, np.int64(sizes)] if sizes else [None, np.float32(scales)]
    return case("Resize", opset, IMAGE, *inputs, **attributes)


RESIZED = [
    *(
        resize(scales=scales, mode=mode, coordinate_transformation_mode=transform)
        for scales in SCALES
        for mode in ("nearest", "linear", "cubic")
        for transform in TRANSFORMS
    ),
    *(
        resize(scales=scales, mode=mode, antialias=1)
        for scales in SCALES
        for mode in ("linear", "cubic")
    ),
    *(
        resize(13, scales=SCALES[1], nearest_mode=mode, coordinate_transformation_mode=transform)
        for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for transform in TRANSFORMS[:3]
    ),
    resize(scales=SCALES[1], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    resize(11, sizes=[1, 2, 7, 3], mode="linear"),
    resize(sizes=[9, 7], mode="linear", axes=[3, 2], extrapolation_value=0.0),
]


OTHERS = [
    case("AffineGrid", 20, floats(2, 2, 3), np.int64([2, 3, 4, 5])),
    case("AffineGrid", 20, floats(2, 3, 4), np.int64([2, 3, 4, 5, 6]), align_corners=1),
    case("Col2Im", 18, floats(1, 8, 9), np.int64([4, 4]), np.int64([2, 2])),
    case("Col2Im", 18, floats(1, 8, 25), np.int64([4, 4]), np.int64([2, 2]), pads=[1, 1, 1, 1]),
    case("Det", 22, floats(2, 3, 3)),
]


@pytest.mark.parametrize("case", [*RESIZED, *OTHERS], ids=str)
def test_interpolation(case):
    assert_agrees(case, run_reference)


@pytest.mark.parametrize(
    "case",
    [
        resize(scales=SCALES[1], mode="cubic", coordinate_transformation_mode=PYTORCH),
        resize(sizes=[1, 2, 1, 1], mode="cubic", coordinate_transformation_mode=PYTORCH),
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


def cubic_by_hand(x, width, size, a, exclude):
    """Interpolate the last axis to a size, in float64, from the formulas of the specification."""

    def weight(d):
        d = abs(d)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

    last = x.shape[-1] - 1
    columns = []
    for i in range(size):
        place = i * last / (width - 1)
        taps = range(math.floor(place) - 1, math.floor(place) + 3)
        kept = [t for t in taps if not exclude or 0 <= t <= last]
        total = sum(weight(t - place) for t in kept)
        read = (weight(t - place) / total * x[..., min(max(t, 0), last)] for t in kept)
        columns.append(sum(read))
    return np.stack(columns, -1)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("a", [-0.75, -0.5])
@pytest.mark.parametrize("scale", [0.7, 1.3, 1.7, 2.0, 2.9])
def test_aligned_corners_have_the_width_that_the_scale_gives(scale, a, exclude):
    """The tests of ONNX do not round it; ONNX Runtime and torch.nn.functional do."""
    width = 6 * float(np.float32(scale))
    expected = cubic_by_hand(IMAGE.astype("f8"), width, int(width), a, exclude)
    options = {"coordinate_transformation_mode": "align_corners", "exclude_outside": exclude}
    called = resize(scales=[1, 1, 1, scale], mode="cubic", cubic_coeff_a=a, **options)
    assert_same([expected.astype("f4")], run_kernel(called))
    assert_agrees(called, run_reference)


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


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("name", ["Hann", "Hamming", "Blackman"])
def test_windows(name, periodic):
    shape = ("general_hamming", 25 / 46) if name == "Hamming" else name.lower()
    expected = scipy.signal.get_window(shape, 10, fftbins=bool(periodic))
    called = case(f"{name}Window", 17, np.array(10), periodic=periodic, output_datatype=11)
    np.testing.assert_allclose(run_kernel(called)[0], expected, atol=1e-15)
