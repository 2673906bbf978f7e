"""Functions that scale with their argument, where squares and sums leave the range of float64.

The expected values are those of numpy on numbers around 1, times the scale, a power of two.
"""

import numpy as np
import onnx.helper
import pytest

from ortmeter.evaluator import Evaluator, to_float64

X = np.array([[[[1.0, -2.0, 3.0, 0.5], [3.5, 0.25, 1.0, 4.0]]]])
AXIS, ONE, ZERO = {"a": np.int64([3])}, {"s": np.ones(1)}, {"b": np.zeros(1)}
LARGE, SMALL = 2.0**660, 2.0**-660  # about 1e199


def norm(x, axes=3):
    return np.sqrt(np.square(x).sum(axes, keepdims=True))


def normalized(x, axes=3):
    """Return what a normalization gives when what it adds to the variance is nothing."""
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


@pytest.mark.parametrize(
    ("node", "inputs", "expected", "degree", "scales"),
    [
        (("ReduceL2", {}), AXIS, norm, 1, (LARGE, SMALL)),
        (("ReduceL2", {"keepdims": 0}), AXIS, lambda x: norm(x)[..., 0], 1, (LARGE, SMALL)),
        (("ReduceMean", {}), AXIS, lambda x: x.mean(3, keepdims=True), 1, (2.0**1021, SMALL)),
        (("GlobalLpPool", {}), {}, lambda x: norm(x, (2, 3)), 1, (LARGE, SMALL)),
        (("LpPool", {"kernel_shape": [1, 4]}), {}, norm, 1, (LARGE, SMALL)),
        (
            *(("GlobalAveragePool", {}), {}, lambda x: x.mean((2, 3), keepdims=True), 1),
            (2.0**1021, SMALL),
        ),
        (
            *(("LRN", {"size": 1, "alpha": 0.5}), {}),
            *(lambda x: x / (np.square(x) / 2) ** 0.75, -0.5, (LARGE,)),
        ),
        (("LpNormalization", {"axis": 3}), {}, lambda x: x / norm(x), 0, (LARGE, SMALL)),
        (
            *(("LpNormalization", {"axis": 3, "p": 1}), {}),
            *(lambda x: x / np.abs(x).sum(3, keepdims=True), 0, (2.0**1021, SMALL)),
        ),
        (("LayerNormalization", {}), {"s": np.ones(4)}, normalized, 0, (LARGE,)),
        (
            ("LayerNormalization", {"epsilon": 0.0}),
            {"s": np.ones(4)},
            normalized,
            0,
            (LARGE, SMALL),
        ),
        (("RMSNormalization", {}), ONE, lambda x: 2 * x / norm(x), 0, (LARGE,)),
        (
            *(("GroupNormalization", {"num_groups": 1}), ONE | ZERO),
            *(lambda x: normalized(x, (1, 2, 3)), 0, (LARGE,)),
        ),
        (("InstanceNormalization", {}), ONE | ZERO, lambda x: normalized(x, (2, 3)), 0, (LARGE,)),
        (
            *(("MeanVarianceNormalization", {}), {}, lambda x: normalized(x, (0, 2, 3)), 0),
            (LARGE,),
        ),
    ],
)
def test_a_formula_does_not_overflow_where_its_value_does_not(
    node, inputs, expected, degree, scales
):
    types = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, X.shape)]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)
    made = onnx.helper.make_node(node[0], ["x", *inputs], ["y"], **node[1])
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in inputs.items()]
    graph = onnx.helper.make_graph([made], "g", types, [output], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    evaluator = Evaluator(to_float64(model), sources=("torch",))
    for scale in scales:
        (got,) = evaluator.run(None, {"x": X * scale})
        np.testing.assert_allclose(got, expected(X) * scale**degree, rtol=1e-14)


def test_zeros_infinities_and_nothing():
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (double[n, m] x, int64[1] a) => (double[k] y)'
    )
    evaluator = Evaluator(f"{text} {{ y = ReduceL2 <keepdims = 0> (x, a) }}", sources=("torch",))
    x = np.array([[0.0, 0.0], [-np.inf, 1.0], [np.nan, 1.0], [5e-324, 0.0], [3e307, 4e307]])
    (got,) = evaluator.run(None, {"x": x, "a": np.int64([1])})
    np.testing.assert_array_equal(got[:4], [0, np.inf, np.nan, 5e-324])
    assert got[4] == pytest.approx(5e307)
    (got,) = evaluator.run(None, {"x": x[:, :0], "a": np.int64([1])})
    assert got.tolist() == [0.0] * 5
