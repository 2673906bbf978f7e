"""Operators on integers of 8 bits, and the pairs of conversions that stand for them."""

from collections.abc import Mapping

from ortmeter.observatory.case import Case, Values

# Scales of inputs, weights and outputs: sums of products take most of the 256 values.
_X, _W, _Y = 1 / 64, 1 / 1024, 1 / 32
_MIDDLE = {"u8": 128, "i8": 0}
_IMAGES, _SAME = "1,64,28,28", "pads = [1,1,1,1]"


def _case(
    op: str,
    body: str,
    inputs: str,
    variant: str = "",
    kind: str = "u8",
    *,
    outputs: str = "T Y",
    opset: int = 13,
    values: Mapping[str, Values] | None = None,
) -> Case:
    """Write a case with the scales (S) and zero points (Z) above, unless *values* has others."""
    names = [part.split()[-1] for part in inputs.split(", ")]
    usual: dict[str, Values] = {"SX": _X, "SW": _W, "SY": _Y, "ZW": 0}
    usual |= {"ZX": _MIDDLE[kind], "ZY": _MIDDLE[kind]} if kind in _MIDDLE else {}
    chosen = {name: value for name, value in (usual | dict(values or {})).items() if name in names}
    weights = " ".join(name for name in names if name in ("W", "B"))
    return Case(op, body, inputs, variant, kind, outputs, chosen, weights, opset)


def _per_channel(count: int) -> list[float]:
    return [_W * (1 + rank % 4) / 2 for rank in range(count)]


_CONVERSIONS = (
    *(
        _case(
            "QuantizeLinear", "Y = QuantizeLinear(X, SY, ZY)",
            f"f32[{_IMAGES}] X, f32[] SY, T[] ZY", "per tensor", kind,
        )
        for kind in _MIDDLE
    ),
    _case(
        "DequantizeLinear", "Y = DequantizeLinear(X, SX, ZX)",
        f"T[{_IMAGES}] X, f32[] SX, T[] ZX", "per tensor", outputs="f32 Y",
    ),
    _case(
        "QuantizeLinear", "Y = QuantizeLinear<axis = 0>(X, SX, Z)",
        "f32[256,256] X, f32[256] SX, T[256] Z", "per row", "i8",
        values={"SX": [32 * value for value in _per_channel(256)], "Z": [0] * 256},
    ),
    _case(
        "DequantizeLinear", "Y = DequantizeLinear<axis = 0>(X, SX, Z)",
        "T[256,256] X, f32[256] SX, T[256] Z", "per row", "i8", outputs="f32 Y",
        values={"SX": _per_channel(256), "Z": [0] * 256},
    ),
    _case(
        "DequantizeLinear", "Y = DequantizeLinear<axis = 0, block_size = 32>(X, S)",
        "T[256,256] X, f32[8,256] S", "blocks of 32", "i8", outputs="f32 Y",
        opset=21, values={"S": "positive"},
    ),
    _case(
        "QuantizeLinear", "Y = QuantizeLinear(X, S, ZY)", f"f16[{_IMAGES}] X, f16[] S, T[] ZY",
        "per tensor from float16", opset=19, values={"S": _Y},
    ),
    _case(
        "DynamicQuantizeLinear", "Y, S, Z = DynamicQuantizeLinear(X)", "T[1,128,512] X",
        "", "f32", outputs="u8 Y, f32 S, u8 Z",
    ),
)  # fmt: skip

_LINEAR = "X, SX, ZX, W, SW, ZW, SY, ZY"
_SCALES = "f32[] SX, T[] ZX, f32[] SW, i8[] ZW, f32[] SY, T[] ZY"
_COLUMNS = "f32[] SX, T[] ZX, f32[256] SW, i8[256] ZW, f32[] SY, T[] ZY"
_BY_COLUMN: dict[str, Values] = {"SW": _per_channel(256), "ZW": [0] * 256}
_PRODUCTS = (
    *(
        _case(
            "QLinearMatMul", f"Y = QLinearMatMul({_LINEAR})",
            f"T[64,256] X, i8[256,256] W, {_SCALES}", "64 rows", kind,
        )
        for kind in _MIDDLE
    ),
    _case(
        "QLinearMatMul", f"Y = QLinearMatMul({_LINEAR})",
        f"T[64,256] X, i8[256,256] W, {_COLUMNS}", "64 rows per column", values=_BY_COLUMN,
    ),
    _case(
        "QLinearMatMul", f"Y = QLinearMatMul({_LINEAR})",
        f"T[1,512] X, i8[512,512] W, {_SCALES}", "one row",
    ),
    _case(
        "MatMulInteger", "Y = MatMulInteger(X, W, ZX)", "T[64,256] X, i8[256,256] W, T[] ZX",
        "by a constant", outputs="i32 Y",
    ),
    _case(
        "MatMulInteger", "Y = MatMulInteger(X, Z, ZX)", "T[64,256] X, T[256,256] Z, T[] ZX",
        "by a variable", outputs="i32 Y",
    ),
    _case(
        "DynamicQuantizeMatMul", "Y = com.microsoft.DynamicQuantizeMatMul(X, W, SW, ZW, B)",
        "T[64,256] X, i8[256,256] W, f32[] SW, i8[] ZW, f32[256] B", "64 rows", "f32",
    ),
    _case(
        "MatMulIntegerToFloat", "Y = com.microsoft.MatMulIntegerToFloat(X, W, SX, SW, ZX, ZW, B)",
        "T[64,256] X, i8[256,256] W, f32[] SX, f32[] SW, T[] ZX, i8[] ZW, f32[256] B",
        "64 rows", outputs="f32 Y",
    ),
    _case(
        "QGemm", "Y = com.microsoft.QGemm<transB = 1>(X, SX, ZX, W, SW, ZW, C, SY, ZY)",
        f"T[64,256] X, i8[256,256] W, {_SCALES}, i32[256] C", "64 rows",
        values={"C": [8 * rank for rank in range(256)]},
    ),
)  # fmt: skip


def _conv(
    variant: str, w: str, attributes: str, kind: str = "u8", *, per_channel: bool = False
) -> Case:
    count = int(w.split(",", maxsplit=1)[0])
    size = count if per_channel else ""
    values: dict[str, Values] = {"C": [8 * rank for rank in range(count)]}
    if per_channel:
        values |= {"SW": _per_channel(count), "ZW": [0] * count}
    return _case(
        "QLinearConv", f"Y = QLinearConv<{attributes}>({_LINEAR}, C)",
        f"T[1,32,28,28] X, i8[{w}] W, f32[] SX, T[] ZX, f32[{size}] SW, i8[{size}] ZW, f32[] SY, "
        f"T[] ZY, i32[{count}] C",
        variant, kind, values=values,
    )  # fmt: skip


_CONVOLUTIONS = (
    *(_conv("3x3", "32,32,3,3", _SAME, kind) for kind in _MIDDLE),
    _conv("3x3 per channel", "32,32,3,3", _SAME, per_channel=True),
    _conv("1x1", "64,32,1,1", "strides = [1,1]"),
    _conv("depthwise 3x3 per channel", "32,1,3,3", f"group = 32, {_SAME}", per_channel=True),
    _case(
        "ConvInteger", f"Y = ConvInteger<{_SAME}>(X, W, ZX)",
        "T[1,16,28,28] X, u8[16,16,3,3] W, T[] ZX", "3x3", outputs="i32[1,16,28,28] Y",
    ),
)  # fmt: skip


def _pair(name: str, scale: str = "SX, ZX") -> str:
    return f"{name}q = QuantizeLinear({name}, {scale}) {name}d = DequantizeLinear({name}q, {scale})"


_ENDS = "f32[] SX, T[] ZX, f32[] SY, T[] ZY"
_OUTPUT = "Yq = QuantizeLinear(R, SY, ZY) Y = DequantizeLinear(Yq, SY, ZY)"
_CONSTANT = "Wd = DequantizeLinear(W, SW, ZW)"
_PAIRS = (
    _case(
        "Conv", f"{_pair('X')} {_CONSTANT} R = Conv<{_SAME}>(Xd, Wd) {_OUTPUT}",
        f"f32[1,32,28,28] X, i8[32,32,3,3] W, {_SCALES}", "3x3 between pairs", outputs="f32 Y",
    ),
    _case(
        "MatMul", f"{_pair('X')} {_CONSTANT} R = MatMul(Xd, Wd) {_OUTPUT}",
        f"f32[64,256] X, i8[256,256] W, {_SCALES}", "between pairs", outputs="f32 Y",
    ),
    _case(
        "MatMul", f"{_CONSTANT} Y = MatMul(X, Wd)",
        "T[64,256] X, i8[256,256] W, f32[] SW, i8[] ZW", "weights of int8", "f32",
    ),
    _case(
        "Add", f"{_pair('X')} {_pair('Z')} R = Add(Xd, Zd) {_OUTPUT}",
        f"f32[{_IMAGES}] X, f32[{_IMAGES}] Z, {_ENDS}", "between pairs", outputs="f32 Y",
    ),
    _case(
        "Relu", f"{_pair('X')} R = Relu(Xd) {_OUTPUT}", f"f32[{_IMAGES}] X, {_ENDS}",
        "between pairs", outputs="f32 Y",
    ),
)  # fmt: skip

_UNARY = "X, SX, ZX, SY, ZY"
_ELEMENTWISE = (
    *(
        _case(
            op, f"Y = com.microsoft.{op}(X, SX, ZX, A, SA, ZA, SY, ZY)",
            f"T[{_IMAGES}] X, T[{other}] A, f32[] SA, T[] ZA, {_ENDS}", variant,
            values={"SA": _X, "ZA": 128, "SY": 1 / 16},
        )
        for op, variant, other in (
            ("QLinearAdd", "same", _IMAGES),
            ("QLinearAdd", "scalar", "1"),
            ("QLinearMul", "same", _IMAGES),
        )
    ),
    _case(
        "QLinearAveragePool",
        f"Y = com.microsoft.QLinearAveragePool<kernel_shape = [3,3], {_SAME}>({_UNARY})",
        f"T[{_IMAGES}] X, {_ENDS}", "3x3",
    ),
    _case(
        "QLinearGlobalAveragePool",
        f"Y = com.microsoft.QLinearGlobalAveragePool<channels_last = 0>({_UNARY})",
        f"T[1,256,14,14] X, {_ENDS}", values={"SX": 1 / 32, "SY": 1 / 256},
    ),
    _case(
        "QLinearSigmoid", f"Y = com.microsoft.QLinearSigmoid({_UNARY})", f"T[{_IMAGES}] X, {_ENDS}",
        values={"SX": 1 / 32, "SY": 1 / 256, "ZY": 0},
    ),
    _case(
        "QLinearSoftmax", f"Y = com.microsoft.QLinearSoftmax<axis = 1, opset = 13>({_UNARY})",
        f"T[128,64] X, {_ENDS}", "last axis", values={"SX": 1 / 128, "SY": 1 / 2048, "ZY": 0},
    ),
    _case(
        "QLinearConcat",
        "Y = com.microsoft.QLinearConcat<axis = 1>(SY, ZY, X, SX, ZX, A, SY, ZY)",
        f"T[{_IMAGES}] X, T[{_IMAGES}] A, {_ENDS}", "channels",
    ),
    _case(
        "NhwcMaxPool",
        "Y = com.microsoft.NhwcMaxPool<kernel_shape = [3,3], strides = [2,2]>(X)",
        "T[1,28,28,64] X", "3x3",
    ),
)  # fmt: skip

CASES = (*_CONVERSIONS, *_PRODUCTS, *_CONVOLUTIONS, *_PAIRS, *_ELEMENTWISE)
