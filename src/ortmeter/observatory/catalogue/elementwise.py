"""Operators that compute one element of the output from one element of each input."""

from typing import Any

from ortmeter.dtypes import onnx_type
from ortmeter.observatory.case import Case, call, expand

_IMAGES = "T[1,64,28,28] X"
_ROWS = "T[8,64,128] X"
_PAIR = f"{_ROWS}, T[8,64,128] Z"
_POSITIVE = f"{_IMAGES} = positive"
# Sizes of the caches, see Case.name; the others are in L2.
_L1, _L3, _MEMORY = "8,128", "4,64,56,56", "4,64,112,112"
_SAME, _ANY = "same shape", "normal"
# Shape of the second input beside the rows.
_BROADCASTS = {
    _SAME: "8,64,128",
    "last axis": "128",
    "channel": "64,1",
    "first axis": "8,1,1",
    "scalar": "",
}


def _binary(
    op: str, kind: str = _SAME, variant: str = "", x: str = _ANY, z: str = _ANY, **fields: Any
) -> Case:
    inputs = f"{_ROWS} = {x}, T[{_BROADCASTS[kind]}] Z = {z}"
    return call(op, inputs, f"{kind} {variant}".rstrip(), **fields)


def _cast(kind: str, to: str, values: str = _ANY, inputs: str = _ROWS) -> Case:
    return call(f"Cast<to = {onnx_type(to)}>", f"{inputs} = {values}", f"to {to}", kind, f"{to} Y")


_UNARY = (
    *(
        call(op, _IMAGES)
        for op in (
            # Inputs of both signs.
            *("Abs", "Neg", "Sign", "Floor", "Ceil", "Round"),
            *("Exp", "Erf", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh"),
            *("Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "Shrink"),
            *("Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid"),
        )
    ),
    call("HardSwish", _IMAGES, opset=14),
    call("Mish", _IMAGES, opset=18),
    call("Swish", _IMAGES, opset=24),
    call("Gelu", _IMAGES, opset=20),
    call('Gelu<approximate = "tanh">', _IMAGES, "tanh", opset=20),
    call("IsNaN", _IMAGES, outputs="b8[1,64,28,28] Y"),
    call("BitCast<to = 6>", _IMAGES, "to i32", outputs="i32 Y", opset=26),
    call("IsInf", _IMAGES, outputs="b8[1,64,28,28] Y"),
    # Inputs for which the function is defined.
    *(call(op, _POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")),
    *(call(op, f"{_IMAGES} = unit") for op in ("Asin", "Acos", "Atanh")),
    call("Acosh", f"{_IMAGES} = above one"),
    # One branch only, then denormals.
    *(call(op, _POSITIVE, "of positive") for op in ("LeakyRelu", "Elu", "Selu")),
    *(call(op, f"{_IMAGES} = denormal", "of denormals") for op in ("Exp", "Sigmoid")),
    # Other types. A release without a kernel for float16 computes in float32 between two casts.
    *(call(op, _IMAGES, type="f16") for op in ("Relu", "Sigmoid", "Round")),
    call("Exp", _IMAGES, type="f64"),
    call("Neg", _IMAGES, type="i64"),
    call("Abs", _IMAGES, type="i8"),
    call("Relu", _IMAGES, type="i8", opset=14),
    call("Not", _IMAGES, type="b8"),
    # Other sizes.
    *(call(op, f"T[{_L1}] X") for op in ("Relu", "Sigmoid")),
    call("Exp", f"T[{_L3}] X"),
    call("Relu", f"T[{_MEMORY}] X"),
    # A few nodes that one kernel may replace.
    Case(
        "Gelu of five nodes",
        "A = Div(X, C) B = Erf(A) D = Add(B, O) E = Mul(X, D) Y = Mul(E, H)",
        f"{_IMAGES}, T[] C = {2**0.5}, T[] O = 1, T[] H = 0.5",
    ),
    Case("Swish of two nodes", "S = Sigmoid(X) Y = Mul(X, S)", _IMAGES),
    Case("HardSwish of two nodes", "S = HardSigmoid<alpha = 0.1666667>(X) Y = Mul(X, S)", _IMAGES),
    # Slopes and bounds.
    call("PRelu", f"{_IMAGES}, T[64,1,1] S", "per channel"),
    call("PRelu", f"{_POSITIVE}, T[64,1,1] S", "per channel of positive"),
    call("PRelu", f"{_IMAGES}, T[1] S", "scalar"),
    *expand(call("Clip", f"{_IMAGES}, T[] A = -1, T[] B = 1"), "f32", "f16", "i8"),
    call("Clip", f"{_IMAGES}, T[] A = 0", "one bound"),
)

_TRUTHS = {"outputs": "b8[8,64,128] Y"}
_BINARY = (
    # By kind of broadcast.
    *(_binary("Add", kind) for kind in _BROADCASTS),
    *(_binary("Mul", kind) for kind in (_SAME, "last axis", "channel")),
    *(_binary("Sub", kind) for kind in (_SAME, "last axis")),
    *(_binary("Div", kind, z="positive") for kind in (_SAME, "channel")),
    *(_binary(op, kind) for op in ("Min", "Max") for kind in (_SAME, "scalar")),
    call("Add", "T[512,1] X, T[128] Z", "outer", outputs="T[512,128] Y"),
    *(call(op, f"{_PAIR}, T[8,64,128] W", "of three") for op in ("Sum", "Max")),
    # By exponent.
    _binary("Pow", x="positive"),
    _binary("Pow", "scalar", "two", z="2"),
    _binary("Pow", "scalar", "three", z="3"),
    _binary("Pow", "scalar", "half", x="positive", z="0.5"),
    # Denormals.
    _binary("Add", variant="of denormals", x="denormal", z="denormal"),
    _binary("Mul", variant="of denormals", x="denormal"),
    # Other types.
    *expand(_binary("Add"), "f16", "i64"),
    _binary("Add", type="i8", opset=14),
    _binary("Max", type="f16"),
    _binary("Min", type="i64"),
    *(_binary(op, type="i64", z="positive") for op in ("Div", "Mod")),
    *(_binary(op, type="b8") for op in ("And", "Xor")),
    *(_binary(op, type="i32", opset=18) for op in ("BitwiseAnd", "BitwiseXor")),
    call('BitShift<direction = "LEFT">', f"{_PAIR} = below 8", type="u8"),
    # Other sizes.
    *(call("Add", f"T[{shape}] X, T[{shape}] Z", _SAME) for shape in (_L1, _L3, _MEMORY)),
    call("Mul", f"T[{_L1}] X, T[{_L1}] Z", _SAME),
    # Comparisons and choices.
    *(_binary(op, **_TRUTHS) for op in ("Equal", "Greater", "GreaterOrEqual")),
    _binary("Greater", "last axis", **_TRUTHS),
    _binary("Equal", type="i64", **_TRUTHS),
    _binary("Equal", "scalar", type="i64", **_TRUTHS),
    *expand(call("Where", f"b8[8,64,128] B, {_PAIR}", _SAME), "f32", "f16", "i64"),
    call("Where", f"b8[8,64,128] B, {_ROWS}, T[128] Z", "last axis"),
    call("Where", f"b8[8,64,128] B, {_ROWS}, T[] Z", "scalar"),
    call("Where", f"b8[64,1] B, {_PAIR}", "mask per channel"),
)

_CASTS = (
    *(_cast("f32", to) for to in ("f16", "f64", "i64")),
    *(_cast("f32", to, "below 128") for to in ("u8", "b8")),
    *(_cast(kind, "f32") for kind in ("f16", "f64", "i64", "u8", "b8")),
    _cast("i64", "i32"),
    _cast("f32", "f16", inputs="T[4,64,112,112] X"),
)

CASES = (*_UNARY, *_BINARY, *_CASTS)
