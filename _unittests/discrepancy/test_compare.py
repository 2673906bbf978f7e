"""Tests of ortmeter.discrepancy.compare."""

import math
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ortmeter.discrepancy import max_diff
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError, ShapeMismatchError


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "complex64"])
def test_shapes(shape, dtype):
    zeros = np.zeros(shape, numpy_dtype(dtype))
    same, other = max_diff(zeros, zeros), max_diff(zeros, np.ones_like(zeros))
    assert (same.abs, same.sum, same.mean_abs, same.argmax, same.shape) == (0, 0, 0, None, shape)
    assert (other.n, other.n_finite, other.sum) == (zeros.size,) * 3
    assert other.argmax == (tuple(0 for _ in shape) if zeros.size else None)
    assert type(same.abs) is (int if dtype in {"int64", "bool"} else float)


@pytest.mark.parametrize(("expected", "got"), [((2,), (1, 2)), ((), (1,)), ((2, 3), (3, 2))])
def test_nothing_is_broadcast(expected, got):
    with pytest.raises(ShapeMismatchError, match="nothing is broadcast") as info:
        max_diff(np.zeros(expected), np.zeros(got))
    assert str(expected) in str(info.value)
    assert str(got) in str(info.value)


@pytest.mark.parametrize(
    "value", [np.array([None, "a"]), np.datetime64("2020-01-01"), 2**70, object(), {1, 2}]
)
def test_what_is_not_an_array_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        max_diff(value, value)
    with pytest.raises(InvalidArgumentError, match=r"^\['a'\]\[1\]: .*Accepted"):
        max_diff({"a": [1, value]}, {"a": [1, value]})


@pytest.mark.parametrize(
    "got",
    [
        1.5,
        np.float32(1.5),
        np.array(1.5, ml_dtypes.bfloat16),
        torch.tensor(1.5, requires_grad=True),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor(1.5, dtype=torch.float8_e5m2),
        onnxruntime.OrtValue.ortvalue_from_numpy(np.array(1.5)),
        onnx.numpy_helper.from_array(np.array(1.5, np.float16)),
        onnx.helper.make_tensor("x", onnx.TensorProto.BFLOAT16, [], [1.5]),
    ],
    ids=lambda got: type(got).__module__,
)
def test_arrays_of_every_library(got):
    assert max_diff(1.25, got).abs == 0.25


def test_types_that_differ_are_reported():
    diff = max_diff(np.float32([1]), np.float16([1]))
    assert (diff.abs, diff.dtype_expected, diff.dtype_got) == (0, "f32", "f16")
    assert not diff.same_dtype
    assert diff.same_device
    assert str(diff).endswith("dtype: expected f32, got f16")
    assert max_diff([1, 2.5], [1, 2.5]).same_dtype


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": [-1]},
        {"thresholds": [math.nan]},
        {"tolerance": 1e-3},
        {"on_mismatch": "ignore"},
    ],
)
def test_options_that_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))}=.*Accepted"):
        max_diff(1, 1, **options)


def test_a_mask_is_not_lost():
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    for pair in ((masked, np.ones(2)), (np.ones(2), masked)):
        with pytest.raises(InvalidArgumentError, match=r"masked .*Accepted: array\.compressed"):
            max_diff(*pair)
    with pytest.raises(InvalidArgumentError, match=r"^\['a'\]: A masked array"):
        max_diff({"a": np.ones(2)}, {"a": masked})
    assert max_diff(np.ones(2), np.ma.masked_array([1.0, 1.5])).abs == 0.5


def test_strings():
    assert max_diff("a", "a").abs == 0
    assert max_diff("a", b"a").abs == 0
    expected = np.array([["a", "b"], ["c", "d"]])
    diff = max_diff(expected, np.array([["a", "x"], ["y", "d"]], object))
    assert (diff.abs, diff.sum, diff.argmax, diff.worst) == (1, 2, (0, 1), ("b", "x"))
    assert (diff.rel, diff.n, diff.dtype_got) == (1, 4, "s")
    tensor = onnx.helper.make_tensor("x", onnx.TensorProto.STRING, [2, 2], list("abcd"))
    assert max_diff(expected, tensor).abs == 0
    with pytest.raises(ShapeMismatchError, match="expected strings, got numbers .f64"):
        max_diff("1", 1.0)


def test_the_worst_element_is_given():
    assert max_diff(np.int8([1, 5]), np.int8([1, 7])).worst == (5, 7)
    assert max_diff(True, False).worst == (True, False)
    assert max_diff(1j, 2j).worst == (1j, 2j)
    assert max_diff(1.5, np.array(2, ml_dtypes.bfloat16)).worst == (1.5, 2.0)
    assert max_diff(1.0, 1.0).worst is None


def test_transformers_and_pandas_are_not_imported_for_tensors():
    code = (
        "import sys, torch; from ortmeter.discrepancy import max_diff;"
        "max_diff(torch.ones(2), torch.ones(2));"
        "print({'transformers', 'onnxruntime', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_torch_is_not_imported():
    code = (
        "import sys, numpy as np; from ortmeter.discrepancy import max_diff;"
        "max_diff(np.ones(2), np.ones(2)); print({'torch', 'onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
