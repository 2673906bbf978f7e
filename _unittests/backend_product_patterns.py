"""Graphs of the rules on products, and what each one becomes."""

import numpy as np
from backend_graphs import Graph

_ROWS = {"rows": np.array([-1, 8])}
FLAT_PRODUCT = Graph(
    """g (real[2, 4, 8] X, real[8, 6] W, real[6] B) => (real[8, 6] Y) {
        R = Reshape(X, rows)  Y = Gemm(R, W, B)
    }""",
    _ROWS,
)
FLAT_HEADS = Graph(
    """g (real[2, 4, 2, 4] X, real[8, 6] W, real[6] B) => (real[8, 6] Y) {
        R = Reshape(X, rows)  Y = Gemm(R, W, B)
    }""",
    _ROWS,
)
THERE_AND_BACK = Graph(
    """g (real[n, 4, 8] X) => (real[n, 4, 8] Y) {
        R = Reshape(X, rows)  Y = Reshape(R, back)
    }""",
    {"rows": np.array([-1, 32]), "back": np.array([-1, 4, 8])},
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

_EVERY = ("float", "double", "float16", "bfloat16")
_FLAT = {"rule": "Flattening", "cpu": _EVERY, "cuda": _EVERY, "shared": frozenset("R")}
#: Fields of a pattern, by name.
PRODUCTS = {
    "flat product": _FLAT | {"graph": FLAT_PRODUCT, "operators": ("MatMul", "Add", "Reshape")},
    "flat heads": _FLAT
    | {"graph": FLAT_HEADS, "operators": ("Reshape", "MatMul", "Add", "Reshape")},
    "there and back": _FLAT | {"graph": THERE_AND_BACK, "operators": ("Identity",)},
    "partial rotary": {
        "rule": "PartialRotary",
        "graph": PARTIAL_ROTARY,
        "operators": ("RotaryEmbedding",),
    },
}
