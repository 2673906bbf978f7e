"""One graph for each pattern of the rewriting rules, and what it becomes."""

from dataclasses import dataclass

import numpy as np
from backend_attention_patterns import ATTENTIONS
from backend_graphs import Graph
from backend_product_patterns import PRODUCTS

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


def angles(length, size):
    """Tables of a rotary embedding, cosines and sines, whose halves are equal."""
    half = np.arange(length)[:, None] / 10 ** (np.arange(size // 2) / size)
    both = np.concatenate([half, half], axis=-1)[None, None]
    return {"cos": np.cos(both), "sin": np.sin(both)}


def causal(length, hidden):
    """A mask that is *hidden* above the diagonal."""
    return np.where(np.tri(length, dtype=bool), 0.0, hidden)


def split(name, heads=2, size=4):
    """Split the last dimension of a value into heads."""
    return (
        f"{name}r = Reshape({name}, split{heads}{size}){name}h = Transpose<perm=[0,2,1,3]>({name}r)"
    )


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
WIDENED = Graph(
    """g (real[2, 4, 8] X, real[8] G) => (real[2, 4, 8] Y) {
        W = Cast<to=WIDE>(X)
        P = Pow(W, two)  M = ReduceMean<keepdims=1>(P, last)  E = Add(M, epsilon)
        S = Sqrt(E)  R = Reciprocal(S)  N = Mul(W, R)  C = Cast<to=REAL>(N)  Y = Mul(C, G)
    }""",
    {"two": np.float32(2), "last": np.array([-1]), "epsilon": np.float32(1e-3)},
)
ROTARY = Graph(
    """g (real[2, 3, 5, 8] X) => (real[2, 3, 5, 8] Y) {
        F = Slice(X, zero, middle, last, one)  S = Slice(X, middle, end, last, one)
        N = Neg(S)  R = Concat<axis=-1>(N, F)  A = Mul(X, cos)  B = Mul(R, sin)  Y = Add(A, B)
    }""",
    {
        **angles(5, 8),
        "zero": np.array([0]),
        "middle": np.array([4]),
        "end": np.array([2**63 - 1]),
        "last": np.array([3]),
        "one": np.array([1]),
    },
)
ROTARY_SPLIT = Graph(
    f"""g (real[2, 5, 8] X) => (real[2, 2, 5, 4] Y) {{
        {split("X")}  Y = RotaryEmbedding(Xh, cos, sin, positions)
    }}""",
    {
        "cos": angles(5, 4)["cos"][0, 0, :, :2],
        "sin": angles(5, 4)["sin"][0, 0, :, :2],
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
        A = Attention<is_causal=1, scale=0.3>(Qh, Kh, Vh)  T = Transpose<perm=[0,2,1,3]>(A)
        Y = Reshape(T, merged)
    }}""",
    {**splits(), **splits(4), "merged": np.array([0, 0, -1])},
)
ATTENTION_SPLIT_MASK = Graph(
    f"""g (real[2, 5, 8] Q, real[2, 6, 8] K, real[2, 6, 8] V, real[2, 1, 5, 6] M)
    => (real[2, 5, 8] Y) {{
        {split("Q")}  {split("K")}  {split("V")}
        A = Attention(Qh, Kh, Vh, M)  T = Transpose<perm=[0,2,1,3]>(A)  Y = Reshape(T, merged)
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
    {
        "cos": angles(16, 16)["cos"][0, 0, :, :8],
        "sin": angles(16, 16)["sin"][0, 0, :, :8],
        "positions": np.tile(np.arange(16), (2, 1)),
    },
)

_SPLIT_RESULTS = frozenset({"Qr", "Kr", "Vr", "Qh", "Kh", "Vh"})
_REPEATED_RESULTS = frozenset({"Ku", "Ke", "Kr", "Vu", "Ve", "Vr"})

# What keeps NaN where a mask hides every key.
_MASKED = ("Cast", "ReduceMax", "IsInf", "Max", "Where")

PATTERNS = {
    "rms": Pattern("RMSNorm", ROOT_MEAN_SQUARE, ("RMSNormalization",), SINGLE, SINGLE),
    "rms widened": Pattern("RMSNorm", WIDENED, ("RMSNormalization",), HALF[:1], HALF),
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
}
PATTERNS |= {name: Pattern(**fields) for name, fields in (PRODUCTS | ATTENTIONS).items()}
