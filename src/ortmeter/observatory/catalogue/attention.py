"""What transformers are made of: attention, rotary embeddings, sums that are normalized."""

from typing import Any

from ortmeter.observatory.case import Case, call

_QUERY = "T[1,8,64,64] Q"
_HEADS = f"{_QUERY}, T[1,8,64,64] K, T[1,8,64,64] V"
_FLAT = "T[1,64,512] Q, T[1,64,512] K, T[1,64,512] V"


def _attention(variant: str, inputs: str, attributes: str = "is_causal = 0", **fields: Any) -> Case:
    return call(f"Attention<{attributes}>", inputs, variant, **{"opset": 23, **fields})


_STANDARD = (
    _attention("8 heads", _HEADS),
    _attention("8 heads", "T[1,8,32,64] Q, T[1,8,32,64] K, T[1,8,32,64] V", type="f16"),
    _attention("causal", _HEADS, "is_causal = 1"),
    _attention("2 heads of keys", f"{_QUERY}, T[1,2,64,64] K, T[1,2,64,64] V"),
    _attention("one row 512 keys", "T[1,8,1,64] Q, T[1,8,512,64] K, T[1,8,512,64] V"),
    _attention("rows of heads", _FLAT, "q_num_heads = 8, kv_num_heads = 8"),
    Case(
        "Attention", "Y = Attention<is_causal = 0>(Q, K, V, , , , N)",
        f"{_HEADS}, i64[1] N = 50", "50 keys of 64", opset=24,
    ),
    _attention("window of 16", _HEADS, "is_causal = 1, left_window_size = 16", opset=25),
    Case(
        "Attention",
        "U = Transpose<perm = [0,1,3,2]>(K) P = MatMul(Q, U) S = Div(P, R) "
        "W = Softmax<axis = -1>(S) Y = MatMul(W, V)",
        f"{_HEADS}, T[] R = 8", "of five nodes",
    ),
)  # fmt: skip


_ANGLES = "T[128,32] C* = unit, T[128,32] S* = unit"
_ROTATED = f"T[1,8,64,64] X, {_ANGLES}, i64[1,64] I = below 128"
_CONTRIB = f"T[1,8,64,64] X, i64[1,64] I = below 128, {_ANGLES}"
_HALVES = "com.microsoft.RotaryEmbedding<interleaved = 0>"
_ROTARY = (
    call("RotaryEmbedding<interleaved = 0>", _ROTATED, "halves", opset=23),
    call("RotaryEmbedding<interleaved = 1>", _ROTATED, "interleaved", opset=23),
    call(_HALVES, _CONTRIB, "contrib halves"),
    call("com.microsoft.RotaryEmbedding<interleaved = 1>", _CONTRIB, "contrib interleaved"),
    call(_HALVES, _CONTRIB, "contrib halves", "f16"),
)


def _grouped(variant: str, rows: int, past: int, rotary: int = 0, kind: str = "f32") -> Case:
    """Write 8 heads, 2 of keys, of 64 elements, for *rows* new rows after *past* ones."""
    total = rows + past
    cache = f"T[1,2,{past},64] A, T[1,2,{past},64] B, " if past else ""
    angles = f", T[{total},32] C* = unit, T[{total},32] S* = unit" if rotary else ""
    return Case(
        "GroupQueryAttention",
        "Y, PK, PV = com.microsoft.GroupQueryAttention"
        f"<num_heads = 8, kv_num_heads = 2, do_rotary = {rotary}>"
        f"(Q, K, V, {'A, B' if past else ','}, L, N{', C, S' if rotary else ''})",
        f"T[1,{rows},512] Q, T[1,{rows},128] K, T[1,{rows},128] V, {cache}i32[1] L = {total - 1}, "
        f"i32[] N = {total}{angles}", variant, kind, outputs="T Y, T PK, T PV",
    )  # fmt: skip


_CONTRIBUTED = (
    _grouped("64 rows", 64, 0),
    _grouped("one row after 255", 1, 255),
    _grouped("one row after 255 rotary", 1, 255, rotary=1),
    _grouped("one row after 255", 1, 255, kind="f16"),
    call(
        "com.microsoft.MultiHeadAttention<num_heads = 8, unidirectional = 1>",
        f"{_FLAT}, T[1536] B*", "causal with bias",
    ),
    call(
        "com.microsoft.Attention<num_heads = 4>", "T[1,32,256] X, T[256,768] W*, T[768] B*",
        "contrib with its products", outputs="T[1,32,256] Y",
    ),
)  # fmt: skip

_TWO, _SCALE = "T[1,128,512] X, T[1,128,512] Z", "T[512] S*"
_SKIP = "com.microsoft.SkipLayerNormalization"
_SUMS = (
    call(_SKIP, f"{_TWO}, {_SCALE}, T[512] B*, T[512] C*", "128 rows"),
    call(_SKIP, f"T[1,1,512] X, T[1,1,512] Z, {_SCALE}", "one row"),
    call("com.microsoft.SkipSimplifiedLayerNormalization", f"{_TWO}, {_SCALE}", "128 rows"),
    Case(
        "SkipLayerNormalization", "A = Add(X, Z) Y = LayerNormalization(A, S, B)",
        f"{_TWO}, {_SCALE}, T[512] B*", "of two nodes", opset=17,
    ),
)  # fmt: skip

CASES = (*_STANDARD, *_ROTARY, *_CONTRIBUTED, *_SUMS)
