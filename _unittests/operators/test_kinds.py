import pytest

from ortmeter.operators.kinds import kind_of


@pytest.mark.parametrize(
    ("kind", "operators"),
    [
        ("convolution", ["Conv", "FusedConv", "aten::conv2d", "aten::mkldnn_convolution"]),
        ("trees", ["TreeEnsembleRegressor"]),
        ("attention", ["Softmax", "MultiHeadAttention", "aten::scaled_dot_product_attention"]),
        ("matrix product", ["MatMul", "Gemm", "FusedMatMul", "aten::linear", "aten::mm"]),
        ("normalization", ["LayerNormalization", "SkipLayerNormalization", "aten::batch_norm"]),
        ("movement", ["Concat", "Reshape", "ReorderOutput", "Expand", "aten::cat", "aten::chunk"]),
        ("elementwise", ["Gelu", "Exp", "QuickGelu", "Mul", "Relu", "aten::silu", "aten::add"]),
        ("other", ["GlobalAveragePool", "aten::adaptive_avg_pool2d", "ReduceMean"]),
    ],
)
def test_operators_of_both_libraries_have_a_kind(kind, operators):
    assert {kind_of(operator) for operator in operators} == {kind}


def test_a_product_of_computed_inputs_is_one_of_attention():
    assert kind_of("MatMul", computed=True) == "attention"
    assert kind_of("Conv", computed=True) == "convolution"
