import onnx
import onnx.helper
import onnx.shape_inference
import pytest

from ortmeter.operators.costs import Cost, node_cost


def cost(operator, inputs, outputs, *, types=None, **attributes):
    """Cost of a node, ``domain:Operator``, whose tensors are float32 unless *types* tells."""
    domain, _, op_type = operator.rpartition(":")
    node = onnx.helper.make_node(op_type, [], [], domain=domain, **attributes)
    types = types or ["f32"] * len(inputs + outputs)
    return node_cost(node, inputs, outputs, types[: len(inputs)], types[len(inputs) :])


X, ROW, V = (6, 10), (6, 1), (10,)


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "expected"),
    [
        # element-wise: an operation or a function each
        ("Add", [X, ROW], X, 60),
        ("Pow", [X, X], X, 60),
        ("Sigmoid", [X], X, 4 * 60),
        ("Softsign", [X], X, 3 * 60),
        ("HardSigmoid", [X], X, 4 * 60),
        ("HardSwish", [X], X, 5 * 60),
        ("Gelu", [X], X, 5 * 60),
        ("com.microsoft:BiasGelu", [X, V], X, 6 * 60),
        ("com.microsoft:QuickGelu", [X], X, 6 * 60),
        ("Clip", [X, (), ()], X, 2 * 60),
        ("Max", [X, X], X, 60),
        ("Mean", [X, X, X], X, 3 * 60),
        # reductions: a row of 10 takes 9 additions or comparisons
        ("ReduceSum", [X], ROW, 6 * 9),
        ("ReduceMean", [X], ROW, 6 * (9 + 1)),
        ("ReduceSumSquare", [X], ROW, 6 * (10 + 9)),
        ("ReduceL2", [X], ROW, 6 * (10 + 9 + 1)),
        ("ReduceLogSumExp", [X], ROW, 6 * (9 + 10 + 10 + 9 + 1 + 1)),
        # rows: the largest, -, exp, the sum, / or log and -
        ("Softmax", [X], X, 6 * (9 + 10 + 10 + 9 + 10)),
        ("LogSoftmax", [X], X, 6 * (9 + 10 + 10 + 9 + 1 + 10)),
        # mean, -, square, mean, + epsilon, sqrt, /, scale, bias
        ("LayerNormalization", [X, V, V], X, 6 * (10 + 10 + 10 + 10 + 1 + 1 + 10 + 10 + 10)),
        ("RMSNormalization", [X, V], X, 6 * (10 + 10 + 1 + 1 + 10 + 10)),
        ("com.microsoft:SkipLayerNormalization", [X, X, V, V, V], X, 2 * 60 + 6 * 72),
        ("com.microsoft:SkipSimplifiedLayerNormalization", [X, X, V], X, 60 + 6 * 42),
        ("InstanceNormalization", [(2, 3, 7), (3,), (3,)], (2, 3, 7), 6 * (7 * 7 + 2)),
        # a scale and a bias for each channel (+, sqrt, /, *, -), then one of each per element
        ("BatchNormalization", [(1, *X), *[(6,)] * 4], (1, *X), 5 * 6 + 2 * 60),
        # moves
        ("Transpose", [X], (10, 6), 0),
        ("Concat", [X, X], (6, 20), 0),
    ],
)
def test_operations_are_those_of_the_definition(op_type, inputs, output, expected):
    assert cost(op_type, inputs, [output]).flop == expected


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes", "expected"),
    [
        # Gemm: 2 M N K, and one addition per element with C
        ("Gemm", [(3, 5), (5, 7)], (3, 7), {}, 210),
        ("Gemm", [(5, 3), (7, 5)], (3, 7), {"transA": 1, "transB": 1}, 210),
        ("Gemm", [(3, 5), (5, 7), (7,)], (3, 7), {"alpha": -2.0}, 231),
        ("com.microsoft:FusedGemm", [(3, 5), (5, 7), (7,)], (3, 7), {"activation": "Relu"}, 252),
        # MatMul: batches, broadcast, vectors
        ("MatMul", [(4, 3, 5), (5, 7)], (4, 3, 7), {}, 840),
        ("MatMul", [(2, 1, 3, 5), (4, 5, 7)], (2, 4, 3, 7), {}, 1680),
        ("MatMul", [(5,), (5, 7)], (7,), {}, 70),
        ("com.microsoft:FusedMatMul", [(4, 5, 3), (4, 5, 7)], (4, 3, 7), {"transA": 1}, 840),
        (
            "com.microsoft:FusedMatMul",
            [(5, 4, 3), (4, 5, 7)],
            (4, 3, 7),
            {"transA": 1, "transBatchA": 1},
            840,
        ),
        ("com.microsoft:FusedMatMul", [(3, 4, 5), (4, 5, 7)], (4, 3, 7), {"transBatchA": 1}, 840),
        # Conv: 2 products for each window, bias, groups, fused sum and activation
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 2 * 144 * 27),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], (1, 4, 6, 6), {}, 2 * 144 * 27 + 144),
        ("Conv", [(1, 4, 8, 8), (4, 1, 3, 3)], (1, 4, 6, 6), {"group": 4}, 2 * 144 * 9),
        (
            "com.microsoft:FusedConv",
            [(1, 3, 8, 8), (4, 3, 3, 3), (4,), (1, 4, 6, 6)],
            (1, 4, 6, 6),
            {"activation": "Relu"},
            (2 * 27 + 3) * 144,
        ),
        (
            "com.microsoft.nchwc:Conv",
            [(1, 2, 8, 8), (16, 2, 7, 7)],
            (1, 16, 8, 8),
            {"activation": "Sigmoid"},
            (2 * 98 + 4) * 1024,
        ),
        ("ConvTranspose", [(1, 4, 5, 5), (4, 3, 2, 2)], (1, 3, 6, 6), {}, 2 * 100 * 12),
        # pools
        ("MaxPool", [(1, 2, 8, 8)], (1, 2, 4, 4), {"kernel_shape": [2, 2]}, 96),
        (
            "com.microsoft.nchwc:AveragePool",
            [(1, 16, 8, 8)],
            (1, 16, 4, 4),
            {"kernel_shape": [2, 2]},
            1024,
        ),
        ("GlobalAveragePool", [(1, 2, 8, 8)], (1, 2, 1, 1), {}, 128),
        # along another axis
        ("Softmax", [(4, 6, 5)], (4, 6, 5), {"axis": 1}, 5 * 120 - 2 * 20),
        ("LayerNormalization", [(4, 6, 5), (6, 5)], (4, 6, 5), {"axis": 1}, 6 * 120 + 8),
    ],
)
def test_operations_of_products(op_type, inputs, output, attributes, expected):
    assert cost(op_type, inputs, [output], **attributes).flop == expected


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "types", "expected"),
    [
        ("Add", [(3, 4), (4,)], [(3, 4)], ["f32"] * 3, 4 * (12 + 4 + 12)),
        ("Add", [(3, 4), (4,)], [(3, 4)], ["bf16"] * 3, 2 * (12 + 4 + 12)),
        ("Cast", [(6,)], [(6,)], ["f64", "b8"], 6 * 9),
        ("ArgMin", [(5, 8)], [(5,)], ["f32", "i64"], 4 * 40 + 8 * 5),
        ("Split", [(6,), (2,)], [(4,), (2,)], ["f32", "i64", "f32", "f32"], 24 + 16 + 24),
        ("Clip", [(6,), None, ()], [(6,)], ["f32", None, "f32", "f32"], 24 + 4 + 24),
        # packed elements
        ("Cast", [(5,)], [(5,)], ["i4", "f32"], 3 + 20),
        # a selection reads what it writes and its indices
        ("Gather", [(1000, 8), (3,)], [(3, 8)], ["f32", "i64", "f32"], 96 + 96 + 24),
        # a view moves nothing
        ("Reshape", [(6, 4), (1,)], [(24,)], ["f32", "i64", "f32"], 0),
        ("Identity", [(3,)], [(3,)], ["s", "s"], 0),
        # nothing to do
        ("Abs", [(0, 3)], [(0, 3)], ["f32", "f32"], 0),
    ],
)
def test_bytes(op_type, inputs, outputs, types, expected):
    assert cost(op_type, inputs, outputs, types=types).bytes_moved == expected


@pytest.mark.parametrize(
    ("op_type", "types"),
    [
        ("NonZero", ["f32", "i64"]),
        ("ReorderInput", ["f32", "f32"]),
        ("my.domain:Abs", ["f32", "f32"]),
        ("Cast", ["s", "f32"]),
    ],
)
def test_what_is_not_known_has_no_cost(op_type, types):
    assert cost(op_type, [(3,)], [(3,)], types=types) is None


@pytest.mark.parametrize(
    ("op_type", "inputs", "output"),
    [
        ("MatMul", [(), (3,)], (3,)),
        ("Gemm", [(3,), (3, 4)], (3, 4)),
        ("Softmax", [()], ()),
        ("MaxPool", [(1, 2, 8, 8)], (1, 2, 4, 4)),
    ],
)
def test_what_the_operator_does_not_accept_has_no_cost(op_type, inputs, output):
    assert cost(op_type, inputs, [output]) is None


def test_an_input_of_unknown_shape_gives_no_cost():
    """A profile leaves out the weights that a kernel packed."""
    node = onnx.helper.make_node("Gemm", ["X", "W", ""], ["Y"])
    types = [["f32", "f32", None], ["f32"]]
    assert node_cost(node, [(3, 5), (5, 7), None], [(3, 7)], *types) is not None
    assert node_cost(node, [(3, 5), None, None], [(3, 7)], *types) is None


def test_a_node_without_output_has_no_cost():
    assert cost("Abs", [(3,)], []) is None


def test_the_standard_domain_has_two_names():
    assert cost("ai.onnx:Abs", [(3,)], [(3,)]) == Cost(3, 24)
