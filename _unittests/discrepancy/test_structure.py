"""Tests of ortmeter.discrepancy._structure."""

import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ortmeter.discrepancy import max_diff
from ortmeter.errors import ShapeMismatchError

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
        # caches of transformers, of several versions
        (of_layers(ONE, ONE), of_layers(ONE, TWO), ".layers[1].keys", 8),
        (
            bag(self_attention_cache=of_layers(ONE), cross_attention_cache=of_layers(ONE)),
            bag(self_attention_cache=of_layers(ONE), cross_attention_cache=of_layers(TWO)),
            ".cross_attention_cache.layers[0].keys",
            8,
        ),
        (
            bag(key_cache=[ONE], value_cache=[ONE]),
            bag(key_cache=[ONE], value_cache=[TWO]),
            ".value_cache[0]",
            4,
        ),
        (
            bag(conv_states=ONE, ssm_states=ONE),
            bag(conv_states=ONE, ssm_states=TWO),
            ".ssm_states",
            4,
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
    assert (diff.path, diff.argmax, diff.dtype_got, diff.n_arrays) == ("['b']", (0,), "i64", 3)
    assert (diff.rel, diff.largest, diff.ulp, diff.histogram[0.1]) == (2, 4, 2**51, 2)
    assert diff.ulp_at_max == 2**51
    assert diff.quantiles["p50"] == 0


def test_ulp_at_max_is_taken_array_by_array():
    large, small = np.float32([2.0**30]), np.float32([1.0])
    diff = max_diff([small, large], [small + np.float32(0.5), large])
    assert (diff.abs, diff.largest, diff.ulp_at_max) == (0.5, 2**30, 2**22)


def test_without_errors_the_array_with_mismatches_is_named():
    diff = max_diff([ONE, ONE], [ONE, np.float32([1, np.nan])])
    assert (diff.abs, diff.path, diff.n_nan) == (0, "[1]", 1)


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
    assert (diff.n, diff.n_arrays, diff.abs, diff.path) == (4, 2, 1, "[0]")
    assert max_diff(None, None).n_arrays == 0


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
    assert (diff.device_got, diff.same_device, diff.same_dtype) == ("cuda:1", False, False)
    assert diff.same_structure
