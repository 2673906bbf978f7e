"""Operators on integers of 8 bits, and the pairs of conversions that stand for them."""

import dataclasses

from ortmeter.observatory.case import Case, Values, call

# Scales of inputs, weights and outputs: sums of products take most of the 256 values.
_X, _W, _Y = 1 / 64, 1 / 1024, 1 / 32
_MIDDLE = {"u8": 128, "i8": 0}
_IMAGES, _SAME = "1,64,28,28", "pads = [1,1,1,1]"


def _with_scales(case: Case) -> Case:
    """Give the scales (S) and zero points (Z) above to the inputs that have no values."""
    names = [tensor.split()[-1] for tensor in case.inputs.split(", ")]
    # Without VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits, which saturate.
    usual: dict[str, Values] = {"SX": _X, "SW": _W, "SY": _Y, "ZW": 0, "W": "7 bits"}
    usual |= {"ZX": _MIDDLE[case.type], "ZY": _MIDDLE[case.type]} if case.type in _MIDDLE else {}
    given = usual | dict(case.values)
    values = {name: value for name, value in given.items() if name in names}
    weights = " ".join(name for name in names if name in ("W", "B"))
    return dataclasses.replace(case, values=values, weights=weights)


def _per_channel(count: int) -> list[float]:
    return [_W * (1 + rank % 4) / 2 for rank in range(count)]


_ROW_SCALES: dict[str, Values] = {"SX": _per_channel(256), "Z": [0] * 256}
_CONVERSIONS = (
    *(
        call("QuantizeLinear", f"f32[{_IMAGES}] X, f32[] SY, T[] ZY", "per tensor", kind)
        for kind in _MIDDLE
    ),
    call(
        "DequantizeLinear", f"T[{_IMAGES}] X, f32[] SX, T[] ZX", "per tensor", "u8", "f32 Y"
    ),
    call(
        "QuantizeLinear<axis = 0>", "f32[256,256] X, f32[256] SX, T[256] Z", "per row", "i8",
        values={**_ROW_SCALES, "SX": [32 * value for value in _per_channel(256)]},
    ),
    call(
        "DequantizeLinear<axis = 0>", "T[256,256] X, f32[256] SX, T[256] Z", "per row", "i8",
        "f32 Y", values=_ROW_SCALES,
    ),
    call(
        "DequantizeLinear<axis = 0, block_size = 32>", "T[256,256] X, f32[8,256] S",
        "blocks of 32", "i8", "f32 Y", values={"S": "positive"}, opset=21,
    ),
    call(
        "QuantizeLinear", f"f16[{_IMAGES}] X, f16[] S, T[] ZY", "per tensor from float16", "u8",
        values={"S": _Y}, opset=19,
    ),
    call("DynamicQuantizeLinear", "T[1,128,512] X", outputs="u8 Y, f32 S, u8 Z"),
)  # fmt: skip


def _linear(x: str, w: str, channels: int | str = "") -> str:
    """Write inputs, each one with its scale and its zero point: weights have one per channel."""
    return (
        f"T[{x}] X, f32[] SX, T[] ZX, i8[{w}] W, f32[{channels}] SW, i8[{channels}] ZW, "
        "f32[] SY, T[] ZY"
    )


_SCALES = "f32[] SX, T[] ZX, f32[] SW, i8[] ZW, f32[] SY, T[] ZY"
_PRODUCTS = (
    *(call("QLinearMatMul", _linear("64,256", "256,256"), "64 rows", kind) for kind in _MIDDLE),
    call(
        "QLinearMatMul", _linear("64,256", "256,256", 256), "64 rows per column", "u8",
        values={"SW": _per_channel(256), "ZW": [0] * 256},
    ),
    call("QLinearMatMul", _linear("1,512", "512,512"), "one row", "u8"),
    call(
        "MatMulInteger", "T[64,256] X, i8[256,256] W, T[] ZX", "by a constant", "u8", "i32 Y"
    ),
    call("MatMulInteger", "T[64,256] X, T[256,256] Z, T[] ZX", "by a variable", "u8", "i32 Y"),
    call(
        "com.microsoft.DynamicQuantizeMatMul",
        "T[64,256] X, i8[256,256] W, f32[] SW, i8[] ZW, f32[256] B", "64 rows",
    ),
    call(
        "com.microsoft.MatMulIntegerToFloat",
        "T[64,256] X, i8[256,256] W, f32[] SX, f32[] SW, T[] ZX, i8[] ZW, f32[256] B",
        "64 rows", "u8", "f32 Y",
    ),
    Case(
        "QGemm", "Y = com.microsoft.QGemm<transB = 1>(X, SX, ZX, W, SW, ZW, C, SY, ZY)",
        f"T[64,256] X, i8[256,256] W, {_SCALES}, i32[256] C", "64 rows", "u8",
        values={"C": [8 * rank for rank in range(256)]},
    ),
)  # fmt: skip


def _conv(
    variant: str, w: str, attributes: str, kind: str = "u8", *, per_channel: bool = False
) -> Case:
    count = int(w.split(",", maxsplit=1)[0])
    inputs = f"{_linear('1,32,28,28', w, count if per_channel else '')}, i32[{count}] C"
    values: dict[str, Values] = {"C": [8 * rank for rank in range(count)]}
    if per_channel:
        values |= {"SW": _per_channel(count), "ZW": [0] * count}
    return call(f"QLinearConv<{attributes}>", inputs, variant, kind, values=values)


_CONVOLUTIONS = (
    *(_conv("3x3", "32,32,3,3", _SAME, kind) for kind in _MIDDLE),
    _conv("3x3 per channel", "32,32,3,3", _SAME, per_channel=True),
    _conv("1x1", "64,32,1,1", "strides = [1,1]"),
    _conv("depthwise 3x3 per channel", "32,1,3,3", f"group = 32, {_SAME}", per_channel=True),
    call(
        f"ConvInteger<{_SAME}>", "T[1,16,28,28] X, u8[16,16,3,3] W, T[] ZX", "3x3", "u8",
        "i32[1,16,28,28] Y",
    ),
)  # fmt: skip


def _pair(name: str) -> str:
    return f"{name}q = QuantizeLinear({name}, SX, ZX) {name}d = DequantizeLinear({name}q, SX, ZX)"


_ENDS = "f32[] SX, T[] ZX, f32[] SY, T[] ZY"
_OUTPUT = "Yq = QuantizeLinear(R, SY, ZY) Y = DequantizeLinear(Yq, SY, ZY)"
_CONSTANT = "Wd = DequantizeLinear(W, SW, ZW)"


def _between(op: str, body: str, inputs: str, variant: str = "between pairs") -> Case:
    return Case(op, f"{_pair('X')} {body} {_OUTPUT}", inputs, variant, "u8", "f32 Y")


_PAIRS = (
    _between(
        "Conv", f"{_CONSTANT} R = Conv<{_SAME}>(Xd, Wd)",
        f"f32[1,32,28,28] X, i8[32,32,3,3] W, {_SCALES}", "3x3 between pairs",
    ),
    _between(
        "MatMul", f"{_CONSTANT} R = MatMul(Xd, Wd)", f"f32[64,256] X, i8[256,256] W, {_SCALES}"
    ),
    Case(
        "MatMul", f"{_CONSTANT} Y = MatMul(X, Wd)",
        "T[64,256] X, i8[256,256] W, f32[] SW, i8[] ZW", "weights of int8",
    ),
    _between(
        "Add", f"{_pair('Z')} R = Add(Xd, Zd)", f"f32[{_IMAGES}] X, f32[{_IMAGES}] Z, {_ENDS}"
    ),
    _between("Relu", "R = Relu(Xd)", f"f32[{_IMAGES}] X, {_ENDS}"),
)  # fmt: skip


def _two(op: str, variant: str, other: str) -> Case:
    inputs = f"T[{_IMAGES}] X, f32[] SX, T[] ZX, T[{other}] A, f32[] SA, T[] ZA, f32[] SY, T[] ZY"
    values = {"SA": _X, "ZA": 128, "SY": 1 / 16}
    return call(f"com.microsoft.{op}", inputs, variant, "u8", values=values)


_UNARY = f"T[{_IMAGES}] X, {_ENDS}"
_ELEMENTWISE = (
    _two("QLinearAdd", "same", _IMAGES),
    _two("QLinearAdd", "scalar", "1"),
    _two("QLinearMul", "same", _IMAGES),
    call(
        f"com.microsoft.QLinearAveragePool<kernel_shape = [3,3], {_SAME}>", _UNARY, "3x3", "u8"
    ),
    call(
        "com.microsoft.QLinearGlobalAveragePool<channels_last = 0>", f"T[1,256,14,14] X, {_ENDS}",
        type="u8", values={"SX": 1 / 32, "SY": 1 / 256},
    ),
    call(
        "com.microsoft.QLinearSigmoid", _UNARY, type="u8",
        values={"SX": 1 / 32, "SY": 1 / 256, "ZY": 0},
    ),
    *(
        call(
            "com.microsoft.QLinearSoftmax<axis = 1, opset = 13>", f"T[128,64] X, {_ENDS}",
            "last axis", kind, values={"SX": 1 / 128, "SY": 1 / 2048, "ZY": least},
        )
        for kind, least in (("u8", 0), ("i8", -128))
    ),
    Case(
        "QLinearConcat",
        "Y = com.microsoft.QLinearConcat<axis = 1>(SY, ZY, X, SX, ZX, A, SY, ZY)",
        f"T[{_IMAGES}] X, T[{_IMAGES}] A, {_ENDS}", "channels", "u8",
    ),
    call(
        "com.microsoft.NhwcMaxPool<kernel_shape = [3,3], strides = [2,2]>", "T[1,28,28,64] X",
        "3x3", "u8",
    ),
)  # fmt: skip

_CASES = (*_CONVERSIONS, *_PRODUCTS, *_CONVOLUTIONS, *_PAIRS, *_ELEMENTWISE)
CASES = tuple(map(_with_scales, _CASES))
