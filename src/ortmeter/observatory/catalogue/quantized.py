"""Operators on integers of 8 bits, and the pairs of conversions that stand for them."""

import dataclasses

from ortmeter.observatory.case import Case, call, expand

# Scales of inputs, weights and outputs: sums of products take most of the 256 values.
_X, _W, _Y = 1 / 64, 1 / 1024, 1 / 32
_MIDDLE = {"u8": 128, "i8": 0}
_IMAGES, _SAME = "1,64,28,28", "pads = [1,1,1,1]"
# Without VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits, which saturate.
_WEIGHTS = "W* = 7 bits"
_DOT = f"T[64,256] X, i8[256,256] {_WEIGHTS}"


def _with_scales(case: Case) -> Case:
    """Give the scales (S) and zero points (Z) above to the inputs that have no values."""
    middle = _MIDDLE.get(case.type, 0)
    usual = {"SX": _X, "SW": _W, "SY": _Y, "ZW": 0, "ZX": middle, "ZY": middle}
    tensors = case.inputs.split(", ")
    given = [f"{one} = {usual[one[-2:]]}" if one[-2:] in usual else one for one in tensors]
    return dataclasses.replace(case, inputs=", ".join(given))


def _per_channel(count: int, scale: float = _W) -> str:
    return " ".join(str(scale * (1 + rank % 4) / 2) for rank in range(count))


def _codes(count: int) -> str:
    return f"i32[{count}] C = {' '.join(str(8 * rank) for rank in range(count))}"


_CONVERSIONS = (
    *expand(call("QuantizeLinear", f"f32[{_IMAGES}] X, f32[] SY, T[] ZY", "per tensor"), *_MIDDLE),
    call("DequantizeLinear", f"T[{_IMAGES}] X, f32[] SX, T[] ZX", "per tensor", "u8", "f32 Y"),
    call(
        "QuantizeLinear<axis = 0>",
        f"f32[256,256] X, f32[256] SX = {_per_channel(256, 32 * _W)}, T[256] Z = 0", "per row",
        "i8",
    ),
    call(
        "DequantizeLinear<axis = 0>",
        f"T[256,256] X, f32[256] SX = {_per_channel(256)}, T[256] Z = 0", "per row", "i8", "f32 Y",
    ),
    call(
        "DequantizeLinear<axis = 0, block_size = 32>", "T[256,256] X, f32[8,256] S = positive",
        "blocks of 32", "i8", "f32 Y", opset=21,
    ),
    call(
        "QuantizeLinear", f"f16[{_IMAGES}] X, f16[] S = {_Y}, T[] ZY", "per tensor from float16",
        "u8", opset=19,
    ),
    call("DynamicQuantizeLinear", "T[1,128,512] X", outputs="u8 Y, f32 S, u8 Z"),
)  # fmt: skip


def _linear(x: str, w: str, channels: int = 0) -> str:
    """Write inputs, each one with its scale and its zero point: weights have one per channel."""
    scales = "f32[] SW, i8[] ZW"
    if channels:
        scales = f"f32[{channels}] SW = {_per_channel(channels)}, i8[{channels}] ZW = 0"
    return f"T[{x}] X, f32[] SX, T[] ZX, i8[{w}] {_WEIGHTS}, {scales}, f32[] SY, T[] ZY"


_SCALES = "f32[] SX, T[] ZX, f32[] SW, i8[] ZW, f32[] SY, T[] ZY"
_PRODUCTS = (
    *expand(call("QLinearMatMul", _linear("64,256", "256,256"), "64 rows"), *_MIDDLE),
    call("QLinearMatMul", _linear("64,256", "256,256", 256), "64 rows per column", "u8"),
    call("QLinearMatMul", _linear("1,512", "512,512"), "one row", "u8"),
    call("MatMulInteger", f"{_DOT}, T[] ZX", "by a constant", "u8", "i32 Y"),
    call("MatMulInteger", "T[64,256] X, T[256,256] Z, T[] ZX", "by a variable", "u8", "i32 Y"),
    Case(
        "MatMulInteger",
        "Q, R, Z = DynamicQuantizeLinear(X) P = MatMulInteger(Q, W, Z, ZW) F = Cast<to = 1>(P) "
        "S = Mul(R, SW) U = Mul(F, S) Y = Add(U, B)",
        f"{_DOT}, f32[] SW, i8[] ZW, f32[256] B*", "of a dynamic product",
    ),
    Case(
        "QGemm", "Y = com.microsoft.QGemm<transB = 1>(X, SX, ZX, W, SW, ZW, C, SY, ZY)",
        f"{_DOT}, {_SCALES}, {_codes(256)}", "64 rows", "u8",
    ),
)  # fmt: skip


def _conv(variant: str, w: str, attributes: str, *, per_channel: bool = False) -> Case:
    count = int(w.split(",", maxsplit=1)[0])
    inputs = f"{_linear('1,32,28,28', w, count if per_channel else 0)}, {_codes(count)}"
    return call(f"QLinearConv<{attributes}>", inputs, variant, "u8")


_CONVOLUTIONS = (
    *expand(_conv("3x3", "32,32,3,3", _SAME), *_MIDDLE),
    _conv("3x3 per channel", "32,32,3,3", _SAME, per_channel=True),
    _conv("1x1", "64,32,1,1", "strides = [1,1]"),
    _conv("depthwise 3x3 per channel", "32,1,3,3", f"group = 32, {_SAME}", per_channel=True),
    call(
        f"ConvInteger<{_SAME}>", f"T[1,16,28,28] X, u8[16,16,3,3] {_WEIGHTS}, T[] ZX", "3x3", "u8",
        "i32[1,16,28,28] Y",
    ),
)  # fmt: skip


def _pair(name: str) -> str:
    return f"{name}q = QuantizeLinear({name}, SX, ZX) {name}d = DequantizeLinear({name}q, SX, ZX)"


_ENDS = "f32[] SX, T[] ZX, f32[] SY, T[] ZY"
_OUTPUT = "Yq = QuantizeLinear(R, SY, ZY) Y = DequantizeLinear(Yq, SY, ZY)"
_SCALED = f"{_WEIGHTS}, {_SCALES}"
_CONSTANT = "Wd = DequantizeLinear(W, SW, ZW)"


def _between(op: str, body: str, inputs: str, variant: str = "between pairs") -> Case:
    return Case(op, f"{_pair('X')} {body} {_OUTPUT}", inputs, variant, "u8", "f32 Y")


_PAIRS = (
    _between(
        "Conv", f"{_CONSTANT} R = Conv<{_SAME}>(Xd, Wd)",
        f"f32[1,32,28,28] X, i8[32,32,3,3] {_SCALED}", "3x3 between pairs",
    ),
    _between(
        "MatMul", f"{_CONSTANT} R = MatMul(Xd, Wd)", f"f32[64,256] X, i8[256,256] {_SCALED}"
    ),
    Case(
        "MatMul", f"{_CONSTANT} Y = MatMul(X, Wd)", f"{_DOT}, f32[] SW, i8[] ZW", "weights of int8"
    ),
    _between(
        "Add", f"{_pair('Z')} R = Add(Xd, Zd)", f"f32[{_IMAGES}] X, f32[{_IMAGES}] Z, {_ENDS}"
    ),
    _between("Relu", "R = Relu(Xd)", f"f32[{_IMAGES}] X, {_ENDS}"),
)  # fmt: skip


def _two(op: str, variant: str, other: str) -> Case:
    second = f"T[{other}] A, f32[] SA = {_X}, T[] ZA = 128, f32[] SY = {1 / 16}, T[] ZY"
    inputs = f"T[{_IMAGES}] X, f32[] SX, T[] ZX, {second}"
    return call(f"com.microsoft.{op}", inputs, variant, "u8")


def _ends(x: float, y: float, zero: str = "") -> str:
    return f"f32[] SX = {x}, T[] ZX, f32[] SY = {y}, T[] ZY{zero}"


_AVERAGE = "com.microsoft.QLinearGlobalAveragePool<channels_last = 0>"
_SIGMOID = _ends(1 / 32, 1 / 256, " = 0")
_SOFTMAX = "com.microsoft.QLinearSoftmax<axis = 1, opset = 13>"
_ELEMENTWISE = (
    _two("QLinearAdd", "same", _IMAGES),
    _two("QLinearAdd", "scalar", "1"),
    _two("QLinearMul", "same", _IMAGES),
    call(_AVERAGE, f"T[1,256,14,14] X, {_ends(1 / 32, 1 / 256)}", type="u8"),
    call("com.microsoft.QLinearSigmoid", f"T[{_IMAGES}] X, {_SIGMOID}", type="u8"),
    call(_SOFTMAX, f"T[128,64] X, {_ends(1 / 128, 1 / 2048, ' = 0')}", "last axis", "u8"),
    call(_SOFTMAX, f"T[128,64] X, {_ends(1 / 128, 1 / 2048, ' = -128')}", "last axis", "i8"),
    Case(
        "QLinearConcat",
        "Y = com.microsoft.QLinearConcat<axis = 1>(SY, ZY, X, SX, ZX, A, SY, ZY)",
        f"T[{_IMAGES}] X, T[{_IMAGES}] A, {_ENDS}", "channels", "u8",
    ),
)  # fmt: skip

_CASES = (*_CONVERSIONS, *_PRODUCTS, *_CONVOLUTIONS, *_PAIRS, *_ELEMENTWISE)
CASES = tuple(map(_with_scales, _CASES))
