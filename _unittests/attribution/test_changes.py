"""Tests of ortmeter.attribution.changes."""

import numpy as np
import onnx
import pytest

from ortmeter.attribution.changes import find_changes

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def model(arrays, node="[n] Y = Add(X, w)", header=HEADER, kind="float"):
    text = f"{header} g ({kind}[4] X) => ({kind}[4] Y) {{ {node} }}"
    proto = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def told(first, second, results=()):
    return list(find_changes(first, second, results))


VALUES = np.random.default_rng(0).standard_normal(100)


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
def test_roundings_to_a_narrower_type_are_not_changes(narrow):
    wide = np.float64 if narrow == np.float32 else np.float32
    values = np.append(VALUES * 100, [0, 1e-9, 65504]).astype(wide)
    assert told(model({"w": values}), model({"w": values.astype(narrow)})) == []


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (np.float32(262144), np.float16(65504), "w is 65504.0 instead of 262144.0"),
        (np.int64([2, 3]), np.int64([2]), "w is [2] instead of [2, 3]"),
        (np.float32([1, 2]), np.float32([1, 2.5]), "w is [1.0, 2.5] instead of [1.0, 2.0]"),
    ],
)
def test_few_values_are_written(first, second, text):
    assert told(model({"w": first}), model({"w": second})) == [f"initializer {text}"]


def test_of_many_values_the_worst_is_written():
    other = VALUES.astype(np.float32)
    other[[7, 30]] += np.float32([3, 1])
    (text,) = told(model({"w": VALUES.astype(np.float32)}), model({"w": other}))
    assert "at (7,), and 2 of 100 values differ" in text


@pytest.mark.parametrize(
    "other", [VALUES.reshape(4, 25).astype("f"), (VALUES * 10).astype(np.int8)]
)
def test_what_is_no_conversion_is_not_compared(other):
    assert told(model({"w": VALUES.astype("f")}), model({"w": other})) == []


def test_the_largest_change_is_first():
    first = {"a": np.float32(1), "b": np.float32(1)}
    second = {"a": np.float32(1.1), "b": np.float32(9)}
    assert [text[12] for text in told(model(first), model(second))] == ["b", "a"]


def test_initializers_of_nodes_that_are_paired():
    first, second = model({"w": np.float32(1)}), model({"v": np.float32(2)}, "[n] Y = Add(X, v)")
    assert told(first, second) == ["initializer w / v is 2.0 instead of 1.0"]


def test_constants_are_initializers():
    node = "k = Constant<value_float = {}>() [n] Y = Add(X, k)"
    first, second = model({}, node.format(1.0)), model({"k": np.float32(2)}, "[n] Y = Add(X, k)")
    assert told(first, second) == ["initializer k is 2.0 instead of 1.0"]


def test_attributes_that_differ_and_defaults_that_do_not():
    first, second = model({}, "[s] Y = Elu(X)"), model({}, "[s] Y = Elu<alpha = 1.0>(X)")
    assert told(first, second) == []
    second = model({}, "[s] Y = Elu<alpha = 2.0>(X)")
    assert told(first, second) == ["alpha of s (Elu) is 2.0 instead of 1.0"]
    third = model({}, "[other] Z = Elu<alpha = 2.0>(X)")
    assert told(first, third) == []
    assert told(first, third, [("Y", "Z")]) == ["alpha of s / other (Elu) is 2.0 instead of 1.0"]


def test_a_cast_to_a_narrower_type_is_no_change():
    first, second = model({}, "[c] Y = Cast<to = 1>(X)"), model({}, "[c] Y = Cast<to = 10>(X)")
    assert told(first, second) == []
    third = model({}, "[c] Y = Cast<to = 7>(X)")
    assert told(first, third) == ["to of c (Cast) is 7 instead of 1"]
