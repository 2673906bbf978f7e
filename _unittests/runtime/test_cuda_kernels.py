"""The oracle is what was read in the library of ONNX Runtime, and the rule of its registry.

Where nodes run on a GPU is checked by ``make gpu-check``: the wheel for CUDA dies when it is asked
to list its kernels.
"""

import onnx.defs
import pytest
from onnx import TensorProto

from ortmeter.runtime.cuda_kernels import cuda_kernel, cuda_opsets

NEWEST = onnx.defs.onnx_opset_version()
LOST_AT_22 = [
    "Dropout",
    "Elu",
    "EyeLike",
    "InstanceNormalization",
    "MaxPool",
    "Selu",
    "ThresholdedRelu",
]


def deprecated(name, opset):
    return not onnx.defs.has(name, opset) or onnx.defs.get_schema(name, opset).deprecated


@pytest.mark.parametrize("opset", [21, 22, 23, 24, 25])
def test_operators_that_only_their_old_schemas_have_on_cuda(opset):
    """The list of those with a kernel for an old schema and none for the one of this opset."""
    schemas = onnx.defs.get_all_schemas_with_history()
    names = {one.name for one in schemas if not one.domain and not deprecated(one.name, opset)}
    lost = {name for name in names if cuda_opsets(name) and not cuda_kernel(name, opset=opset)}
    expected = [] if opset < 22 else LOST_AT_22 + ["Attention"] * (opset >= 25)
    assert sorted(lost) == sorted(expected)
    assert {cuda_opsets(name)[-1].stop for name in LOST_AT_22} == {22}


def test_attention_stops_at_opset_24():
    assert cuda_opsets("Attention") == [range(23, 25)]
    assert cuda_opsets("Attention", dtype=TensorProto.DOUBLE) == []


@pytest.mark.parametrize(
    ("op_type", "opset", "expected"),
    [
        *[
            (name, 23, True)
            for name in ("Gelu", "MatMul", "Softmax", "Cast", "Where", "Cos", "Pow")
        ],
        *[(name, 23, False) for name in ("Reciprocal", "Less", "Clip", "Log", "Einsum", "CumSum")],
        ("Cos", 21, False),
        ("TopK", 23, False),
        ("TopK", 24, True),
    ],
)
def test_bfloat16_kernels(op_type, opset, expected):
    assert cuda_kernel(op_type, opset=opset, dtype=TensorProto.BFLOAT16) is expected
    assert cuda_kernel(op_type, opset=opset, dtype=TensorProto.FLOAT)


def test_operators_of_onnxruntime_and_names_of_the_standard_domain():
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    assert cuda_kernel("GroupQueryAttention", "com.microsoft", opset=1, dtype=half)
    assert not cuda_kernel("GroupQueryAttention", "com.microsoft", opset=1, dtype=single)
    assert cuda_opsets("FusedMatMul", "com.microsoft") == [range(1, 2)]
    assert cuda_kernel("SimplifiedLayerNormalization", opset=23)
    assert cuda_kernel("Add", "ai.onnx", opset=23)
    assert cuda_opsets("Add", "ai.onnx") == cuda_opsets("Add") == [range(7, NEWEST + 1)]


def test_operators_without_a_kernel_for_some_types_or_for_any():
    assert [cuda_opsets(name) for name in ("Swish", "GroupNormalization", "Unknown")] == [[]] * 3
    assert not cuda_kernel("Where", opset=23, dtype=TensorProto.BOOL)
    assert cuda_kernel("And", opset=23, dtype=TensorProto.BOOL)
    assert cuda_kernel("Reshape", opset=23, dtype=TensorProto.INT8)
    assert not cuda_kernel("Reshape", opset=23, dtype=TensorProto.STRING)
