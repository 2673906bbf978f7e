"""Graphs of the rules on products, activations and scales, and what each one becomes."""

import numpy as np
from backend_graphs import Graph

_ROWS = {"rows": np.array([-1, 8])}
FLAT_PRODUCT = Graph(
    """g (real[2, 4, 8] X, real[8, 6] W, real[6] B) => (real[8, 6] Y) {
        R = Reshape(X, rows)  Y = Gemm(R, W, B)
    }""",
    _ROWS,
)
FLAT_LINEAR = Graph(
    """g (real[2, 4, 8] X, real[6, 8] W) => (real[8, 6] Y) {
        R = Reshape(X, rows)  Y = Gemm<transB=1>(R, W)
    }""",
    _ROWS,
)
FLAT_HEADS = Graph(
    """g (real[2, 4, 2, 4] X, real[8, 6] W, real[6] B) => (real[8, 6] Y) {
        R = Reshape(X, rows)  Y = Gemm(R, W, B)
    }""",
    _ROWS,
)
FLAT_NORMALIZATION = Graph(
    """g (real[2, 4, 8] X, real[8] G, real[8] S) => (real[8, 8] Y) {
        R = Reshape(X, rows)  Y = LayerNormalization<axis=1, epsilon=0.001>(R, G, S)
    }""",
    _ROWS,
)
FLAT_ACTIVATION = Graph(
    "g (real[2, 4, 8] X) => (real[8, 8] Y) { R = Reshape(X, rows)  Y = Relu(R) }", _ROWS
)
FLAT_SUM = Graph(
    """g (real[2, 4, 8] X, real[2, 4, 8] Z) => (real[8, 8] Y) {
        R = Reshape(X, rows)  Q = Reshape(Z, rows)  Y = Add(R, Q)
    }""",
    _ROWS,
)
THERE_AND_BACK = Graph(
    """g (real[n, 4, 8] X) => (real[n, 4, 8] Y) {
        R = Reshape(X, rows)  Y = Reshape(R, back)
    }""",
    {"rows": np.array([-1, 32]), "back": np.array([-1, 4, 8])},
)
TANH_GELU = Graph(
    """g (real[2, 4] X) => (real[2, 4] Y) {
        H = Mul(X, half)  C = Pow(X, three)  P = Mul(C, cubic)  S = Add(X, P)  I = Mul(S, slope)
        T = Tanh(I)  A = Add(T, one)  Y = Mul(H, A)
    }""",
    {
        "half": np.float64(0.5),
        "three": np.float64(3),
        "cubic": np.float64(0.044715),
        "slope": np.float64(0.7978845608),
        "one": np.float64(1),
    },
)
# gelu_fast of transformers
TANH_GELU_FACTORED = Graph(
    """g (real[2, 4] X) => (real[2, 4] Y) {
        H = Mul(X, half)  L = Mul(X, slope)  C = Mul(X, cubic)  P = Mul(C, X)  S = Add(P, one)
        I = Mul(L, S)  T = Tanh(I)  A = Add(T, one)  Y = Mul(H, A)
    }""",
    {name: TANH_GELU.constants[name] for name in ("half", "cubic", "slope", "one")},
)
BIAS_TANH_GELU = Graph(
    """g (real[2, 4, 8] X, real[8] B) => (real[2, 4, 8] Y) {
        A = Add(B, X)  Y = Gelu<approximate="tanh">(A)
    }"""
)
SCALED = Graph(
    """g (real[2, 5, 8] Q, real[2, 6, 8] K, real[2, 6, 8] V) => (real[2, 5, 8] Y) {
        S = Mul(Q, factor)  Y = Attention<scale=0.5, q_num_heads=2, kv_num_heads=2>(S, K, V)
    }""",
    {"factor": np.float64(0.3)},
)
SCALED_MASK = Graph(
    """g (real[2, 3, 5, 4] Q, real[2, 3, 6, 4] K, real[2, 3, 6, 4] V, real[5, 6] M)
    => (real[2, 3, 5, 4] Y) { S = Mul(Q, factor)  Y = Attention<scale=1.0>(S, K, V, M) }""",
    {"factor": np.float64([0.3])},
)
_ANGLES = np.arange(5)[:, None] / 10 ** (np.arange(2) / 4)
PARTIAL_ROTARY = Graph(
    """g (real[2, 3, 5, 8] X) => (real[2, 3, 5, 8] Y) {
        F = Slice(X, zero, middle, last, one)  S = Slice(X, middle, end, last, one)
        R = RotaryEmbedding(F, cos, sin, positions)  Y = Concat<axis=-1>(R, S)
    }""",
    {
        "cos": np.cos(_ANGLES),
        "sin": np.sin(_ANGLES),
        "positions": np.tile(np.arange(5), (2, 1)),
        "zero": np.array([0]),
        "middle": np.array([4]),
        "end": np.array([2**63 - 1]),
        "last": np.array([3]),
        "one": np.array([1]),
    },
)

_SINGLE, _WIDE, _HALF = ("float",), ("float", "double"), ("float16", "bfloat16")
_EVERY = _WIDE + _HALF
_FLAT = {"rule": "Flattening", "cpu": _EVERY, "cuda": _EVERY, "shared": frozenset("R")}
_GELU = {"rule": "TanhGelu", "operators": ("Gelu",), "cpu": _SINGLE, "cuda": (*_WIDE, "float16")}
_SCALED = {"rule": "ScaledQueries", "operators": ("Attention",), "shared": frozenset("S")}
#: Fields of a pattern, by name.
PRODUCTS = {
    "flat product": _FLAT | {"graph": FLAT_PRODUCT, "operators": ("MatMul", "Add", "Reshape")},
    "flat linear": _FLAT | {"graph": FLAT_LINEAR, "operators": ("Transpose", "MatMul", "Reshape")},
    "flat heads": _FLAT
    | {"graph": FLAT_HEADS, "operators": ("Reshape", "MatMul", "Add", "Reshape")},
    "flat norm": _FLAT
    | {"graph": FLAT_NORMALIZATION, "operators": ("LayerNormalization", "Reshape")},
    "flat relu": _FLAT | {"graph": FLAT_ACTIVATION, "operators": ("Relu", "Reshape")},
    "flat sum": _FLAT
    | {"graph": FLAT_SUM, "operators": ("Add", "Reshape"), "shared": frozenset("RQ")},
    "there and back": _FLAT | {"graph": THERE_AND_BACK, "operators": ("Identity",)},
    "tanh gelu": _GELU | {"graph": TANH_GELU, "shared": frozenset("HCPSI")},
    "tanh gelu factored": _GELU | {"graph": TANH_GELU_FACTORED, "shared": frozenset("HLCPSI")},
    "bias tanh gelu": {
        "rule": "BiasFastGelu",
        "graph": BIAS_TANH_GELU,
        "operators": ("FastGelu",),
        "cpu": (),
        "cuda": _SINGLE + _HALF,
    },
    "scaled": _SCALED | {"graph": SCALED},
    "scaled mask": _SCALED | {"graph": SCALED_MASK},
    "partial rotary": {
        "rule": "PartialRotary",
        "graph": PARTIAL_ROTARY,
        "operators": ("RotaryEmbedding",),
    },
}
