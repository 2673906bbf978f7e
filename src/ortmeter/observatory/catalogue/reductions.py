"""Reductions, softmaxes, normalizations, and what looks for the largest values."""

from ortmeter.observatory.case import Case, call, expand

_AXES = {
    "last axis": "2",
    "middle axis": "1",
    "first axis": "0",
    "last two axes": "1,2",
    "outer axes": "0,2",
    "all axes": "0,1,2",
}
_TWO = ("last axis", "first axis")
_INPUT, _LONG = "T[8,64,128] X", "T[2,100000] X"
_ALONG = f"{_LONG}, i64[1] A = 1"


def _reduce(op: str, where: str, inputs: str = _INPUT) -> Case:
    return call(f"{op}<axes = [{_AXES[where]}]>", inputs, where)


def _reduce_sum(where: str) -> Case:
    axes = _AXES[where].split(",")  # they are an input
    return call("ReduceSum", f"{_INPUT}, i64[{len(axes)}] A = {' '.join(axes)}", where)


def _by_axis(op: str, where: str, outputs: str = "T Y") -> Case:
    return call(f"{op}<axis = {_AXES[where]}>", _INPUT, where, outputs=outputs)


_REDUCTIONS = (
    *map(_reduce_sum, _AXES),
    *(_reduce("ReduceMean", where) for where in ("last axis", "first axis", "last two axes")),
    *(_reduce(op, where) for op in ("ReduceMax", "ReduceL1", "ReduceLogSumExp") for where in _TWO),
    *(_reduce(op, "middle axis") for op in ("ReduceMin", "ReduceL2")),
    _reduce("ReduceSumSquare", "last axis"),
    _reduce("ReduceLogSum", "middle axis", f"{_INPUT} = positive"),
    # Short axes: products stay finite.
    _reduce("ReduceProd", "last axis", "T[32,64,64] X = above one"),
    call("ReduceMax<axes = [1]>", "T[4096,16] X", "rows of 16", "i8"),
    call("ReduceSum", "T[4,64,128] X, i64[1] A = 2", "last axis", "i64"),
    call("ReduceMean<axes = [2,3]>", "T[1,128,28,28] X", "of images"),
    *expand(call("ReduceSum", _ALONG, "100000 terms", outputs="T[2,1] Y"), "f32", "f16"),
    call("ReduceMean<axes = [1]>", _LONG, "100000 terms", outputs="T[2,1] Y"),
)

_SOFTMAXES = (
    *(_by_axis(op, where) for op in ("Softmax", "LogSoftmax") for where in _TWO),
    _by_axis("Hardmax", "last axis"),
    call("Softmax<axis = 1>", "T[1,32000] X", "one long row"),
    call("Softmax<axis = 1>", "T[16,10] X", "few classes"),
    Case(
        "Softmax", "M = Add(X, B) Y = Softmax<axis = 3>(M)",
        "T[1,8,96,96] X, T[1,1,96,96] B", "masked scores",
    ),
)  # fmt: skip


def _top_k(variant: str, inputs: str, count: int, axis: int = 1, largest: int = 1) -> Case:
    operator, outputs = f"TopK<axis = {axis}, largest = {largest}>", "T Y, i64 I"
    return call(operator, f"{inputs}, i64[1] K = {count}", variant, outputs=outputs)


_LARGEST = (
    *(_by_axis("ArgMax", where, outputs="i64 Y") for where in _TWO),
    _by_axis("ArgMin", "middle axis", outputs="i64 Y"),
    _top_k("10 of 128", _INPUT, 10, axis=2),
    _top_k("8 of 64 on the middle axis", _INPUT, 8),
    _top_k("2 of 8 experts", "T[256,8] X", 2),
    _top_k("50 of 32000", "T[1,32000] X", 50),
    _top_k("sort of 4096", "T[2,4096] X", 4096, largest=0),
    call("TopK", "T[64,128] X = below 100000, i64[1] K = 10", "10 of 128", "i64", "T Y, i64 I"),
)  # fmt: skip

_IMAGES, _TOKENS = "T[1,64,28,28] X", "T[1,128,768] X"
_AFFINE = "T[64] S*, T[64] B*"
_RMS = f"{_TOKENS}, T[768] S*"
_LAYER = f"{_RMS}, T[768] B*"
_BATCH = f"{_AFFINE}, T[64] M*, T[64] V* = positive"

_NORMALIZATIONS = (
    *expand(call("LayerNormalization", _LAYER, "128 rows", opset=17), "f32", "f16"),
    call("LayerNormalization", "T[1,1,768] X, T[768] S*, T[768] B*", "one row", opset=17),
    call("LayerNormalization", "T[1,2048,1152] X, T[1152] S*, T[1152] B*", "2048 rows", opset=17),
    Case(
        "LayerNormalization",
        "M = ReduceMean<axes = [-1]>(X) D = Sub(X, M) Q = Pow(D, P) V = ReduceMean<axes = [-1]>(Q) "
        "E = Add(V, Z) R = Sqrt(E) N = Div(D, R) C = Mul(N, S) Y = Add(C, B)",
        f"{_TOKENS}, T[] P = 2, T[] Z = 1e-5, T[768] S*, T[768] B*", "of nine nodes",
    ),
    *expand(call("RMSNormalization", _RMS, "128 rows", opset=23), "f32", "f16"),
    Case(
        "RMSNormalization",
        "Q = Pow(X, P) V = ReduceMean<axes = [-1]>(Q) E = Add(V, Z) R = Sqrt(E) N = Div(X, R) "
        "Y = Mul(N, S)",
        f"{_TOKENS}, T[] P = 2, T[] Z = 1e-6, T[768] S*", "of six nodes",
    ),
    call("InstanceNormalization", f"{_IMAGES}, {_AFFINE}"),
    call("GroupNormalization<num_groups = 8>", f"{_IMAGES}, {_AFFINE}", "8 groups", opset=21),
    call("BatchNormalization", f"{_IMAGES}, {_BATCH}", "of images"),
    call("BatchNormalization", f"T[512,64] X, {_BATCH}", "of rows"),
    call("LRN<size = 5>", _IMAGES, "size 5"),
    call("LpNormalization<axis = 1, p = 2>", "T[256,256] X", "L2"),
    call("MeanVarianceNormalization<axes = [0,2,3]>", _IMAGES),
)  # fmt: skip

CASES = (*_REDUCTIONS, *_SOFTMAXES, *_LARGEST, *_NORMALIZATIONS)
