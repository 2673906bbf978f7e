import pytest

from ortmeter.profiling.correlation import name_nodes
from ortmeter.profiling.provenance import origins
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.sessions import optimized_model

HEAD = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "com.microsoft.nchwc": 1]>
g (float[2, 2] X, float[2, 2] W) => (float[2, 2] Y)"""


def find(before, after):
    return origins(load_model(f"{HEAD} {{ {after} }}"), load_model(f"{HEAD} {{ {before} }}"))


CHAIN = "[a] A = MatMul(X, W)  [b] B = Add(A, X)  [c] C = Relu(B)  [d] Y = Neg(C)"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # nothing changed
        (CHAIN, CHAIN, {n: (n,) for n in "abcd"}),
        # several into one, whatever its name
        (
            CHAIN,
            "[x] C = com.microsoft.FusedGemm(X, W, X)  [d] Y = Neg(C)",
            {"x": ("a", "b", "c"), "d": ("d",)},
        ),
        # a node shared by two
        (
            "[a] A = Abs(X)  [b] B = Neg(A)  [c] C = Exp(A)  [d] Y = Add(B, C)",
            "[p] B = other(X)  [q] C = another(X)  [d] Y = Add(B, C)",
            {"p": ("a", "b"), "q": ("a", "c"), "d": ("d",)},
        ),
        # a copy into another layout stands for nothing
        (
            CHAIN,
            """[in] r = com.microsoft.nchwc.ReorderInput(X)  [x] s = com.microsoft.FusedGemm(r, W)
            [out] C = com.microsoft.nchwc.ReorderOutput(s)  [d] Y = Neg(C)""",
            {"in": (), "x": ("a", "b", "c"), "out": (), "d": ("d",)},
        ),
        # a blocked convolution whose output is not copied back is told by its name
        (
            CHAIN,
            """[C_nchwc] r = com.microsoft.nchwc.Conv(X, W)
            [Y_nchwc] s = com.microsoft.nchwc.Conv(r, W)
            [out] Y = com.microsoft.nchwc.ReorderOutput(s)""",
            {"C_nchwc": ("a", "b", "c"), "Y_nchwc": ("d",), "out": ()},
        ),
        # what no name tells
        (CHAIN, "[x] Z = Abs(X)  [d] Y = Neg(Z)", {"x": (), "d": ("a", "b", "c", "d")}),
    ],
)
def test_origins(before, after, expected):
    assert find(before, after) == expected


@pytest.mark.parametrize("optimization", ["none", "basic", "extended", "layout", "all"])
def test_every_node_of_the_sample_is_accounted_for_once(optimization):
    original = name_nodes(sample_cnn())
    optimized = optimized_model(original, provider="cpu", optimization=optimization)
    found = origins(optimized, original)
    assert len(found) == len(optimized.graph.node)
    sources = sorted(name for names in found.values() for name in names)
    assert sources == sorted(node.name for node in original.graph.node)
    for node in optimized.graph.node:
        assert bool(found[node.name]) == ("Reorder" not in node.op_type)
