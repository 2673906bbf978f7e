"""Tests of ortmeter.runtime.arrays."""

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy, device_of, is_array

VALUES = [[0.5, -1.5, 2.0], [4.0, -0.25, 1.0]]  # exact in every float with three bits
FLOATS = ["float64", "float32", "float16", "bfloat16"]
FLOATS_OF_8_BITS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]


def assert_same(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", FLOATS + FLOATS_OF_8_BITS)
def test_torch_floats(name):
    kind = getattr(torch, name)
    assert_same(as_numpy(torch.tensor(VALUES).to(kind)), np.array(VALUES).astype(numpy_dtype(name)))
    assert_same(as_numpy(torch.tensor(1).to(kind)), np.array(1, numpy_dtype(name)))


@pytest.mark.parametrize("name", [*INTEGERS, "complex64", "complex128"])
def test_torch_integers_and_complex(name):
    expected = np.array([[0, 1], [1, 1]]).astype(name)
    assert_same(as_numpy(torch.from_numpy(expected.copy())), expected)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.ones(3, 2).T,
        torch.ones(4, 6)[::2, ::2],
        torch.ones(1, 1).expand(2, 3),
    ],
    ids=["requires_grad", "parameter", "transposed", "strided", "expanded"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torch_kinds_of_tensors(tensor, dtype):
    assert_same(as_numpy(tensor.to(dtype)), np.ones((2, 3), numpy_dtype(dtype)))


def test_torch_lazy_conjugate_and_negation():
    tensor = torch.tensor([1 + 2j])
    assert_same(as_numpy(tensor.conj()), np.array([1 - 2j], np.complex64))
    assert_same(as_numpy(tensor.conj().imag), np.array([-2], np.float32))


def test_torch_memory_is_shared():
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    array = as_numpy(tensor)
    tensor[0] = 1
    assert array[0] == 1


@pytest.mark.parametrize("name", FLOATS + FLOATS_OF_8_BITS + INTEGERS)
def test_ortvalue_and_tensor_proto(name):
    array = np.array(VALUES if name in FLOATS + FLOATS_OF_8_BITS else [[0, 1, 1]])
    array = array.astype(numpy_dtype(name))
    ort_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ort_type)
    assert_same(as_numpy(value), array)
    proto = onnx.helper.make_tensor("x", ort_type, array.shape, array.tobytes(), raw=True)
    assert_same(as_numpy(proto), array)


def test_empty_ortvalue_of_bfloat16():
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        [0, 3], onnx.TensorProto.BFLOAT16, "cpu", 0
    )
    assert as_numpy(value).shape == (0, 3)


@pytest.mark.parametrize(
    ("element_type", "packed", "expected"),
    [
        (onnx.TensorProto.INT4, b"\x81\xf7", [1, -8, 7]),  # the first in the low bits
        (onnx.TensorProto.UINT4, b"\x81\x07", [1, 8, 7]),
        (onnx.TensorProto.INT2, b"\xe4", [0, 1, -2]),
        (onnx.TensorProto.FLOAT4E2M1, b"\x92\x07", [1, -0.5, 6]),
    ],
)
def test_packed_elements_are_unpacked(element_type, packed, expected):
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type([3, 1], element_type)
    assert value.tensor_size_in_bytes() == len(packed)
    ctypes.memmove(value.data_ptr(), packed, len(packed))
    got = as_numpy(value)
    assert got.dtype == numpy_dtype(element_type)
    assert got.astype(float).tolist() == [[number] for number in expected]


class WithDlpack:
    """Only speaks DLPack, as a library that we do not know would."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class WithArray:
    """Only speaks ``__array__``."""

    def __array__(self, dtype=None, copy=None):
        del copy
        return np.array([1, 2], dtype or np.int16)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WithDlpack(np.float32([1, 2])), np.float32([1, 2])),
        (WithArray(), np.int16([1, 2])),
        # numbers
        (True, np.array(True)),
        (3, np.array(3)),
        (1.5, np.float64(1.5)),
        (1j, np.array(1j)),
        (np.float16(2), np.array(2, np.float16)),
        (ml_dtypes.bfloat16(2), np.array(2, ml_dtypes.bfloat16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_arrays(value, expected):
    assert_same(as_numpy(value), np.asarray(expected))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [1, 2],
        torch.eye(2).to_sparse(),
        torch.zeros(2, device="meta"),
        WithDlpack(np.zeros(1, "U1")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_an_array_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        as_numpy(value)


def test_strings_of_a_tensor_proto():
    proto = onnx.helper.make_tensor("x", onnx.TensorProto.STRING, [2], ["a", "é"])
    assert as_numpy(proto).tolist() == ["a", "é"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in (1, 1.5, 1j, True, "a", b"a", np.float32(1), np.zeros(1))),
        *((value, True) for value in (torch.ones(1), onnx.TensorProto(), WithArray())),
        (onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1)), True),
        (WithDlpack(np.zeros(1)), True),
        *((value, False) for value in (None, [1], (1,), {"a": 1}, object())),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_an_array(value, expected):
    assert is_array(value) is expected


@pytest.mark.parametrize(
    ("value", "device"),
    [
        (SimpleNamespace(__dlpack_device__=lambda: (2, 0)), "cuda"),
        (SimpleNamespace(__dlpack_device__=lambda: (2, 1)), "cuda:1"),
        (torch.ones(1, requires_grad=True), "cpu"),
        (np.zeros(1), "cpu"),
        (1.5, "cpu"),
    ],
    ids=["cuda", "cuda:1", "torch", "numpy", "number"],
)
def test_devices(value, device):
    assert device_of(value) == device
