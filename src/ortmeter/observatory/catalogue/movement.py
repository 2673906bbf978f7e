"""Operators that move, select or repeat elements."""

from collections.abc import Sequence
from typing import Any

from ortmeter.observatory.case import Case, expand

_IMAGES = "T[1,64,28,28] X"
_ROWS = "T[8,64,128] X"
_TABLE = "T[1024,128] X"
_MATRIX = "T[256,128] X"


def _transpose(permutation: str, inputs: str, **fields: Any) -> Case:
    body = f"Y = Transpose<perm = [{','.join(permutation)}]>(X)"
    return Case("Transpose", body, inputs, permutation, **fields)


def _concat(axis: int, output: str, **fields: Any) -> Case:
    body = f"Y = Concat<axis = {axis}>(X, Z)"
    inputs = f"{_ROWS}, T[8,64,128] Z"
    return Case("Concat", body, inputs, f"axis {axis}", outputs=f"T[{output}] Y", **fields)


def _split(axis: int, half: str) -> Case:
    outputs = f"T[{half}] A, T[{half}] B"
    return Case("Split", f"A, B = Split<axis = {axis}>(X)", _ROWS, f"axis {axis}", outputs=outputs)


def _slice(variant: str, output: str, *, axis: int, bounds: tuple[int, int], step: int = 1) -> Case:
    return Case(
        "Slice",
        "Y = Slice(X, A, B, C, D)",
        f"{_ROWS}, i64[1] A, i64[1] B, i64[1] C, i64[1] D",
        variant,
        outputs=f"T[{output}] Y",
        values={"A": bounds[0], "B": bounds[1], "C": axis, "D": step},
    )


def _pad(mode: str, **fields: Any) -> Case:
    body = f'Y = Pad<mode = "{mode}">(X, P)'
    values = {"P": (0, 0, 2, 2, 0, 0, 2, 2)}
    return Case("Pad", body, f"{_IMAGES}, i64[8] P", mode, values=values, **fields)


def _gather(
    op: str, variant: str, inputs: str, output: str, below: int, *, given: str = "", **fields: Any
) -> Case:
    values = {"I": f"below {below}"}
    body = f"Y = {op}{given}(X, I)"
    return Case(op, body, inputs, variant, outputs=f"T[{output}] Y", values=values, **fields)


def _scatter(
    op: str, variant: str, inputs: str, indices: str, *, given: str = "", **fields: Any
) -> Case:
    body = f"Y = {op}{given}(X, I, U)"
    return Case(op, body, inputs, variant, values={"I": indices}, **fields)


def _repeat(op: str, variant: str, input_: str, by: Sequence[int], output: str) -> Case:
    inputs = f"T[{input_}] X, i64[{len(by)}] S"
    outputs = f"T[{output}] Y"
    return Case(op, f"Y = {op}(X, S)", inputs, variant, outputs=outputs, values={"S": by})


def _resize(variant: str, attributes: str, scale: float = 2, **fields: Any) -> Case:
    side = int(28 * scale)
    return Case(
        "Resize",
        f"Y = Resize<{attributes}>(X, , S)",
        "T[1,32,28,28] X, f32[4] S",
        variant,
        outputs=f"T[1,32,{side},{side}] Y",
        values={"S": (1, 1, scale, scale)},
        **fields,
    )


_LAYOUT = (
    # Transpositions, by permutation.
    *(_transpose(permutation, _ROWS) for permutation in ("021", "102", "120", "201", "210")),
    _transpose("0231", _IMAGES),
    _transpose("0213", "T[1,64,8,64] X"),
    *expand(_transpose("021", _ROWS), type=("f16", "i8")),
    _transpose("10", "T[32,32] X"),
    _transpose("10", "T[1024,1024] X"),
    _transpose("0231", "T[4,64,112,112] X"),
    # Joining and cutting, by axis.
    *(_concat(axis, output) for axis, output in enumerate(("16,64,128", "8,128,128", "8,64,256"))),
    *expand(_concat(1, "8,128,128"), type=("f16", "u8")),
    Case(
        "Concat",
        "Y = Concat<axis = 1>(A, B, C, D, E, F, G, H)",
        ", ".join(f"T[8,16,128] {name}" for name in "ABCDEFGH"),
        "of eight",
        outputs="T[8,128,128] Y",
    ),
    Case("Concat", "Y = Concat<axis = 0>(X, Z)", "T[1] X, T[1] Z", "of scalars", "i64"),
    *(_split(axis, half) for axis, half in enumerate(("4,64,128", "8,32,128", "8,64,64"))),
    _slice("first axis", "6,64,128", axis=0, bounds=(1, 7)),
    _slice("last axis", "8,64,110", axis=2, bounds=(10, 120)),
    _slice("last axis step 2", "8,64,64", axis=2, bounds=(0, 128), step=2),
    _slice("reversed", "8,64,128", axis=2, bounds=(127, -1000), step=-1),
    *map(_pad, ("constant", "reflect", "edge")),
    _pad("wrap", opset=19),
    _pad("constant", type="i8"),
    # Blocks.
    *(
        Case("DepthToSpace", f'Y = DepthToSpace<blocksize = 2, mode = "{mode}">(X)', _IMAGES, mode)
        for mode in ("DCR", "CRD")
    ),
    Case("SpaceToDepth", "Y = SpaceToDepth<blocksize = 2>(X)", _IMAGES),
    Case(
        "ReverseSequence",
        "Y = ReverseSequence(X, L)",
        "T[64,8,128] X, i64[8] L",
        values={"L": range(8, 72, 8)},
    ),
    # Only the shape changes.
    Case("Reshape", "Y = Reshape(X, S)", f"{_ROWS}, i64[2] S", values={"S": (512, 128)}),
    Case("Flatten", "Y = Flatten(X)", _ROWS),
)

_INDICES = (
    # Reading.
    *expand(
        _gather("Gather", "rows", f"{_TABLE}, i64[512] I", "512,128", 1024),
        type=("f32", "f16", "i8"),
    ),
    _gather("Gather", "rows by int32", f"{_TABLE}, i32[512] I", "512,128", 1024),
    _gather("Gather", "columns", f"{_TABLE}, i64[64] I", "1024,64", 128, given="<axis = 1>"),
    _gather("Gather", "one", "T[4] X, i64[] I", "", 4, type="i64"),
    _gather("GatherElements", "axis 0", f"{_MATRIX}, i64[256,128] I", "256,128", 256),
    _gather(
        "GatherElements", "axis 1", f"{_MATRIX}, i64[256,128] I", "256,128", 128, given="<axis = 1>"
    ),
    _gather("GatherND", "rows", f"{_TABLE}, i64[512,1] I", "512,128", 1024),
    _gather("GatherND", "elements", f"{_TABLE}, i64[4096,2] I", "4096", 128),
    _gather(
        "GatherND", "batches", f"{_ROWS}, i64[8,32,1] I", "8,32,128", 64, given="<batch_dims = 1>"
    ),
    Case(
        "Compress",
        "Y = Compress<axis = 1>(X, B)",
        f"{_ROWS}, b8[64] B",
        "axis 1",
        outputs="T[8,32,128] Y",
    ),
    *expand(
        Case("NonZero", "Y = NonZero(X)", "T[128,128] X", outputs="i64[2,16384] Y"),
        type=("f32", "b8"),
    ),
    *expand(Case("Unique", "Y = Unique(X)", "T[4096] X"), type=("f32", "i64")),
    Case(
        "NonMaxSuppression",
        "Y = NonMaxSuppression(B, S, M, I)",
        "f32[1,256,4] B, f32[1,1,256] S, i64[1] M, f32[1] I",
        outputs="i64[64,3] Y",
        values={"B": "unit", "S": "positive", "M": 64, "I": 0.5},
    ),
    # Writing.
    _scatter("ScatterElements", "axis 0", f"{_MATRIX}, i64[128,128] I, T[128,128] U", "order"),
    _scatter(
        "ScatterElements",
        "add axis 1",
        f"{_MATRIX}, i64[256,64] I, T[256,64] U",
        "below 128",
        given='<axis = 1, reduction = "add">',
        opset=16,
    ),
    *expand(
        _scatter("ScatterND", "rows", f"{_TABLE}, i64[256,1] I, T[256,128] U", "order"),
        type=("f32", "f16"),
    ),
    *(
        _scatter(
            "ScatterND",
            f"{how} rows",
            f"{_TABLE}, i64[256,1] I, T[256,128] U",
            "below 1024",
            given=f'<reduction = "{how}">',
            opset=opset,
        )
        for how, opset in (("add", 16), ("max", 18))
    ),
    Case(
        "TensorScatter",
        "Y = TensorScatter(X, U, I)",
        "T[2,8,64,64] X, T[2,8,1,64] U, i64[2] I",
        values={"I": "below 64"},
        opset=24,
    ),
)

_REPETITIONS = (
    _repeat("Expand", "rows", "128", (512, 128), "512,128"),
    _repeat("Expand", "columns", "512,1", (512, 128), "512,128"),
    *expand(_repeat("Tile", "both axes", "128,128", (2, 2), "256,256"), type=("f32", "u8")),
    Case(
        "OneHot",
        "Y = OneHot(I, D, V)",
        "i64[512] I, i64[] D, T[2] V",
        outputs="T[512,128] Y",
        values={"I": "below 128", "D": 128, "V": (0, 1)},
    ),
    Case(
        "Range",
        "Y = Range(A, L, D)",
        "T[] A, T[] L, T[] D",
        type="i64",
        outputs="T[20000] Y",
        values={"A": 0, "L": "below 50000", "D": 1},
    ),
    Case("EyeLike", "Y = EyeLike(X)", "T[256,256] X"),
    *(
        Case("CumSum", "Y = CumSum(X, A)", f"{_ROWS}, i64[] A", f"axis {axis}", values={"A": axis})
        for axis in (0, 2)
    ),
    Case("Trilu", "Y = Trilu(X)", _ROWS, "upper", opset=14),
    Case("Trilu", "Y = Trilu<upper = 0>(X)", _ROWS, "lower", opset=14),
)

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
        "Resize",
        'Y = Resize<mode = "linear">(X, , , S)',
        "T[1,32,28,28] X, i64[4] S",
        "linear to a size",
        outputs="T[1,32,45,45] Y",
        values={"S": (1, 32, 45, 45)},
    ),
    *(
        Case(
            "GridSample",
            f'Y = GridSample<mode = "{mode}">(X, G)',
            "T[1,16,28,28] X, T[1,28,28,2] G",
            mode,
            values={"G": "unit"},
            opset=16,
        )
        for mode in ("bilinear", "nearest", "bicubic")
    ),
    Case(
        "AffineGrid",
        "Y = AffineGrid(X, S)",
        "T[4,2,3] X, i64[4] S",
        outputs="T[4,32,32,2] Y",
        values={"S": (4, 3, 32, 32)},
        opset=20,
    ),
    Case(
        "RoiAlign",
        'Y = RoiAlign<coordinate_transformation_mode = "half_pixel", output_height = 7, '
        "output_width = 7, sampling_ratio = 2>(X, R, B)",
        "T[1,16,28,28] X, T[16,4] R, i64[16] B",
        outputs="T[16,16,7,7] Y",
        values={"R": [v for i in range(16) for v in (i, i, i + 12, i + 10)], "B": 0},
        opset=16,
    ),
    Case(
        "Col2Im",
        "Y = Col2Im(X, S, B)",
        "T[1,144,784] X, i64[2] S, i64[2] B",
        outputs="T[1,16,30,30] Y",
        values={"S": (30, 30), "B": (3, 3)},
        opset=18,
    ),
)

CASES = (*_LAYOUT, *_INDICES, *_REPETITIONS, *_SAMPLING)
