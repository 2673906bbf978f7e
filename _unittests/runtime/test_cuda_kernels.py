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
    assert not cuda_kernel("Attention", opset=23, dtype=TensorProto.DOUBLE)


def test_operators_of_onnxruntime_and_names_of_the_standard_domain():
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    assert cuda_kernel("GroupQueryAttention", "com.microsoft", opset=1, dtype=half)
    assert not cuda_kernel("GroupQueryAttention", "com.microsoft", opset=1, dtype=single)
    assert cuda_opsets("FusedMatMul", "com.microsoft") == [range(1, 2)]
    assert cuda_kernel("SimplifiedLayerNormalization", opset=23)
    assert cuda_kernel("Add", "ai.onnx", opset=23)
    assert cuda_opsets("Add", "ai.onnx") == cuda_opsets("Add") == [range(7, NEWEST + 1)]
