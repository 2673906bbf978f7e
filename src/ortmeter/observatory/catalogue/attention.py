"""What transformers are made of: attention, rotary embeddings, sums that are normalized."""

from typing import Any

from ortmeter.observatory.case import Case, Values, call

_QUERY, _KEYS = "T[1,8,64,64] Q", "T[1,8,64,64] K, T[1,8,64,64] V"


def _attention(variant: str, inputs: str, attributes: str = "is_causal = 0", **fields: Any) -> Case:
    return call(f"Attention<{attributes}>", inputs, variant, **{"opset": 23, **fields})


_STANDARD = (
    _attention("8 heads", f"{_QUERY}, {_KEYS}"),
    _attention("8 heads", "T[1,8,32,64] Q, T[1,8,32,64] K, T[1,8,32,64] V", type="f16"),
    _attention("causal", f"{_QUERY}, {_KEYS}", "is_causal = 1"),
    _attention("2 heads of keys", f"{_QUERY}, T[1,2,64,64] K, T[1,2,64,64] V"),
    _attention("one row 512 keys", "T[1,8,1,64] Q, T[1,8,512,64] K, T[1,8,512,64] V"),
    _attention(
        "rows of heads", "T[1,64,512] Q, T[1,64,512] K, T[1,64,512] V",
        "q_num_heads = 8, kv_num_heads = 8",
    ),
    Case(
        "Attention", "Y = Attention<is_causal = 0>(Q, K, V, , , , N)",
        f"{_QUERY}, {_KEYS}, i64[1] N", "50 keys of 64", values={"N": [50]}, opset=24,
    ),
    _attention(
        "window of 16", f"{_QUERY}, {_KEYS}", "is_causal = 1, left_window_size = 16", opset=25
    ),
    Case(
        "Attention",
        "U = Transpose<perm = [0,1,3,2]>(K) P = MatMul(Q, U) S = Div(P, R) "
        "W = Softmax<axis = -1>(S) Y = MatMul(W, V)",
        f"{_QUERY}, {_KEYS}, T[] R", "of five nodes", values={"R": 8},
    ),
)  # fmt: skip


def _linear(variant: str, rows: int, more: str = "", read: str = "", **values: Values) -> Case:
    """Write 8 heads of 64 elements, whose state is a matrix, for *rows* new rows."""
    rule = variant.partition(" of ")[0].replace(" ", "_")
    return Case(
        "LinearAttention",
        "Y, PS = LinearAttention<q_num_heads = 8, kv_num_heads = 8, "
        f'update_rule = "{rule}">(Q, K, V{read})',
        f"T[1,{rows},512] Q, T[1,{rows},512] K, T[1,{rows},512] V{more}", variant,
        outputs="T Y, T[1,8,64,64] PS", values=values, opset=27,
    )  # fmt: skip


# ONNX Runtime runs opset 27 from 1.32 on.
_RECURRENT = (
    _linear("linear of 64 rows", 64),
    _linear("gated of 64 rows", 64, ", T[1,64,8] D", ", , D", D=-0.125),
    _linear(
        "gated delta of one row", 1, ", T[1,8,64,64] S, T[1,1,8] D, T[1,1,8] B", ", S, D, B",
        B="positive",
    ),
    call(
        "CausalConvWithState", "T[1,512,64] X, T[512,1,4] W, T[512] B", "64 rows",
        outputs="T Y, T[1,512,3] PS", weights="W B", opset=27,
    ),
    call(
        'CausalConvWithState<activation = "silu">',
        "T[1,512,1] X, T[512,1,4] W, T[512] B, T[1,512,3] S", "silu of one row",
        outputs="T[1,512,1] Y, T PS", weights="W B", opset=27,
    ),
)  # fmt: skip


_CIRCLE = {"C": "unit", "S": "unit"}


def _rotary(operator: str, inputs: str, variant: str, **fields: Any) -> Case:
    values = {**_CIRCLE, "I": "below 128"}
    return call(operator, inputs, variant, weights="C S", values=values, **fields)


_ROTATIONS = "T[128,32] C, T[128,32] S"
_STANDARD_ORDER = f"T[1,8,64,64] X, {_ROTATIONS}, i64[1,64] I"
_CONTRIB_ORDER = f"T[1,8,64,64] X, i64[1,64] I, {_ROTATIONS}"
_CONTRIB_HALVES = "com.microsoft.RotaryEmbedding<interleaved = 0>"
_ROTARY = (
    _rotary("RotaryEmbedding<interleaved = 0>", _STANDARD_ORDER, "halves", opset=23),
    _rotary("RotaryEmbedding<interleaved = 1>", _STANDARD_ORDER, "interleaved", opset=23),
    _rotary(_CONTRIB_HALVES, _CONTRIB_ORDER, "contrib halves"),
    _rotary(
        "com.microsoft.RotaryEmbedding<interleaved = 1>", _CONTRIB_ORDER, "contrib interleaved"
    ),
    _rotary(_CONTRIB_HALVES, _CONTRIB_ORDER, "contrib halves", type="f16"),
)


def _grouped(variant: str, rows: int, past: int, attributes: str = "", kind: str = "f32") -> Case:
    """Write 8 heads, 2 of keys, of 64 elements, for *rows* new rows after *past* ones."""
    rotary = "do_rotary" in attributes
    cache = f"T[1,2,{past},64] A, T[1,2,{past},64] B, " if past else ""
    return Case(
        "GroupQueryAttention",
        "Y, PK, PV = com.microsoft.GroupQueryAttention"
        f"<num_heads = 8, kv_num_heads = 2, {attributes or 'do_rotary = 0'}>"
        f"(Q, K, V, {'A, B' if past else ','}, L, N{', C, S' if rotary else ''})",
        f"T[1,{rows},512] Q, T[1,{rows},128] K, T[1,{rows},128] V, {cache}i32[1] L, i32[] N"
        + (f", T[{rows + past},32] C, T[{rows + past},32] S" if rotary else ""),
        variant, kind, outputs="T Y, T PK, T PV", weights="C S" if rotary else "",
        values={"L": [rows + past - 1], "N": rows + past, **(_CIRCLE if rotary else {})},
    )  # fmt: skip


_HIDDEN = "T[1,64,512]"
_CONTRIBUTED = (
    _grouped("64 rows", 64, 0),
    _grouped("one row after 255", 1, 255),
    _grouped("one row after 255 rotary", 1, 255, "do_rotary = 1"),
    _grouped("one row after 255", 1, 255, kind="f16"),
    call(
        "com.microsoft.MultiHeadAttention<num_heads = 8, unidirectional = 1>",
        f"{_HIDDEN} Q, {_HIDDEN} K, {_HIDDEN} V, T[1536] B", "causal with bias", weights="B",
    ),
    call(
        "com.microsoft.Attention<num_heads = 4>", "T[1,32,256] X, T[256,768] W, T[768] B",
        "contrib with its products", outputs="T[1,32,256] Y", weights="W B",
    ),
    Case(
        "EmbedLayerNormalization",
        "Y, M = com.microsoft.EmbedLayerNormalization(I, J, W, P, Q, G, B)",
        "i32[1,128] I, i32[1,128] J, T[1000,256] W, T[128,256] P, T[2,256] Q, T[256] G, T[256] B",
        weights="W P Q G B", values={"I": "below 1000", "J": "below 2"},
    ),
)  # fmt: skip


_TWO = "T[1,128,512] X, T[1,128,512] Z"


def _skip(op: str, variant: str, inputs: str, weights: str) -> Case:
    return call(f"com.microsoft.{op}", inputs, variant, weights=weights)


_SUMS = (
    _skip("SkipLayerNormalization", "128 rows", f"{_TWO}, T[512] S, T[512] B, T[512] C", "S B C"),
    _skip("SkipLayerNormalization", "one row", "T[1,1,512] X, T[1,1,512] Z, T[512] S", "S"),
    _skip("SkipSimplifiedLayerNormalization", "128 rows", f"{_TWO}, T[512] S", "S"),
    Case(
        "SkipLayerNormalization", "A = Add(X, Z) Y = LayerNormalization(A, S, B)",
        f"{_TWO}, T[512] S, T[512] B", "of two nodes", weights="S B", opset=17,
    ),
)  # fmt: skip

CASES = (*_STANDARD, *_RECURRENT, *_ROTARY, *_CONTRIBUTED, *_SUMS)
