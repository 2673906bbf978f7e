"""Tests of ortmeter.runtime.inputs: what a type holds, read from a line or from Python."""

import math

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortmeter.errors import FeedError
from ortmeter.runtime.inputs import Input, as_declared, decode_json, parse_value

TYPES = onnx.TensorProto.DataType


def one(kind, shape=()):
    return Input("X", TYPES.Value(kind), shape)


@pytest.mark.parametrize(
    ("kind", "shape", "text", "expected"),
    [
        ("INT64", (), "16000", 16000),
        ("INT64", (3,), "1, -2,3", [1, -2, 3]),
        ("INT64", ("n", 2), "[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("INT64", None, "5,6", [5, 6]),
        ("UINT64", (), str(2**64 - 1), 2**64 - 1),
        ("INT4", ("n",), "-8,7", [-8, 7]),
        ("FLOAT", ("n",), "1,nan,-inf", [1, math.nan, -math.inf]),
        ("BOOL", ("n",), "True,false", [True, False]),
        ("STRING", (), "a,b", "a,b"),
        ("STRING", ("n",), '["a,b"]', ["a,b"]),
    ],
)
def test_a_text_becomes_what_the_model_declares(kind, shape, text, expected):
    declared = one(kind, shape)
    array = as_declared(declared, parse_value(declared, text))
    assert array.dtype == declared.dtype
    wanted = np.array(expected, declared.dtype)
    assert array.shape == wanted.shape
    assert array.astype(object).tolist() == wanted.astype(object).tolist() or (
        np.array_equal(array, wanted, equal_nan=True)
    )


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        # out of range
        ("UINT8", 300, r"value 300 given for X: u8\[n\]. Accepted: integers from 0 to 255"),
        ("INT4", [7, 8], "value 8 .*from -8 to 7"),
        ("INT64", 2**63, "value 9223372036854775808 .*from -9223372036854775808 to"),
        ("FLOAT16", 70000, "value 70000.0 .*Accepted: numbers that this type holds"),
        ("FLOAT", 10**400, r"value 1000+\.\.\."),
        # of another kind
        ("INT64", True, "value True .*Accepted: integers"),
        ("FLOAT", False, "value False .*Accepted: numbers"),
        ("BOOL", 1, "value 1 .*Accepted: true or false"),
        ("STRING", ["a", None], "value None .*Accepted: texts"),
        # not an array
        ("INT64", [[1], [1, 2]], r"value \[1\]"),
        ("INT64", "x" * 10**5, r"value 'xxxxx.{0,40}' given"),
    ],
)
def test_what_the_type_does_not_hold_is_refused(kind, value, message):
    with pytest.raises(FeedError, match=message):
        as_declared(one(kind, ("n",)), value)


def test_an_array_has_the_type_already_and_a_number_of_numpy_is_a_number():
    array = np.int64([1, 2])
    assert as_declared(one("INT64", ("n",)), array) is array
    for wrong in (np.int32([1, 2]), np.int64([[1, 2]])):
        with pytest.raises(FeedError, match=r"got 'X' of type .*Accepted: X: i64\[n\]"):
            as_declared(one("INT64", ("n",)), wrong)
    assert as_declared(one("INT64"), np.int32(5)) == 5
    assert as_declared(one("BFLOAT16"), ml_dtypes.bfloat16(1.5)) == 1.5


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e400", "["])
def test_json_is_strict(text):
    with pytest.raises(FeedError, match="this is not JSON"):
        decode_json(text)


@pytest.mark.parametrize("depth", [33, 2000])
def test_lists_that_are_nested_too_deeply_are_refused(depth):
    values = 1
    for _ in range(depth):
        values = [values]
    with pytest.raises(FeedError, match="given for X"):
        as_declared(one("FLOAT", None), values)
