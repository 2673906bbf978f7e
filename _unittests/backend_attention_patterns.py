"""Graphs of the rules on attention, and what each one becomes."""

import numpy as np
from backend_graphs import Graph

SWAP = "Transpose<perm=[0,2,1,3]>"
HALVES = {
    "zero": np.array([0]),
    "middle": np.array([4]),
    "end": np.array([2**63 - 1]),
    "last": np.array([3]),
    "one": np.array([1]),
}


def half_angles(length, half):
    """Tables of a rotary embedding, a column for each angle."""
    grid = np.arange(length)[:, None] / 10 ** (np.arange(half) / half / 2)
    return {"cos": np.cos(grid), "sin": np.sin(grid)}


def twice(tables):
    """Tables whose halves are equal, for heads that are split."""
    return {n: np.concatenate([t, t], axis=-1)[None, None] for n, t in tables.items()}


def band(length, width):
    """What a query sees: itself and the keys just before, *width* of them in all."""
    return np.tri(length, dtype=bool) & ~np.tri(length, k=-width, dtype=bool)


def rotate(cos="cos", sin="sin"):
    """Rotate the halves of the last axis."""
    return f"""F = Slice(X, zero, middle, last, one)  S = Slice(X, middle, end, last, one)
        N = Neg(S)  R = Concat<axis=-1>(N, F)  A = Mul(X, {cos})  B = Mul(R, {sin})  Y = Add(A, B)
    """


HALF_TABLE = Graph(
    """g (real[1, 5, 4] X) => (real[1, 5, 8] Y) {
        T = Concat<axis=-1>(X, X)  Y = Mul(T, factor)
    }""",
    {"factor": np.float64(1.5)},
)
ROTARY_ANY_BATCH = Graph(
    f"g (real[n, 3, 5, 8] X) => (real[n, 3, 5, 8] Y) {{ {rotate()} }}",
    {**twice(half_angles(5, 4)), **HALVES},
)
ROTARY_COMPUTED = Graph(
    f"""g (real[n, 3, l, 8] X, real[1, l, 4] C, real[1, l, 4] D) => (real[n, 3, l, 8] Y) {{
        Cc = Concat<axis=-1>(C, C)  Cu = Unsqueeze(Cc, one)
        Dd = Concat<axis=2>(D, D)  Du = Unsqueeze(Dd, one)
        {rotate("Cu", "Du")}
    }}""",
    HALVES,
)
ROTARY_OF_EACH = ROTARY_COMPUTED.replace({"[1, l, 4]": "[n, l, 4]"})
ROTARY_MERGED = Graph(
    f"""g (real[2, 5, 3, 4] X) => (real[2, 3, 5, 4] Y) {{
        Xh = {SWAP}(X)  Y = RotaryEmbedding(Xh, cos, sin, positions)
    }}""",
    {**half_angles(5, 2), "positions": np.tile(np.arange(5), (2, 1))},
)
ROTARY_TABLES_OF_EACH = Graph(
    f"""g (real[2, 5, 12] X, real[2, 5, 1] C, real[2, 5, 1] D) => (real[2, 3, 5, 4] Y) {{
        Xr = Reshape(X, split)  Xh = {SWAP}(Xr)
        Y = RotaryEmbedding<rotary_embedding_dim=2>(Xh, C, D)
    }}""",
    {"split": np.array([0, 0, 3, 4])},
)
ATTENTION_MERGED = Graph(
    f"""g (real[2, 5, 4, 4] Q, real[2, 5, 2, 4] K, real[2, 5, 8] V) => (real[2, 5, 16] Y) {{
        Qh = {SWAP}(Q)  Kh = {SWAP}(K)  Vr = Reshape(V, split)  Vh = {SWAP}(Vr)
        A = Attention<is_causal=1>(Qh, Kh, Vh)  T = {SWAP}(A)  Y = Reshape(T, merged)
    }}""",
    {"split": np.array([0, 0, 2, 4]), "merged": np.array([0, 0, -1])},
)
WIDENED = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 3, 6, 4] K, real[2, 3, 6, 4] V) => (real[2, 3, 5, 4] Y) {
        T = Transpose<perm=[0,1,3,2]>(K)  D = MatMul(Q, T)  S = Mul(D, scale)
        W = Cast<to=WIDE>(S)  P = Softmax<axis=-1>(W)  N = Cast<to=REAL>(P)  Y = MatMul(N, V)
    }""",
    {"scale": np.float64(0.3)},
)
GROUP_QUERY_WINDOW = Graph(
    """g (real[2, 16, 64] Q, real[2, 16, 32] K, real[2, 16, 32] V) => (real[2, 16, 64] Y) {
        A = RotaryEmbedding<num_heads=4>(Q, cos, sin, positions)
        B = RotaryEmbedding<num_heads=2>(K, cos, sin, positions)
        Y = Attention<q_num_heads=4, kv_num_heads=2, scale=0.3>(A, B, V, mask)
    }""",
    {
        **half_angles(16, 8),
        "positions": np.tile(np.arange(16), (2, 1)),
        "mask": np.where(band(16, 5), 0.0, -np.inf)[None, None],
    },
)
GROUP_QUERY_CAPPED = GROUP_QUERY_WINDOW.replace(
    {"scale=0.3>(A, B, V, mask)": "softcap=1.5, is_causal=1>(A, B, V)"}, mask=None
)
GROUP_QUERY_ANY_BATCH = Graph(
    """g (real[n, 16, 64] Q, real[n, 16, 32] K, real[n, 16, 32] V) => (real[n, 16, 64] Y) {
        S = Shape<end=1>(Q)  T = Concat<axis=0>(S, one)  positions = Expand(row, T)
        A = RotaryEmbedding<num_heads=4>(Q, cos, sin, positions)
        B = RotaryEmbedding<num_heads=2>(K, cos, sin, positions)
        Y = Attention<q_num_heads=4, kv_num_heads=2, is_causal=1>(A, B, V)
    }""",
    {**half_angles(16, 8), "row": np.arange(16)[None], "one": np.array([1])},
)

CAPPED_GROUP_QUERY = Graph(
    f"""g (real[2, 512, 64] Q, real[2, 512, 32] K, real[2, 512, 32] V) => (real[2, 512, 64] Y) {{
        A = RotaryEmbedding<num_heads=4>(Q, cos, sin, positions)
        B = RotaryEmbedding<num_heads=2>(K, cos, sin, positions)
        Ar = Reshape(A, split4)  Ah = {SWAP}(Ar)
        Br = Reshape(B, split2)  Bh = {SWAP}(Br)
        Bu = Unsqueeze(Bh, axis)  Be = Expand(Bu, pairs)  Bm = Reshape(Be, heads)
        Vr = Reshape(V, split2)  Vh = {SWAP}(Vr)
        Vu = Unsqueeze(Vh, axis)  Ve = Expand(Vu, pairs)  Vm = Reshape(Ve, heads)
        T = Transpose<perm=[0,1,3,2]>(Bm)  D = MatMul(Ah, T)  S = Mul(D, scale)
        R = Div(S, cap)  H = Tanh(R)  C = Mul(H, cap)  M = Add(C, mask)
        P = Softmax<axis=-1>(M)  O = MatMul(P, Vm)  W = {SWAP}(O)  Y = Reshape(W, merged)
    }}""",
    {
        **half_angles(512, 8),
        "positions": np.tile(np.arange(512), (2, 1)),
        "mask": np.where(band(512, 64), 0.0, -np.inf)[None, None],
        "scale": np.float64(0.3),
        "cap": np.float64(1.5),
        "axis": np.array([2]),
        "pairs": np.array([2, 2, 2, 512, 16]),
        "heads": np.array([2, 4, 512, 16]),
        "split4": np.array([0, 0, 4, 16]),
        "split2": np.array([0, 0, 2, 16]),
        "merged": np.array([0, 0, -1]),
    },
)

_READ = frozenset(
    {"A", "B", "Ar", "Ah", "Br", "Bh", "Bu", "Be", "Bm", "Vr", "Vh", "Vu", "Ve", "Vm"}
)
_TABLES = frozenset({"Cc", "Cu", "Dd", "Du"})
_HALF = ("float16", "bfloat16")

#: Fields of the patterns, by name.
ATTENTIONS = {
    "half table": {
        "rule": "HalfTable",
        "graph": HALF_TABLE,
        "operators": ("Mul", "Concat"),
        "cpu": ("float", "double", *_HALF),
        "cuda": ("float", "double", *_HALF),
        "shared": frozenset("T"),
    },
    "rotary of any batch": {
        "rule": "Rotary",
        "graph": ROTARY_ANY_BATCH,
        "operators": ("Shape", "Concat", "Expand", "RotaryEmbedding"),
    },
    "rotary computed": {
        "rule": "Rotary",
        "graph": ROTARY_COMPUTED,
        "operators": (*("Shape", "Concat", "Expand") * 2, "RotaryEmbedding"),
        "shared": _TABLES,
    },
    "rotary computed for each": {
        "rule": "Rotary",
        "graph": ROTARY_OF_EACH,
        "operators": ("RotaryEmbedding",),
        "shared": _TABLES,
    },
    "rotary of merged heads": {
        "rule": "RotaryBeforeSplit",
        "graph": ROTARY_MERGED,
        "operators": ("Reshape", "RotaryEmbedding", "Reshape", "Transpose"),
    },
    "rotary with tables for each": {
        "rule": "RotaryBeforeSplit",
        "graph": ROTARY_TABLES_OF_EACH,
        "operators": ("RotaryEmbedding", "Reshape", "Transpose"),
        "shared": frozenset({"Xr"}),
    },
    "split of merged heads": {
        "rule": "AttentionBeforeSplit",
        "graph": ATTENTION_MERGED,
        "operators": ("Reshape", "Reshape", "Attention"),
        "shared": frozenset({"Qh", "Kh", "Vr", "Vh"}),
    },
    "eager widened": {
        "rule": "EagerAttention",
        "graph": WIDENED,
        "operators": ("Attention",),
    },
    "group query in a window": {
        "rule": "GroupQuery",
        "graph": GROUP_QUERY_WINDOW,
        "operators": ("GroupQueryAttention",),
        "cpu": (),
        "cuda": _HALF,
    },
    "capped group query": {
        "rule": "CappedGroupQuery",
        "graph": CAPPED_GROUP_QUERY,
        "operators": ("GroupQueryAttention",),
        "cuda": _HALF,
        "shared": _READ,
    },
    "group query capped": {
        "rule": "GroupQuery",
        "graph": GROUP_QUERY_CAPPED,
        "operators": ("GroupQueryAttention",),
        "cpu": (),
        "cuda": _HALF,
    },
    "group query of any batch": {
        "rule": "GroupQuery",
        "graph": GROUP_QUERY_ANY_BATCH,
        "operators": ("Shape", "Expand", "GroupQueryAttention"),
        "cpu": (),
        "cuda": _HALF,
        "shared": frozenset({"S", "T", "positions"}),
    },
}
