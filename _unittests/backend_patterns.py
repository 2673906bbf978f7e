"""One graph for each pattern of the rewriting rules, and what it becomes."""

from dataclasses import dataclass

import numpy as np
from backend_graphs import Graph

SINGLE = ("float",)
WIDE = ("float", "double")
HALF = ("float16", "bfloat16")
EVERY = WIDE + HALF


@dataclass(frozen=True)
class Pattern:
    """A graph that holds the pattern of a rule once.

    The rule fires for the element types that a kernel has, on each provider. Results that are
    shared may be used elsewhere without preventing it.
    """

    rule: str
    graph: Graph
    operators: tuple[str, ...]
    cpu: tuple[str, ...] = ("float", "float16")
    cuda: tuple[str, ...] = ("float", "float16", "bfloat16")
    shared: frozenset[str] = frozenset()

    @property
    def provider(self):
        """Where it is applied here: the kernels of a rule for CUDA exist on CPU as well."""
        return "cpu" if self.cpu else "cuda"

    @property
    def elements(self):
        """Element types there, of those that numpy has as well."""
        return self.cpu or tuple(e for e in self.cuda if e != "bfloat16")[:1]


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


def angles(length, size):
    """Tables whose halves are equal, for heads that are split."""
    tables = half_angles(length, size // 2).items()
    return {name: np.concatenate([t, t], axis=-1)[None, None] for name, t in tables}


def band(length, width):
    """What a query sees: itself and the keys just before, *width* of them in all."""
    return np.tri(length, dtype=bool) & ~np.tri(length, k=-width, dtype=bool)


def rotate(cos="cos", sin="sin"):
    """Rotate the halves of the last axis."""
    return f"""F = Slice(X, zero, middle, last, one)  S = Slice(X, middle, end, last, one)
        N = Neg(S)  R = Concat<axis=-1>(N, F)  A = Mul(X, {cos})  B = Mul(R, {sin})  Y = Add(A, B)
    """


def causal(length, hidden):
    """A mask that is *hidden* above the diagonal."""
    return np.where(np.tri(length, dtype=bool), 0.0, hidden)


def split(name, heads=2, size=4):
    """Split the last dimension of a value into heads."""
    return f"{name}r = Reshape({name}, split{heads}{size})  {name}h = {SWAP}({name}r)"


def repeat(name):
    """Repeat each head of a value."""
    return (
        f"{name}u = Unsqueeze({name}, axis)"
        f"{name}e = Expand({name}u, pairs)"
        f"{name}r = Reshape({name}e, merged)"
    )


def splits(heads=2, size=4):
    """The shape that `split` asks for."""
    return {f"split{heads}{size}": np.array([0, 0, heads, size])}


ROOT_MEAN_SQUARE = Graph(
    """g (real[2, 4, 8] X, real[8] G) => (real[2, 4, 8] Y) {
        P = Pow(X, two)  M = ReduceMean<keepdims=1>(P, last)  E = Add(M, epsilon)
        S = Sqrt(E)  R = Reciprocal(S)  N = Mul(X, R)  Y = Mul(G, N)
    }""",
    {"two": np.float64(2), "last": np.array([-1]), "epsilon": np.float64(1e-3)},
)
RMS_WIDENED = Graph(
    """g (real[2, 4, 8] X, real[8] G) => (real[2, 4, 8] Y) {
        W = Cast<to=WIDE>(X)
        P = Pow(W, two)  M = ReduceMean<keepdims=1>(P, last)  E = Add(M, epsilon)
        S = Sqrt(E)  R = Reciprocal(S)  N = Mul(W, R)  C = Cast<to=REAL>(N)  Y = Mul(C, G)
    }""",
    {"two": np.float32(2), "last": np.array([-1]), "epsilon": np.float32(1e-3)},
)
ROTARY = Graph(
    f"g (real[2, 3, 5, 8] X) => (real[2, 3, 5, 8] Y) {{ {rotate()} }}", {**angles(5, 8), **HALVES}
)
ROTARY_SPLIT = Graph(
    f"""g (real[2, 5, 8] X) => (real[2, 2, 5, 4] Y) {{
        {split("X")}  Y = RotaryEmbedding(Xh, cos, sin, positions)
    }}""",
    {
        **half_angles(5, 2),
        "positions": np.tile(np.arange(5), (2, 1)),
        **splits(),
    },
)
EAGER = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 3, 6, 4] K, real[2, 3, 6, 4] V, real[2, 1, 5, 6] A)
    => (real[2, 3, 5, 4] Y) {
        T = Transpose<perm=[0,1,3,2]>(K)  D = MatMul(Q, T)  S = Mul(D, scale)  M = Add(S, A)
        P = Softmax<axis=-1>(M)  Y = MatMul(P, V)
    }""",
    {"scale": np.float64(0.3)},
)
EAGER_MERGED = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 6, 3, 4] K, real[2, 3, 6, 4] V) => (real[2, 3, 5, 4] Y) {
        T = Transpose<perm=[0,2,3,1]>(K)  D = MatMul(Q, T)  S = Div(D, scale)
        P = Softmax<axis=-1>(S)  Y = MatMul(P, V)
    }""",
    {"scale": np.float64([[[[3.0]]]])},
)
EAGER_PLAIN = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 3, 6, 4] K, real[2, 3, 6, 4] V, real[1, 3, 5, 6] A)
    => (real[2, 3, 5, 4] Y) {
        T = Transpose<perm=[0,1,3,2]>(K)  D = MatMul(Q, T)  M = Add(A, D)
        P = Softmax<axis=-1>(M)  Y = MatMul(P, V)
    }"""
)
REPEATED = Graph(
    f"""g (real[2, 6, 5, 4] Q, real[2, 3, 7, 4] K, real[2, 3, 7, 4] V) => (real[2, 6, 5, 4] Y) {{
        {repeat("K")}  {repeat("V")}  Y = Attention<scale=0.3>(Q, Kr, Vr)
    }}""",
    {"axis": np.array([2]), "pairs": np.array([2, 3, 2, 7, 4]), "merged": np.array([2, 6, 7, 4])},
)
REPEATED_MASK = Graph(
    f"""g (real[2, 6, 5, 4] Q, real[2, 3, 7, 4] K, real[2, 3, 7, 4] V, real[2, 1, 5, 7] M)
    => (real[2, 6, 5, 4] Y) {{
        {repeat("K")}  {repeat("V")}  Y = Attention(Q, Kr, Vr, M)
    }}""",
    REPEATED.constants,
)
ATTENTION_SPLIT = Graph(
    f"""g (real[2, 5, 16] Q, real[2, 5, 8] K, real[2, 5, 8] V) => (real[2, 5, 16] Y) {{
        {split("Q", 4)}  {split("K")}  {split("V")}
        A = Attention<is_causal=1, scale=0.3>(Qh, Kh, Vh)  T = {SWAP}(A)
        Y = Reshape(T, merged)
    }}""",
    {**splits(), **splits(4), "merged": np.array([0, 0, -1])},
)
ATTENTION_SPLIT_MASK = Graph(
    f"""g (real[2, 5, 8] Q, real[2, 6, 8] K, real[2, 6, 8] V, real[2, 1, 5, 6] M)
    => (real[2, 5, 8] Y) {{
        {split("Q")}  {split("K")}  {split("V")}
        A = Attention(Qh, Kh, Vh, M)  T = {SWAP}(A)  Y = Reshape(T, merged)
    }}""",
    {**splits(), "merged": np.array([2, 5, 8])},
)
MASK = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 3, 5, 4] K, real[2, 3, 5, 4] V) => (real[2, 3, 5, 4] Y) {
        Y = Attention<scale=0.3>(Q, K, V, mask)
    }""",
    {"mask": np.tri(5, dtype=bool)[None, None]},
)
MASK_REAL = Graph(
    """g (real[2, 5, 8] Q, real[2, 5, 8] K, real[2, 5, 8] V) => (real[2, 5, 8] Y) {
        Y = Attention<q_num_heads=2, kv_num_heads=2>(Q, K, V, mask)
    }""",
    {"mask": causal(5, -np.inf)},
)
LINEAR = Graph(
    """g (real[2, 4, 8] X, real[6, 8] W) => (real[2, 4, 6] Y) {
        T = Transpose<perm=[1,0]>(W)  Y = MatMul(X, T)
    }"""
)
SAME_SHAPE = Graph(
    "g (real[2, 3, 4] X) => (real[4, 3, 2] Y) { R = Reshape(X, shape)  Y = Transpose(R) }",
    {"shape": np.array([2, -1, 4])},
)
GROUP_QUERY = Graph(
    """g (real[2, 16, 64] Q, real[2, 16, 32] K, real[2, 16, 32] V) => (real[2, 16, 64] Y) {
        A = RotaryEmbedding<num_heads=4>(Q, cos, sin, positions)
        B = RotaryEmbedding<num_heads=2>(K, cos, sin, positions)
        Y = Attention<is_causal=1, q_num_heads=4, kv_num_heads=2, scale=0.3>(A, B, V)
    }""",
    {**half_angles(16, 8), "positions": np.tile(np.arange(16), (2, 1))},
)

HALF_TABLE = Graph(
    """g (real[1, 5, 4] X) => (real[1, 5, 8] Y) {
        T = Concat<axis=-1>(X, X)  Y = Mul(T, factor)
    }""",
    {"factor": np.float64(1.5)},
)
ROTARY_ANY_BATCH = Graph(
    f"g (real[n, 3, 5, 8] X) => (real[n, 3, 5, 8] Y) {{ {rotate()} }}",
    {**angles(5, 8), **HALVES},
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
EAGER_WIDENED = Graph(
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

THERE_AND_BACK = Graph(
    """g (real[n, 4, 8] X) => (real[n, 4, 8] Y) {
        R = Reshape(X, rows)  Y = Reshape(R, back)
    }""",
    {"rows": np.array([-1, 32]), "back": np.array([-1, 4, 8])},
)
_TABLES = frozenset({"Cc", "Cu", "Dd", "Du"})
_SPLIT_RESULTS = frozenset({"Qr", "Kr", "Vr", "Qh", "Kh", "Vh"})
_REPEATED_RESULTS = frozenset({"Ku", "Ke", "Kr", "Vu", "Ve", "Vr"})

# What keeps NaN where a mask hides every key.
_MASKED = ("Cast", "ReduceMax", "IsInf", "Max", "Where")

PATTERNS = {
    "rms": Pattern("RMSNorm", ROOT_MEAN_SQUARE, ("RMSNormalization",), SINGLE, SINGLE),
    "rms widened": Pattern("RMSNorm", RMS_WIDENED, ("RMSNormalization",), HALF[:1], HALF),
    "rotary": Pattern("Rotary", ROTARY, ("RotaryEmbedding",)),
    "rotary before split": Pattern(
        "RotaryBeforeSplit",
        ROTARY_SPLIT,
        ("RotaryEmbedding", "Reshape", "Transpose"),
        shared=frozenset({"Xr"}),
    ),
    "eager": Pattern("EagerAttention", EAGER, (*_MASKED, "Attention")),
    "eager merged": Pattern("EagerAttention", EAGER_MERGED, ("Transpose", "Attention")),
    "eager plain": Pattern("EagerAttention", EAGER_PLAIN, (*_MASKED, "Attention")),
    "repeated": Pattern(
        "RepeatedHeads", REPEATED, ("Attention",), cuda=HALF, shared=_REPEATED_RESULTS
    ),
    "repeated mask": Pattern(
        "RepeatedHeads", REPEATED_MASK, ("Attention",), cuda=HALF, shared=_REPEATED_RESULTS
    ),
    "split": Pattern(
        "AttentionBeforeSplit", ATTENTION_SPLIT, ("Attention",), shared=_SPLIT_RESULTS
    ),
    "split mask": Pattern(
        "AttentionBeforeSplit", ATTENTION_SPLIT_MASK, ("Attention",), shared=_SPLIT_RESULTS
    ),
    "mask": Pattern("CausalMask", MASK, ("Attention",)),
    "mask of numbers": Pattern("CausalMask", MASK_REAL, ("Attention",)),
    "same shape": Pattern("Flattening", SAME_SHAPE, ("Transpose",), EVERY, EVERY, frozenset("R")),
    "linear": Pattern("TransposedWeight", LINEAR, ("FusedMatMul",), WIDE, EVERY),
    "group query": Pattern("GroupQuery", GROUP_QUERY, ("GroupQueryAttention",), (), HALF),
    "there and back": Pattern(
        "Flattening", THERE_AND_BACK, ("Identity",), EVERY, EVERY, frozenset("R")
    ),
    "half table": Pattern("HalfTable", HALF_TABLE, ("Mul", "Concat"), EVERY, EVERY, frozenset("T")),
    "rotary of any batch": Pattern(
        "Rotary", ROTARY_ANY_BATCH, ("Shape", "Concat", "Expand", "RotaryEmbedding")
    ),
    "rotary computed": Pattern(
        "Rotary",
        ROTARY_COMPUTED,
        ("Shape", "Concat", "Expand", "Expand", "RotaryEmbedding"),
        shared=_TABLES,
    ),
    "rotary computed for each": Pattern(
        "Rotary", ROTARY_OF_EACH, ("RotaryEmbedding",), shared=_TABLES
    ),
    "rotary of merged heads": Pattern(
        "RotaryBeforeSplit", ROTARY_MERGED, ("Reshape", "RotaryEmbedding", "Reshape", "Transpose")
    ),
    "rotary with tables for each": Pattern(
        "RotaryBeforeSplit",
        ROTARY_TABLES_OF_EACH,
        ("RotaryEmbedding", "Reshape", "Transpose"),
        shared=frozenset({"Xr"}),
    ),
    "split of merged heads": Pattern(
        "AttentionBeforeSplit",
        ATTENTION_MERGED,
        ("Reshape", "Reshape", "Attention"),
        shared=frozenset({"Qh", "Kh", "Vr", "Vh"}),
    ),
    "eager widened": Pattern("EagerAttention", EAGER_WIDENED, ("Attention",)),
    "group query in a window": Pattern(
        "GroupQuery", GROUP_QUERY_WINDOW, ("GroupQueryAttention",), (), HALF
    ),
    "group query capped": Pattern(
        "GroupQuery", GROUP_QUERY_CAPPED, ("GroupQueryAttention",), (), HALF
    ),
    "group query of any batch": Pattern(
        "GroupQuery",
        GROUP_QUERY_ANY_BATCH,
        ("Shape", "Expand", "GroupQueryAttention"),
        (),
        HALF,
        frozenset({"S", "T", "positions"}),
    ),
}
