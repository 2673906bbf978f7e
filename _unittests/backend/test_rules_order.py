"""What a rule reuses or writes in several places: the graph stays sorted, and computes the same."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_graphs import Graph, operators, relative_errors

from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.merging import allow_copies
from ortmeter.dtypes import unit_roundoff
from ortmeter.evaluator import Evaluator

LAST = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "four": np.array([4]),
    "end": np.array([8]),
    "last": np.array([-1]),
    "parts": np.array([4, 4]),
}
SPLIT_AFTER = Graph(
    """g (real[2, 8] X) => (real[2, 4] Y, real[2, 4] A, real[2, 4] B) {
        R = Abs(X)  S = Slice(R, zero, four, last, one)  Y = Neg(S)
        A, B = Split<axis=1>(R, parts)
    }""",
    LAST,
)
# The sum of a residual is read before it is normalized.
SUM_BEFORE = Graph(
    """g (real[2, 4, 8] X, real[2, 4, 8] R, real[8] G) => (real[2, 4, 8] Y, real[2, 4, 8] Z) {
        T = Add(X, R)  Z = Neg(T)  Y = RMSNormalization<axis=-1>(T, G)
    }"""
)
SCALE_OF_THE_SUM = Graph(
    """g (real[2, 4, 8] X, real[2, 4, 8] R) => (real[2, 4, 8] Y, real[2, 4, 8] T) {
        T = Add(X, R)  G = ReduceMax<keepdims=0>(T, first)  Y = RMSNormalization<axis=-1>(T, G)
    }""",
    {"first": np.array([0, 1])},
)
LINEAR = "T{0} = Transpose<perm=[1,0]>({0})  {1} = MatMul(X, T{0})  "
# A product by weights that the model puts together itself, and by one of them.
OWN_CONCAT = Graph(
    f"""g (real[2, 8] X, real[3, 8] A, real[5, 8] B) => (real[2, 8] Y, real[2, 3] Z) {{
        W = Concat<axis=0>(A, B)  {LINEAR.format("W", "P")} Y = Relu(P)  {LINEAR.format("A", "Z")}
    }}"""
)


def check(graph, model, element="float"):
    """What reads comes after what is read, and the results are the same."""
    proto = ir.to_proto(model)
    known = {value.name for value in (*proto.graph.input, *proto.graph.initializer)} | {""}
    for node in proto.graph.node:
        assert known.issuperset(node.input), node
        known.update(node.output)
    if all(not node.domain for node in proto.graph.node):
        onnx.checker.check_model(proto)
    Evaluator(proto)
    assert max(relative_errors(graph, model, element)) <= 64 * unit_roundoff(element)


@pytest.mark.parametrize(
    ("rule", "graph", "expected"),
    [("SlicesToSplit", SPLIT_AFTER, 1), ("SkipRMSNorm", SUM_BEFORE, 1)],
)
def test_what_is_reused_comes_before_what_reads_it(rule, graph, expected):
    model = graph.model()
    assert RULES[rule].apply(model) == expected
    check(graph, model)


def test_a_kernel_that_gives_the_sum_is_not_scaled_by_it():
    model = SCALE_OF_THE_SUM.model()
    assert RULES["SkipRMSNorm"].apply(model) == 0
    check(SCALE_OF_THE_SUM, model)


def merged(graph):
    model = graph.model()
    RULES["TransposedWeight"].apply(model, "cuda")
    allow_copies(value for value in model.graph.inputs if value.name != "X")
    return model, RULES["MergedProducts"].apply(model, "cuda")


def test_a_product_of_another_concatenation_is_not_a_merged_one():
    model, count = merged(OWN_CONCAT)
    assert count == 0
    assert operators(model).count("FusedMatMul") == 2
    check(OWN_CONCAT, model)


def test_a_split_of_the_model_is_not_that_of_a_merged_product():
    graph = OWN_CONCAT.replace(
        {
            "real[2, 8] Y, real": "real[2, 5] Y, real[2, 3] Q, real",
            "Y = Relu(P)": "Y, Q = Split<axis=1>(P, parts)",
        },
        parts=np.array([5, 3]),
    )
    model, count = merged(graph)
    assert count == 0
    check(graph, model)


def test_products_are_merged_before_the_constants_that_they_read():
    weights = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    graph = Graph(
        f"""g (real[2, 8] X) => (real[2, 3] Y, real[2, 3] Z) {{
            {LINEAR.format("A", "Y")} {LINEAR.format("B", "Z")}
        }}""",
        {"A": weights[0], "B": weights[1]},
    )
    proto = graph.proto()
    nodes = list(proto.graph.node)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    del proto.graph.node[:], proto.graph.initializer[:]
    for name, pair in (("A", nodes[:2]), ("B", nodes[2:])):
        constant = onnx.helper.make_node("Constant", [], [name], value=tensors[name])
        proto.graph.node.extend([constant, *pair])
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    RULES["TransposedWeight"].apply(model, "cuda")
    for node in model.graph:
        if node.op_type == "Constant":
            node.outputs[0].const_value = node.attributes["value"].as_tensor()
    assert RULES["MergedProducts"].apply(model, "cuda") == 2
    check(graph, model)


def inside(outer, inner, types, inputs="real[2, 8] X, bool C"):
    """A graph with an If."""
    return Graph(
        f"""g ({inputs}) => ({types}, real[2, 4] K) {{
            R = Abs(X)
            K = If (C) <
              then_branch = t () => (real[2, 4] A) {{ {inner} }},
              else_branch = e () => (real[2, 4] B) {{ B = Slice(R, zero, four, last, one) }}
            >
            {outer}
        }}""",
        LAST,
    )


@pytest.mark.parametrize(
    ("outer", "inner", "types"),
    [
        # a Split inside is not seen outside
        (
            "Y = Slice(R, zero, four, last, one)",
            "A, U = Split<axis=1>(R, parts)",
            "real[2, 4] Y",
        ),
        # slices inside and outside are not the parts of one Split
        (
            "Y = Slice(R, four, end, last, one)",
            "S = Slice(R, zero, four, last, one)  A = Neg(S)",
            "real[2, 4] Y",
        ),
    ],
)
def test_what_is_inside_a_graph_is_not_reused_outside(outer, inner, types):
    graph = inside(outer, inner, types)
    model = graph.model()
    RULES["SlicesToSplit"].apply(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    for condition in (False, True):
        feeds = {"X": x, "C": np.array(condition)}
        expected = onnx.reference.ReferenceEvaluator(graph.proto()).run(None, feeds)
        for got, wanted in zip(Evaluator(proto).run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


# The rotation of a batch of any size reads tables that are repeated for each sequence.
ROTATED = """F = Slice(X, zero, middle, axis, one)  S = Slice(X, middle, end, axis, one)
    N = Neg(S)  R = Concat<axis=-1>(N, F)  A = Mul(X, cos)  B = Mul(R, sin)  Y = Add(A, B)"""
COMPUTED = Graph(
    f"""g (real[b, 2, 3, 8] X, real[1, 3, 4] H) => (real[b, 2, 3, 8] Y, real[b, 3, 4] E)
    <real[1, 3, 8] T, real[1, 3, 8] C, real[1, 1, 3, 8] cos, real[1, 1, 3, 8] sin> {{
        T = Concat<axis=-1>(H, H)  cos = Unsqueeze(T, one)  sin = Unsqueeze(T, one)  {ROTATED}
        P = Shape<start=0, end=1>(SOURCE)  Q = Concat<axis=0>(P, rest)  E = Expand(H, Q)
    }}""",
    {
        "zero": np.array([0]),
        "one": np.array([1]),
        "middle": np.array([4]),
        "end": np.array([8]),
        "axis": np.array([3]),
        "rest": np.array([3, 4]),
    },
)


@pytest.mark.parametrize("source", ["X", "Y"])
def test_tables_repeated_later_are_reused_unless_they_depend_on_the_rotation(source):
    graph = COMPUTED.replace({"SOURCE": source})
    model = graph.model()
    for value in model.graph:
        for result in value.outputs:
            if result.name == "E":
                result.shape = ir.Shape(["b", 3, 4])
    assert RULES["Rotary"].apply(model) == 1
    check(graph, model)
