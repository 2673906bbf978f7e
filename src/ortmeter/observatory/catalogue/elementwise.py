"""Operators that compute one element of the output from one element of each input."""

from typing import Any

from ortmeter.observatory.case import Case, expand

_IMAGES = "T[1,64,28,28] X"
_ROWS = "T[8,64,128] X"
_BOOLEANS = "b8[8,64,128]"
_POSITIVE = {"X": "positive"}
# Sizes of the caches, see Case.name; the others are in L2.
_L1, _L3, _MEMORY = "8,128", "4,64,56,56", "4,64,112,112"
# Shape of the second input beside the rows.
_BROADCASTS = {
    "same shape": "8,64,128",
    "last axis": "128",
    "channel": "64,1",
    "first axis": "8,1,1",
    "scalar": "",
}


def _unary(op: str, variant: str = "", inputs: str = _IMAGES, **fields: Any) -> Case:
    return Case(op, f"Y = {op}(X)", inputs, variant, **fields)


def _binary(op: str, kind: str = "same shape", variant: str = "", **fields: Any) -> Case:
    inputs = f"{_ROWS}, T[{_BROADCASTS[kind]}] Z"
    return Case(op, f"Y = {op}(X, Z)", inputs, f"{kind} {variant}".rstrip(), **fields)


def _same(op: str, shape: str, **fields: Any) -> Case:
    return Case(op, f"Y = {op}(X, Z)", f"T[{shape}] X, T[{shape}] Z", "same shape", **fields)


def _compare(op: str, kind: str = "same shape", **fields: Any) -> Case:
    return _binary(op, kind, outputs=f"{_BOOLEANS} Y", **fields)


def _several(op: str) -> Case:
    inputs = f"{_ROWS}, T[8,64,128] Z, T[8,64,128] W"
    return Case(op, f"Y = {op}(X, Z, W)", inputs, "of three")


def _prelu(variant: str, slope: str, **fields: Any) -> Case:
    return Case("PRelu", "Y = PRelu(X, S)", f"{_IMAGES}, T[{slope}] S", variant, **fields)


def _where(
    variant: str, mask: str = "8,64,128", other: str = "8,64,128", kind: str = "f32"
) -> Case:
    inputs = f"b8[{mask}] B, {_ROWS}, T[{other}] Z"
    return Case("Where", "Y = Where(B, X, Z)", inputs, variant, kind)


def _cast(kind: str, to: str, values: str = "normal", inputs: str = _ROWS) -> Case:
    code = {"f32": 1, "u8": 2, "i8": 3, "i32": 6, "i64": 7, "b8": 9, "f16": 10, "f64": 11}[to]
    body = f"Y = Cast<to = {code}>(X)"
    return Case("Cast", body, inputs, f"to {to}", kind, f"{to} Y", {"X": values})


_UNARY = (
    # Inputs of both signs.
    *map(_unary, ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round")),
    *map(_unary, ("Exp", "Erf", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh")),
    *map(_unary, ("Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "Shrink")),
    *map(_unary, ("Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid")),
    _unary("HardSwish", opset=14),
    _unary("Mish", opset=18),
    _unary("Swish", opset=24),
    _unary("Gelu", opset=20),
    Case("Gelu", 'Y = Gelu<approximate = "tanh">(X)', _IMAGES, "tanh", opset=20),
    _unary("IsNaN", outputs="b8[1,64,28,28] Y"),
    _unary("IsInf", outputs="b8[1,64,28,28] Y"),
    # Inputs for which the function is defined.
    *(_unary(op, values=_POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")),
    *(_unary(op, values={"X": "unit"}) for op in ("Asin", "Acos", "Atanh")),
    _unary("Acosh", values={"X": "above one"}),
    # One branch only, then denormals.
    *(_unary(op, "of positive", values=_POSITIVE) for op in ("LeakyRelu", "Elu", "Selu")),
    *(_unary(op, "of denormals", values={"X": "denormal"}) for op in ("Exp", "Sigmoid")),
    # Other types. A release without a kernel for float16 computes in float32 between two casts.
    *(_unary(op, type="f16") for op in ("Relu", "Sigmoid", "Round")),
    _unary("Exp", type="f64"),
    _unary("Neg", type="i64"),
    _unary("Abs", type="i8"),
    _unary("Relu", type="i8", opset=14),
    _unary("Not", type="b8"),
    # Other sizes.
    *(_unary(op, inputs=f"T[{_L1}] X") for op in ("Relu", "Sigmoid")),
    _unary("Exp", inputs=f"T[{_L3}] X"),
    _unary("Relu", inputs=f"T[{_MEMORY}] X"),
    # A few nodes that one kernel may replace.
    Case(
        "Gelu of five nodes",
        "A = Div(X, C) B = Erf(A) D = Add(B, O) E = Mul(X, D) Y = Mul(E, H)",
        f"{_IMAGES}, T[] C, T[] O, T[] H",
        values={"C": 2**0.5, "O": 1, "H": 0.5},
    ),
    Case("Swish of two nodes", "S = Sigmoid(X) Y = Mul(X, S)", _IMAGES),
    Case("HardSwish of two nodes", "S = HardSigmoid<alpha = 0.1666667>(X) Y = Mul(X, S)", _IMAGES),
    # Slopes and bounds.
    _prelu("per channel", "64,1,1"),
    _prelu("per channel of positive", "64,1,1", values=_POSITIVE),
    _prelu("scalar", "1"),
    *expand(
        Case("Clip", "Y = Clip(X, A, B)", f"{_IMAGES}, T[] A, T[] B", values={"A": -1, "B": 1}),
        type=("f32", "f16", "i8"),
    ),
    Case("Clip", "Y = Clip(X, A)", f"{_IMAGES}, T[] A", "one bound", values={"A": 0}),
)

_BINARY = (
    # By kind of broadcast.
    *(_binary("Add", kind) for kind in _BROADCASTS),
    *(_binary("Mul", kind) for kind in ("same shape", "last axis", "channel")),
    *(_binary("Sub", kind) for kind in ("same shape", "last axis")),
    *(_binary("Div", kind, values={"Z": "positive"}) for kind in ("same shape", "channel")),
    *(_binary(op, kind) for op in ("Min", "Max") for kind in ("same shape", "scalar")),
    Case("Add", "Y = Add(X, Z)", "T[512,1] X, T[128] Z", "outer", outputs="T[512,128] Y"),
    *map(_several, ("Sum", "Max")),
    # By exponent.
    _binary("Pow", values=_POSITIVE),
    _binary("Pow", "scalar", "two", values={"Z": 2}),
    _binary("Pow", "scalar", "three", values={"Z": 3}),
    _binary("Pow", "scalar", "half", values={"X": "positive", "Z": 0.5}),
    # Denormals.
    _binary("Add", variant="of denormals", values={"X": "denormal", "Z": "denormal"}),
    _binary("Mul", variant="of denormals", values={"X": "denormal"}),
    # Other types.
    *expand(_binary("Add"), type=("f16", "i64")),
    _binary("Add", type="i8", opset=14),
    _binary("Max", type="f16"),
    _binary("Min", type="i64"),
    *(_binary(op, type="i64", values={"Z": "positive"}) for op in ("Div", "Mod")),
    *(_binary(op, type="b8") for op in ("And", "Xor")),
    *(_binary(op, type="i32", opset=18) for op in ("BitwiseAnd", "BitwiseXor")),
    Case(
        "BitShift",
        'Y = BitShift<direction = "LEFT">(X, Z)',
        f"{_ROWS}, T[8,64,128] Z",
        type="u8",
        values={"Z": "below 8"},
    ),
    # Other sizes.
    *(_same("Add", shape) for shape in (_L1, _L3, _MEMORY)),
    _same("Mul", _L1),
    # Comparisons and choices.
    *map(_compare, ("Equal", "Greater", "GreaterOrEqual")),
    _compare("Greater", "last axis"),
    _compare("Equal", type="i64"),
    _compare("Equal", "scalar", type="i64"),
    *(_where("same shape", kind=kind) for kind in ("f32", "f16", "i64")),
    _where("last axis", other="128"),
    _where("scalar", other=""),
    _where("mask per channel", mask="64,1"),
)

_CASTS = (
    *(_cast("f32", to) for to in ("f16", "f64", "i64")),
    *(_cast("f32", to, "below 128") for to in ("u8", "b8")),
    *(_cast(kind, "f32") for kind in ("f16", "f64", "i64", "u8", "b8")),
    _cast("i64", "i32"),
    _cast("f32", "f16", inputs="T[4,64,112,112] X"),
)

CASES = (*_UNARY, *_BINARY, *_CASTS)
