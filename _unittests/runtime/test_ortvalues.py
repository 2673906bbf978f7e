from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import device_of
from ortmeter.runtime.ortvalues import EXPORTS, to_ortvalue
from ortmeter.runtime.providers import Provider

CPU = Provider("cpu")


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6).reshape(2, 3),
    np.array([True, False]),
    np.float16([1, 2]),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.array([1, 2], ml_dtypes.float8_e4m3fn),
    np.uint8([1, 2]),
    np.array(3.0, np.float32),  # no dimension
    np.zeros((0, 3), np.float32),
    np.arange(6, dtype=np.float32)[::2],  # not contiguous
    np.array([1, 2], ">f4"),  # another byte order
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
@pytest.mark.parametrize("kind", ["numpy", "torch", "ortvalue"])
def test_arrays_come_back(array, kind):
    got = EXPORTS[kind](to_ortvalue(array, CPU))
    if kind == "torch":
        got = got.to(torch.float64).numpy()
    elif kind == "ortvalue":
        got = EXPORTS["numpy"](got)
    else:
        assert got.dtype == array.dtype.newbyteorder("=")
    assert got.shape == array.shape
    np.testing.assert_array_equal(got.astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2, torch.int16]
)
def test_tensors_of_torch_come_back(dtype):
    tensor = torch.tensor([0, 1, 2]).to(dtype)
    got = EXPORTS["torch"](to_ortvalue(tensor, CPU))
    assert got.dtype == dtype
    assert torch.equal(got.to(torch.float32), tensor.to(torch.float32))
    strided = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    np.testing.assert_array_equal(EXPORTS["numpy"](to_ortvalue(strided, CPU)), strided.detach())


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_an_output_is_exported_without_copy(dtype):
    value = to_ortvalue(np.ones(4, dtype), CPU)
    assert EXPORTS["numpy"](value).ctypes.data == value.data_ptr()
    assert EXPORTS["torch"](value).data_ptr() == value.data_ptr()


def test_values_of_onnxruntime_pass_through():
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(2))
    assert to_ortvalue(value, CPU) is value


def test_another_device_is_refused():
    on_cuda_1 = SimpleNamespace(__dlpack_device__=lambda: (2, 1))
    for provider in (CPU, Provider("cuda", 0)):
        with pytest.raises(InvalidArgumentError, match=f"on cuda:1 .* runs on {provider}"):
            to_ortvalue(on_cuda_1, provider)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["a"], object), "strings cannot be bound"),
        ([1, 2], "list"),
        (torch.eye(2).to_sparse(), "Tensor"),
        (np.zeros(2, "M8[s]"), "M8"),
    ],
)
def test_what_is_not_an_array_of_numbers_is_refused(value, message):
    with pytest.raises(InvalidArgumentError, match=message):
        to_ortvalue(value, CPU)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        *(pytest.param("cuda", a, marks=pytest.mark.cuda) for a in ARRAYS if a.size),
        *(pytest.param("webgpu", a, marks=pytest.mark.device) for a in ARRAYS),
    ],
)
def test_arrays_go_to_a_device_and_back(name, array):
    provider = Provider(name)
    value = to_ortvalue(array, provider)
    assert device_of(value) == "cuda" if name == "cuda" else device_of(value) not in {"cpu", "cuda"}
    assert to_ortvalue(value, provider) is value
    got = EXPORTS["numpy"](value)
    assert got.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got.astype(np.float64), array.astype(np.float64))
    with pytest.raises(InvalidArgumentError, match="while the session runs on cpu"):
        to_ortvalue(value, CPU)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_tensors_on_cuda_are_shared(dtype):
    tensor = torch.tensor([0, 1], device="cuda").to(dtype)
    value = to_ortvalue(tensor, Provider("cuda"))
    assert value.data_ptr() == tensor.data_ptr()
    got = EXPORTS["torch"](value)
    assert got.device.type == "cuda"
    assert got.dtype == dtype
    assert torch.equal(got, tensor)
