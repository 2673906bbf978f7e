"""Tests of ortmeter.discrepancy.compare, and of the structures that it walks."""

import dataclasses
import types
from typing import Any, NamedTuple

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
    "value", [np.array([None, "a"]), np.datetime64("2020-01-01"), 2**70, {1, 2}]
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
    assert str(diff).endswith("dtype: expected f32, got f16")
    assert max_diff([1, 2.5], [1, 2.5]).differences == ()


def test_a_tolerance_that_is_a_number_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"tolerance=0.001. Accepted"):
        max_diff(1, 1, tolerance=1e-3)


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


ONE, TWO = np.float32([1, 1]), np.float32([1, 2])


class Output(NamedTuple):
    logits: Any
    past: Any


@dataclasses.dataclass
class Result:
    logits: Any
    past: Any = None


def bag(**attributes):
    return types.SimpleNamespace(**attributes)


def of_layers(*arrays):
    return bag(layers=[bag(keys=a, values=a) for a in arrays], offloading=False)


@pytest.mark.parametrize(
    ("expected", "got", "path", "n"),
    [
        ([ONE, ONE], (ONE, TWO), "[1]", 4),
        ({"a": ONE, "b": {"c": [ONE]}}, {"b": {"c": [TWO]}, "a": ONE}, "['b']['c'][0]", 4),
        (Result(ONE), Result(TWO), ".logits", 2),
        (Result(ONE, [ONE]), {"logits": ONE, "past": [TWO]}, ".past[0]", 4),
        (Output(ONE, None), Output(TWO, None), "[0]", 2),
        ([[[]], {}, None, 1], [[[]], {}, None, 3], "[3]", 1),
        # caches of transformers
        (of_layers(ONE, ONE), of_layers(ONE, TWO), ".layers[1].keys", 8),
        (
            bag(self_attention_cache=of_layers(ONE), cross_attention_cache=of_layers(ONE)),
            bag(self_attention_cache=of_layers(ONE), cross_attention_cache=of_layers(TWO)),
            ".cross_attention_cache.layers[0].keys",
            8,
        ),
    ],
)
def test_the_path_of_the_worst_element(expected, got, path, n):
    diff = max_diff(expected, got)
    assert (diff.path, diff.n) == (path, n)
    assert diff.abs in {1, 2}
    assert max_diff(expected, expected).abs == 0
    if not isinstance(expected, Result):  # it is an expression, unless the sides are named twice
        worst = [eval(f"x{path}", {"x": side}) for side in (expected, got)]  # noqa: S307
        assert np.any(worst[0] != worst[1])


def test_figures_of_several_arrays():
    expected = {"a": np.array([1.0, np.nan]), "b": np.int64([1, 2, 3]), "c": np.float32([4])}
    got = {"a": np.array([1.5, 1.0]), "b": np.int64([3, 2, 3]), "c": torch.tensor([4.0])}
    diff = max_diff(expected, got)
    assert (diff.abs, diff.sum, diff.n, diff.n_finite, diff.n_nan) == (2, 2.5, 6, 5, 1)
    assert (diff.path, diff.argmax, diff.dtype_got) == ("['b']", (0,), "i64")
    assert (diff.rel, diff.largest, diff.ulp, diff.histogram[0.1]) == (2, 4, 2**51, 2)
    assert diff.ulp_at_max == 2**51


def test_figures_that_one_of_the_arrays_gives():
    large, small = np.float32([2.0**30]), np.float32([1.0])
    diff = max_diff([small, large], [small + np.float32(0.5), large])
    assert (diff.abs, diff.largest, diff.ulp_at_max) == (0.5, 2**30, 2**22)
    diff = max_diff([ONE, ONE], [ONE, np.float32([1, np.nan])])
    assert (diff.abs, diff.path, diff.n_nan) == (0, "[1]", 1)  # mismatches, without errors


DIFFERENT = [
    ({"a": 1}, {"b": 1}, [("['a']", "int", "nothing"), ("['b']", "nothing", "int")]),
    ([1, 2], [1], [("", "2 items", "1 items")]),
    ({"x": None}, {"x": ONE}, [("['x']", "None", "ndarray")]),
    ([ONE], ONE, [("", "list", "ndarray")]),
    ([ONE], {"a": ONE}, [("", "list", "dict")]),
    ({"x": [ONE]}, {"x": [np.zeros(3)]}, [("['x'][0]", "(2,)", "(3,)")]),
    (ONE, None, [("", "ndarray", "None")]),
    (Result(ONE), {"logits": ONE}, [(".past", "None", "nothing")]),
]


@pytest.mark.parametrize(("expected", "got", "places"), DIFFERENT)
def test_structures_that_differ(expected, got, places):
    diff = max_diff(expected, got, on_mismatch="report")
    assert [(d.path, d.expected, d.got) for d in diff.differences] == places
    assert not diff.same_structure
    with pytest.raises(ShapeMismatchError) as info:
        max_diff(expected, got)
    assert places[0][0] in str(info.value)


def test_the_rest_is_compared():
    diff = max_diff([ONE, np.zeros(3), ONE], [TWO, np.zeros(4), ONE], on_mismatch="report")
    assert (diff.n, diff.abs, diff.path) == (4, 1, "[0]")
    assert max_diff(None, None).n == 0


def test_types_and_devices_are_reported_for_every_array():
    class OnGpu:
        def __array__(self, dtype=None, copy=None):
            return TWO

        def __dlpack_device__(self):
            return (2, 1)

    diff = max_diff([ONE, ONE, ONE], [ONE.astype(np.float16), ONE, OnGpu()])
    assert [str(d) for d in diff.differences] == [
        "dtype of [0]: expected f32, got f16",
        "device of [2]: expected cpu, got cuda:1",
    ]
    assert diff.same_structure
