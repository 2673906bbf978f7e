"""Tests of ortmeter.discrepancy.text."""

import math
import types

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from ortmeter.discrepancy import string_type
from ortmeter.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # arrays
        (np.float32([[1, 2], [3, 6]]), "f32[2x2] min 1.000 max 6.000 mean 3.000 nan 0"),
        (np.float16([1, math.nan]), "f16[2] min 1.000 max 1.000 mean 1.000 nan 1"),
        (np.array([math.nan, -math.inf]), "f64[2] nan 1 inf 1"),
        (np.array([3 + 4j, complex(0, math.nan)]), "c128[2] min 5.000 max 5.000 mean 5.000 nan 1"),
        (np.array([2**62 + 1, -1]), f"i64[2] min -1 max {2**62 + 1} mean 2.306e+18"),
        (np.array([2**64 - 1, 0], np.uint64), f"u64[2] min 0 max {2**64 - 1} mean 9.223e+18"),
        (np.array([True, False]), "b8[2] min 0 max 1 mean 0.5000"),
        (np.array([1, 2], ml_dtypes.bfloat16), "bf16[2] min 1.000 max 2.000 mean 1.500 nan 0"),
        (torch.ones(3, 2).T[:, ::2], "f32[2x2] min 1.000 max 1.000 mean 1.000 nan 0"),
        (onnx.numpy_helper.from_array(np.int8([1])), "i8[1] min 1 max 1 mean 1.000"),
        (np.array(["a", "b"]), "s[2]"),
        (np.zeros((0, 3)), "f64[0x3]"),
        # scalars
        (1.5, "f64[] 1.500"),
        (np.float32(1.5), "f32[] 1.500"),
        (1j, "c128[] 0.000+1.000j"),
        (True, "b8[] True"),
        ("a", "s[] 'a'"),
        (None, "None"),
        # structures
        ((1, [2]), "(i64[] 1, [i64[] 2])"),
        ({"a": None, 1: ()}, "{a: None, 1: ()}"),
        (types.SimpleNamespace(layers=[]), "SimpleNamespace(layers: [])"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_descriptions(value, text):
    assert string_type(value) == text


def test_figures_of_many_pieces_agree_with_numpy():
    array = np.random.default_rng(0).standard_normal(400_001)
    text = string_type(array).split()
    found = {name: float(value) for name, value in zip(text[1::2], text[2::2], strict=True)}
    wanted = {"min": array.min(), "max": array.max(), "mean": array.mean(), "nan": 0}
    assert found == pytest.approx(wanted, rel=1e-3)


def test_options():
    assert string_type([None] * 23) == f"[{'None, ' * 20}... 3 more]"
    assert string_type({"a": np.zeros((2, 3))}, values=False) == "{a: f64[2x3]}"


def test_what_is_not_an_array_is_refused():
    with pytest.raises(InvalidArgumentError, match="^set cannot be compared"):
        string_type([{1, 2}])
