"""Which nodes draw what they return."""

import numpy as np
import onnx
import pytest

from ortmeter.operators.draws import drawing_nodes

HALF = "float half = {0.5}, float none = {0.0}, bool yes = {1}, bool no = {0}"
FUNCTION = (
    """<domain: "own", opset_import: ["": 21]> Noise (x) => (y) { y = RandomNormalLike(x) }"""
)
BODY = "{} (float[2] {}) => (float[2] {})"


def model(nodes):
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "own": 1]>
        g (float[2] X, bool t) => (float[2] Y) <{HALF}> {{ {nodes} }} {FUNCTION}""")


@pytest.mark.parametrize(
    ("nodes", "drawn"),
    [
        ("Y = Abs(X)", []),
        *((f"Y = {op}(X)", ["Y"]) for op in ("RandomNormalLike", "RandomUniformLike")),
        ("Y = RandomNormal<shape = [2]>()", ["Y"]),
        ("Y = RandomUniform<shape = [2], seed = 1.0>()", ["Y"]),
        ("P = Abs(X) Y = Bernoulli(P)", ["Y"]),
        ("Y = Multinomial(X)", ["Y"]),
        # a dropout draws in training, with a ratio
        ("Y = Dropout(X)", []),
        ("Y = Dropout(X, half)", []),
        ("Y = Dropout(X, half, no)", []),
        ("Y = Dropout(X, half, yes)", ["Y"]),
        ("Y = Dropout(X, , yes)", ["Y"]),
        ("Y = Dropout(X, none, yes)", []),
        ("v = Constant<value = bool {1}>() Y = Dropout(X, half, v)", ["Y"]),
        ("Y = Dropout(X, half, t)", ["Y"]),
        # inside of what a node executes
        ("A = own.Noise(X) Y = Abs(A)", ["A"]),
        (
            """Y = If (yes) <then_branch = a () => (float[2] z) { z = RandomNormalLike(X) },
            else_branch = b () => (float[2] w) { w = Abs(X) }>""",
            ["Y"],
        ),
    ],
)
def test_nodes_that_draw(nodes, drawn):
    found = drawing_nodes(model(nodes), {"X": np.zeros(2, np.float32), "t": np.array(True)})
    assert [node.output[0] for node in found] == drawn


def test_functions_that_call_others_many_times_or_themselves():
    calls = "".join(
        f"""<domain: "own", opset_import: ["": 21, "own": 1]> F{rank} (x) => (y)
        {{ a = own.F{rank + 1}(x) b = own.F{rank + 1}(x) y = Add(a, b) }}"""
        for rank in range(60)  # 2 ** 60 calls
    )
    last = """<domain: "own", opset_import: ["": 21, "own": 1]> F60 (x) => (y)
        { z = own.F60(x) y = %s(z) }"""
    for op, drawn in (("Abs", 0), ("RandomNormalLike", 2)):
        text = f"""<ir_version: 10, opset_import: ["": 21, "own": 1]>
            g (float[2] X) => (float[2] Y) {{ Z = own.F0(X) Y = own.F0(Z) }}{calls}{last % op}"""
        assert len(drawing_nodes(onnx.parser.parse_model(text), {})) == drawn
