"""Operators that move, select or repeat elements."""

from typing import Any

from ortmeter.observatory.case import Case, call, expand

_IMAGES = "T[1,64,28,28] X"
_ROWS = "T[8,64,128] X"
_TABLE = "T[1024,128] X"
_MATRIX = "T[256,128] X"


def _transpose(permutation: str, inputs: str) -> Case:
    return call(f"Transpose<perm = [{','.join(permutation)}]>", inputs, permutation)


def _concat(axis: int) -> Case:
    return call(f"Concat<axis = {axis}>", f"{_ROWS}, T[8,64,128] Z", f"axis {axis}")


def _slice(variant: str, first: int, last: int, axis: int, step: int = 1) -> Case:
    given = f"i64[1] A = {first}, i64[1] B = {last}, i64[1] C = {axis}, i64[1] D = {step}"
    return call("Slice", f"{_ROWS}, {given}", variant)


def _pad(mode: str, **fields: Any) -> Case:
    inputs = f"{_IMAGES}, i64[8] P = 0 0 2 2 0 0 2 2"
    return call(f'Pad<mode = "{mode}">', inputs, mode, **fields)


def _gather(operator: str, variant: str, inputs: str, output: str, below: int) -> Case:
    return call(operator, f"{inputs} = below {below}", variant, outputs=f"T[{output}] Y")


def _resize(variant: str, attributes: str, scale: float = 2, **fields: Any) -> Case:
    body = f"Y = Resize<{attributes}>(X, , S)"
    inputs = f"T[1,32,28,28] X, f32[4] S = 1 1 {scale} {scale}"
    return Case("Resize", body, inputs, variant, **fields)


def _grid_sample(mode: str) -> Case:
    inputs = "T[1,16,28,28] X, T[1,28,28,2] G = unit"
    return call(f'GridSample<mode = "{mode}">', inputs, mode, opset=16)


_LAYOUT = (
    # Transpositions, by permutation.
    *(_transpose(permutation, _ROWS) for permutation in ("021", "102", "120", "201", "210")),
    _transpose("0231", _IMAGES),
    _transpose("0213", "T[1,64,8,64] X"),
    *expand(_transpose("021", _ROWS), "f16", "i8"),
    _transpose("10", "T[32,32] X"),
    _transpose("10", "T[1024,1024] X"),
    _transpose("0231", "T[4,64,112,112] X"),
    # Joining and cutting, by axis.
    *map(_concat, range(3)),
    *expand(_concat(1), "f16", "u8"),
    call(
        "Concat<axis = 1>", ", ".join(f"T[8,16,128] {name}" for name in "ABCDEFGH"), "of eight"
    ),
    call("Concat<axis = 0>", "T[1] X, T[1] Z", "of scalars", "i64"),
    *(call(f"Split<axis = {axis}>", _ROWS, f"axis {axis}", "f32", "T A, T B") for axis in range(3)),
    _slice("first axis", 1, 7, axis=0),
    _slice("last axis", 10, 120, axis=2),
    _slice("last axis step 2", 0, 128, axis=2, step=2),
    _slice("reversed", 127, -1000, axis=2, step=-1),
    *map(_pad, ("constant", "reflect", "edge")),
    _pad("wrap", opset=19),
    _pad("constant", type="i8"),
    # Blocks.
    call('DepthToSpace<blocksize = 2, mode = "DCR">', _IMAGES, "DCR"),
    call('DepthToSpace<blocksize = 2, mode = "CRD">', _IMAGES, "CRD"),
    call("SpaceToDepth<blocksize = 2>", _IMAGES),
    call("ReverseSequence", "T[64,8,128] X, i64[8] L = 8 16 24 32 40 48 56 64"),
    # Only the shape changes.
    call("Reshape", f"{_ROWS}, i64[2] S = 512 128"),
    call("Flatten", _ROWS),
)  # fmt: skip

_PLACES, _UPDATES = "i64[256,1] I", "T[256,128] U"
_ADDED = f"{_TABLE}, {_PLACES} = below 1024, {_UPDATES}"
_INDICES = (
    # Reading.
    *expand(
        _gather("Gather", "rows", f"{_TABLE}, i64[512] I", "512,128", 1024), "f32", "f16", "i8"
    ),
    _gather("Gather", "rows by int32", f"{_TABLE}, i32[512] I", "512,128", 1024),
    _gather("Gather<axis = 1>", "columns", f"{_TABLE}, i64[64] I", "1024,64", 128),
    call("Gather", "T[4] X, i64[] I = below 4", "one", "i64", "T[] Y"),
    _gather("GatherElements", "axis 0", f"{_MATRIX}, i64[256,128] I", "256,128", 256),
    _gather("GatherElements<axis = 1>", "axis 1", f"{_MATRIX}, i64[256,128] I", "256,128", 128),
    _gather("GatherND", "rows", f"{_TABLE}, i64[512,1] I", "512,128", 1024),
    _gather("GatherND", "elements", f"{_TABLE}, i64[4096,2] I", "4096", 128),
    _gather("GatherND<batch_dims = 1>", "batches", f"{_ROWS}, i64[8,32,1] I", "8,32,128", 64),
    call("Compress<axis = 1>", f"{_ROWS}, b8[64] B", "axis 1", outputs="T[8,32,128] Y"),
    *expand(call("NonZero", "T[128,128] X", outputs="i64[2,16384] Y"), "f32", "b8"),
    *expand(call("Unique", "T[4096] X"), "f32", "i64"),
    call(
        "NonMaxSuppression", "f32[1,256,4] B = unit, f32[1,1,256] S = positive, i64[1] M = 64, "
        "f32[1] I = 0.5", outputs="i64[64,3] Y",
    ),
    # Writing.
    call("ScatterElements", f"{_MATRIX}, i64[128,128] I = order, T[128,128] U", "axis 0"),
    call("ScatterElements", "T[1024,512] X, i64[512,512] I = order, T[512,512] U", "axis 0 large"),
    call(
        'ScatterElements<axis = 1, reduction = "add">',
        f"{_MATRIX}, i64[256,64] I = below 128, T[256,64] U", "add axis 1", opset=16,
    ),
    *expand(call("ScatterND", f"{_TABLE}, {_PLACES} = order, {_UPDATES}", "rows"), "f32", "f16"),
    call('ScatterND<reduction = "add">', _ADDED, "add rows", opset=16),
    call('ScatterND<reduction = "max">', _ADDED, "max rows", opset=18),
    call("TensorScatter", "T[2,8,64,64] X, T[2,8,1,64] U, i64[2] I = below 64", opset=24),
)  # fmt: skip

_TILED = "T[128,128] X, i64[2] S = 2 2"
_REPETITIONS = (
    call("Expand", "T[128] X, i64[2] S = 512 128", "rows", outputs="T[512,128] Y"),
    call("Expand", "T[512,1] X, i64[2] S = 512 128", "columns", outputs="T[512,128] Y"),
    *expand(call("Tile", _TILED, "both axes", outputs="T[256,256] Y"), "f32", "u8"),
    call("OneHot", "i64[512] I = below 128, i64[] D = 128, T[2] V = 0 1", outputs="T[512,128] Y"),
    call("Range", "T[] A = 0, T[] L = below 50000, T[] D = 1", type="i64", outputs="T[20000] Y"),
    call("EyeLike", "T[256,256] X"),
    *(call("CumSum", f"{_ROWS}, i64[] A = {axis}", f"axis {axis}") for axis in (0, 2)),
    call("CumProd", f"{_ROWS} = positive, i64[] A = 2", "axis 2", opset=26),
    call("Trilu", _ROWS, "upper", opset=14),
    call("Trilu<upper = 0>", _ROWS, "lower", opset=14),
)  # fmt: skip

_REGIONS = " ".join(f"{i} {i} {i + 12} {i + 10}" for i in range(16))
_SAMPLING = (
    _resize("nearest", 'mode = "nearest"'),
    _resize("linear", 'mode = "linear"'),
    _resize("cubic halved", 'mode = "cubic"', 0.5),
    _resize("nearest halved", 'mode = "nearest"', 0.5),
    _resize("linear halved", 'mode = "linear"', 0.5),
    _resize("linear aligned", 'mode = "linear", coordinate_transformation_mode = "align_corners"'),
    _resize("linear antialias", 'mode = "linear", antialias = 1', 0.5, opset=18),
    _resize(
        "nearest floor",
        'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
        type="u8",
    ),
    Case(
        "Resize", 'Y = Resize<mode = "linear">(X, , , S)',
        "T[1,32,28,28] X, i64[4] S = 1 32 45 45", "linear to a size",
    ),
    *map(_grid_sample, ("bilinear", "nearest", "bicubic")),
    call("AffineGrid", "T[4,2,3] X, i64[4] S = 4 3 32 32", outputs="T[4,32,32,2] Y", opset=20),
    call(
        'RoiAlign<coordinate_transformation_mode = "half_pixel", output_height = 7, '
        "output_width = 7, sampling_ratio = 2>",
        f"T[1,16,28,28] X, T[16,4] R = {_REGIONS}, i64[16] B = 0", opset=16,
    ),
    call("Col2Im", "T[1,144,784] X, i64[2] S = 30 30, i64[2] B = 3 3", opset=18),
)  # fmt: skip

CASES = (*_LAYOUT, *_INDICES, *_REPETITIONS, *_SAMPLING)
