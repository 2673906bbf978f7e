"""Tests of convolutions, pooling, interpolation and sampling of images, against ONNX Runtime."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_ort, run_reference

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
INDICES = [
    case("MaxPool", 12, floats(2, 3, *SIZES[:rank]), n_outputs=2, kernel_shape=[3] * rank,
         storage_order=order, **options)
    for rank in (1, 2)
    for order in (0, 1)
    for options in pools(rank)
]  # fmt: skip
OLD = [
    case("MaxPool", 1, floats(1, 1, 5, 5), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", 8, floats(1, 1, 5, 5), n_outputs=2, kernel_shape=[2, 2]),
    case("MaxPool", 12, RNG.integers(0, 255, (1, 1, 5, 5)).astype("u1"), kernel_shape=[2, 2],
         pads=[1, 1, 1, 1]),
    case("MaxPool", 12, RNG.integers(-99, 99, (1, 1, 5, 5)).astype("i1"), kernel_shape=[2, 2],
         pads=[1, 1, 1, 1]),
    case("AveragePool", 7, floats(1, 1, 5, 5), kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
    case("GlobalAveragePool", 1, floats(2, 3, 4, 5)),
    case("GlobalMaxPool", 1, floats(2, 3, 4, 5)),
    case("GlobalLpPool", 2, floats(2, 3, 4, 5), p=3),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CONVOLUTIONS, *TRANSPOSED, *POOLS, *INDICES, *OLD], ids=str)
def test_windows(case):
    assert_agrees(case, run_ort)


IMAGE = floats(1, 2, 5, 6)
SCALES = [[1, 1, 2, 1.5], [1, 1, 0.6, 0.5], [1, 1, 3, 0.5]]
PYTORCH = "pytorch_half_pixel"
TRANSFORMS = ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def resize(opset=19, *, roi=None, scales=None, sizes=None, **attributes):
    given = [None if v is None else np.float32(v) for v in (roi, scales)]
    inputs = [*given, np.int64(sizes)] if sizes else given
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
    resize(sizes=[9, 7], mode="linear", axes=[3, 2], keep_aspect_ratio_policy="not_smaller"),
    *(
        resize(
            13,
            roi=[0, 0, 0.2, 0.3, 1, 1, 0.8, 1.4],
            sizes=[1, 2, 4, 7],
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=9.0,
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    case("Upsample", 9, IMAGE, np.float32([1, 1, 2, 3])),
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
        case("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
        case("Upsample", 9, IMAGE, np.float32([1, 1, 2, 3]), mode="linear"),
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


CORNERS = np.sort(RNG.random((2, 8, 2, 2)), 2).reshape(2, 8, 4).astype("f4")
QUALITY = RNG.random((2, 3, 8)).astype("f4")


@pytest.mark.parametrize("limits", [(), (4,), (4, 0.3), (4, 0.3, 0.5)])
@pytest.mark.parametrize("centred", [0, 1])
def test_boxes_that_overlap(centred, limits):
    types = (np.int64, np.float32, np.float32)
    given = [kind([value]) for kind, value in zip(types, limits, strict=False)]
    called = case("NonMaxSuppression", 11, CORNERS, QUALITY, *given, center_point_box=centred)
    assert_agrees(called, run_ort)


def test_unpooling_puts_back_what_was_pooled():
    x = floats(1, 1, 4, 4)
    pooled = case("MaxPool", 12, x, n_outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    largest, places = run_kernel(pooled)
    got = run_kernel(case("MaxUnpool", 11, largest, places, kernel_shape=[2, 2], strides=[2, 2]))
    assert_same([np.where(np.isin(x, largest), x, 0)], got)
