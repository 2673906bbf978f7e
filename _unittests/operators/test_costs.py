import math

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
import pytest

from ortmeter.operators.costs import Cost, node_cost
from ortmeter.runtime.models import sample_cnn


def cost(operator, inputs, outputs, *, types=None, **attributes):
    """Cost of a node, ``domain:Operator``, whose tensors are float32 unless *types* tells."""
    domain, _, op_type = operator.rpartition(":")
    node = onnx.helper.make_node(op_type, [], [], domain=domain, **attributes)
    types = types or ["f32"] * len(inputs + outputs)
    return node_cost(node, inputs, outputs, types[: len(inputs)], types[len(inputs) :])


class Counted(np.ndarray):
    """An array that counts the operations made on it."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        arrays = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        result = getattr(ufunc, method)(*arrays, **options)
        size = np.size(result)
        Counted.count += arrays[0].size - size if method == "reduce" else size
        return np.asarray(result).view(Counted)


def counted(function, *shapes):
    """Operations that numpy makes on arrays of these shapes."""
    rng = np.random.default_rng(0)
    Counted.count = 0
    function(*(rng.uniform(0.5, 1.5, shape).view(Counted) for shape in shapes))
    return Counted.count


def total(x, axis):
    return np.add.reduce(x, axis=axis, keepdims=True)


def largest(x, axis):
    return np.maximum.reduce(x, axis=axis, keepdims=True)


def mean(x, axis):
    return total(x, axis) / x.shape[axis]


def softmax(x):
    e = np.exp(x - largest(x, 1))
    return e / total(e, 1)


def log_softmax(x):
    shifted = x - largest(x, 1)
    return shifted - np.log(total(np.exp(shifted), 1))


def log_sum_exp(x):
    top = largest(x, 1)
    return np.log(total(np.exp(x - top), 1)) + top


def rms(x, scale):
    return x / np.sqrt(mean(np.square(x), 1) + 1e-5) * scale


def layer_norm(x, scale, bias=None):
    centered = x - mean(x, 1)
    scaled = centered / np.sqrt(mean(np.square(centered), 1) + 1e-5) * scale
    return scaled if bias is None else scaled + bias


def batch_norm(x, scale, bias, average, variance):
    factor = scale / np.sqrt(variance + 1e-5)
    shift = bias - average * factor
    return x * factor[:, None] + shift[:, None]


X, ROW, V = (6, 10), (6, 1), (10,)


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "definition"),
    [
        # element-wise
        ("Add", [X, ROW], X, lambda a, b: a + b),
        ("Pow", [X, X], X, lambda a, b: a**b),
        ("Sigmoid", [X], X, lambda x: 1 / (np.exp(-x) + 1)),
        ("Softsign", [X], X, lambda x: x / (abs(x) + 1)),
        ("HardSigmoid", [X], X, lambda x: np.maximum(np.minimum(x * 0.2 + 0.5, 1), 0)),
        ("HardSwish", [X], X, lambda x: x * np.maximum(np.minimum(x / 6 + 0.5, 1), 0)),
        ("Gelu", [X], X, lambda x: x * 0.5 * (np.tanh(x * 0.7) + 1)),  # tanh stands for erf
        ("com.microsoft:BiasGelu", [X, V], X, lambda x, b: (x + b) * 0.5 * (np.tanh(x * 0.7) + 1)),
        ("com.microsoft:QuickGelu", [X], X, lambda x: x * (1 / (np.exp(-(x * 1.7)) + 1))),
        ("Clip", [X, (), ()], X, lambda x, low, high: np.minimum(np.maximum(x, low), high)),
        ("Max", [X, X], X, np.maximum),
        ("Mean", [X, X, X], X, lambda a, b, c: (a + b + c) / 3),
        # reductions
        ("ReduceSum", [X], ROW, lambda x: total(x, 1)),
        ("ReduceMean", [X], ROW, lambda x: mean(x, 1)),
        ("ReduceSumSquare", [X], ROW, lambda x: total(np.square(x), 1)),
        ("ReduceL2", [X], ROW, lambda x: np.sqrt(total(np.square(x), 1))),
        ("ReduceLogSumExp", [X], ROW, log_sum_exp),
        # rows
        ("Softmax", [X], X, softmax),
        ("LogSoftmax", [X], X, log_softmax),
        ("LayerNormalization", [X, V, V], X, layer_norm),
        ("RMSNormalization", [X, V], X, rms),
        (
            "com.microsoft:SkipLayerNormalization",
            [X, X, V, V, V],
            X,
            lambda x, s, g, b, d: layer_norm(x + s + d, g, b),
        ),
        (
            "com.microsoft:SkipSimplifiedLayerNormalization",
            [X, X, V],
            X,
            lambda x, s, g: rms(x + s, g),
        ),
        ("BatchNormalization", [(1, *X), *[(6,)] * 4], (1, *X), batch_norm),
        (
            "InstanceNormalization",
            [(2, 3, 7), (3,), (3,)],
            (2, 3, 7),
            lambda x, s, b: layer_norm(x.reshape(6, 7), s[0], b[0]),
        ),
        # moves
        ("Transpose", [X], (10, 6), np.transpose),
        ("Concat", [X, X], (6, 20), lambda a, b: np.concatenate([a, b], axis=1)),
    ],
)
def test_operations_are_those_of_the_definition(op_type, inputs, output, definition):
    expected = counted(definition, *inputs)
    assert cost(op_type, inputs, [output]).flop == expected
    assert op_type in {"Transpose", "Concat"} or expected > 0


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


def test_the_cost_of_a_network_is_the_sum_of_its_convolutions_mostly():
    graph = onnx.shape_inference.infer_shapes(sample_cnn(), data_prop=True).graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer} | {
        info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        for info in (*graph.input, *graph.value_info, *graph.output)
    }
    costs = [
        node_cost(
            node,
            [shapes[name] for name in node.input],
            [shapes[name] for name in node.output],
            ["f32"] * len(node.input),
            ["f32"] * len(node.output),
        )
        for node in graph.node
    ]
    pixels = 112 * 112
    convolutions = 2 * pixels * (64 * 27 + 98 + 64 * 576 + 64 * 576 // 4 + 64 * 64 // 4)
    assert 1 < sum(c.flop for c in costs) / convolutions < 1.02
    assert all(math.isfinite(c.bytes_moved) and c.bytes_moved > 0 for c in costs)
