import numpy as np
import pandas as pd
import pytest

from ortmeter.profiling import read_profile
from ortmeter.profiling.graph import find_domains, find_nodes, find_origins, name_nodes, walk
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.sessions import make_session, optimized_model

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "other": 1]>'


def kinds(*rows):
    return pd.DataFrame(rows, columns=["name", "op", "parent"]).astype(object)


def graph(body, weights=""):
    return load_model(f"{HEAD} g (float[2] X, bool C) => (float[2] Y) {weights} {{ {body} }}")


def test_nodes_are_found_by_name():
    model = graph("[a] T = Abs(X)  [b] U = Abs(T)  [c] Y = com.microsoft.Gelu(U)")
    found = find_nodes(kinds(("b", "Abs", None), ("c", "Gelu", None), ("d", "Abs", None)), model)
    assert [f and f.node.name for f in found] == ["b", "c", None]
    assert found[1].domain == "com.microsoft"
    twice = graph("[a] T = Abs(X)  [a] Y = Abs(T)")
    assert find_nodes(kinds(("a", "Abs", None)), twice) == [None]


def test_nodes_without_a_name_are_not_guessed(tmp_path):
    """ONNX Runtime does not execute the branches of a graph in the order of the file."""
    text = f"{HEAD} g (float[2] X) => (float[2] Y) {{ T = Abs(X)  Y = other.Abs(T) }}"
    assert find_nodes(kinds(("Abs_0", "Abs", None)), load_model(text)) == [None]
    text = text.replace("other.Abs", "Neg")
    session = make_session(text, provider="cpu", optimization="none", profile=tmp_path / "run")
    session.run(None, {"X": np.ones(2, np.float32)})
    nodes = read_profile(session.end_profiling(), model=text).by_node()
    assert nodes["domain"].tolist() == ["ai.onnx", "ai.onnx"]
    assert nodes["flop"].isna().all()


def test_bodies_are_told_by_their_node():
    body = """[one] T = If (C) <then_branch = t () => (float[2] a) { [in] a = Abs(X) },
        else_branch = e () => (float[2] b) { [in] b = other.Abs(X) }>
        [in] Y = Abs(T)"""
    model = graph(body)
    found = [(held.node.op_type, held.parent) for held in walk(model.graph)]
    assert found == [("If", None), ("Abs", "one"), ("Abs", "one"), ("Abs", None)]
    around = graph(body.replace("other.Abs(X)", "Add(X, W)"), "<float[2] W = {1, 2}>")
    assert [set(f.initializers) for f in walk(around.graph)] == [set(), set(), {"W"}, set()]
    assert find_nodes(kinds(("in", "Abs", "one"), ("in", "Abs", None)), model)[0] is None
    assert find_nodes(kinds(("in", "Abs", None)), model)[0].node.output[0] == "Y"


def test_the_domain_of_an_unknown_node_is_that_of_its_operator_when_it_is_the_only_one():
    model = graph("[a] T = com.microsoft.Gelu(X)  [b] U = Abs(T)  [c] Y = other.Abs(U)")
    rows = kinds(
        ("lost", "Gelu", None), ("lost", "Abs", None), ("b", "Abs", None), ("x", "No", None)
    )
    assert find_domains(rows, model) == ["com.microsoft", None, "ai.onnx", None]


def test_names_are_given_once():
    model = graph("""T = If (C) <then_branch = t () => (float[2] a) { a = Abs(X) },
        else_branch = e () => (float[2] b) { b = Abs(X) }>
        [Abs_2] U = Neg(T)  Y = Abs(U)""")
    before = model.SerializeToString()
    names = [found.node.name for found in walk(name_nodes(model).graph)]
    assert names == ["If_0", "If_0/Abs_0", "If_0/Abs_0_", "Abs_2", "Abs_2_"]
    assert model.SerializeToString() == before
    named = name_nodes(model)
    assert name_nodes(named) is named


SQUARE = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "com.microsoft.nchwc": 1]>
g (float[2, 2] X, float[2, 2] W) => (float[2, 2] Y)"""


def find(before, after):
    return find_origins(
        load_model(f"{SQUARE} {{ {after} }}"), load_model(f"{SQUARE} {{ {before} }}")
    )


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


@pytest.mark.parametrize("optimization", ["none", "extended", "all"])
def test_every_node_of_the_sample_is_accounted_for_once(optimization):
    original = name_nodes(sample_cnn())
    optimized = optimized_model(original, provider="cpu", optimization=optimization)
    found = find_origins(optimized, original)
    assert len(found) == len(optimized.graph.node)
    sources = sorted(name for names in found.values() for name in names)
    assert sources == sorted(node.name for node in original.graph.node)
    for node in optimized.graph.node:
        assert bool(found[node.name]) == ("Reorder" not in node.op_type)
