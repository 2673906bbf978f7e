"""Tests of the table of operators: one entry each, opsets, defaults of attributes, refusals."""

import inspect

import numpy as np
import onnx.defs
import pytest
from kernel_checks import case, run_kernel

from ortmeter.errors import OrtMeterError, RefusedError
from ortmeter.operators import Operator, find_kernel, find_operator, known_operators
from ortmeter.operators.kinds import KINDS
from ortmeter.operators.registry import family

KERNELS = {
    f"{operator.name}-{since}": (operator.name, function)
    for operator in known_operators()
    for since, function in operator.kernels.items()
}


def test_an_operator_is_declared_once_and_has_a_kind():
    with pytest.raises(ValueError, match="Relu is declared twice"):
        family("elementwise")("Relu")
    operators = known_operators()
    assert {operator.kind for operator in operators} <= KINDS.keys()
    assert all(find_operator(o.name, o.domain) is o for o in operators)
    assert find_operator("Relu", "ai.onnx") is find_operator("Relu")
    assert find_operator("Relu", "com.microsoft") == Operator("Relu", "com.microsoft")


def test_what_is_exact_or_quantized_is_no_sum():
    for operator in known_operators():
        exceptions = {"ScatterElements", "ScatterND"}  # they may add
        assert not (operator.is_exact and operator.bound) or operator.name in exceptions
        assert not operator.is_quantized or operator.bound


def schemas_of(op_type, function):
    """Schemas of the opsets at which `find_kernel` gives this kernel."""
    every = (s for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type)
    return [
        schema
        for schema in every
        if not schema.domain and find_kernel("", op_type, schema.since_version) is function
    ]


def test_the_latest_kernel_up_to_the_opset_is_found():
    old, new = find_kernel("", "Softmax", 12), find_kernel("", "Softmax", 13)
    assert old is not new
    assert find_kernel("", "Softmax", 11) is old
    assert find_kernel("ai.onnx", "Softmax", 99) is new
    # broadcasting was an attribute, deprecated, the evaluator's, unknown, of another domain
    absent = {("", "Add", 6), ("", "Upsample", 10), ("", "If", 13), ("", "NoSuch", 13)}
    assert {find_kernel(*key) for key in absent | {("com.microsoft", "Add", 13)}} == {None}


@pytest.mark.parametrize(("op_type", "function"), KERNELS.values(), ids=KERNELS)
def test_keywords_are_the_attributes_of_the_schema_with_its_defaults(op_type, function):
    schemas = schemas_of(op_type, function)
    assert schemas, f"no schema of {op_type} leads to this kernel"
    parameters = inspect.signature(function).parameters.values()
    described = {name for schema in schemas for name in schema.attributes}
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"n_outputs"}
    assert keywords <= described
    # What is an attribute in some opsets and an input in others is not keyword-only.
    for name, keyword in ((p.name, p) for p in parameters if p.name in described):
        check_default(
            keyword.default, [s.attributes[name] for s in schemas if name in s.attributes]
        )


def check_default(default, attributes):
    if all(attribute.required for attribute in attributes):
        assert default is inspect.Parameter.empty
        return
    # What an attribute without a default means when it is absent is in the text of the schema.
    expected = [default_of(a) for a in attributes if a.default_value.name]
    if expected and default is not None:
        assert any(is_close(default, value) for value in expected)


def is_close(default, expected):
    if isinstance(expected, str):
        return default == expected
    return default == pytest.approx(expected, rel=1e-6)


def default_of(attribute):
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def strings():
    return np.array(["a", "b"], dtype=object)


REFUSED = [
    # strings
    case("Add", 14, strings(), strings()),
    case("Concat", 13, strings(), strings(), axis=0),
    case("Cast", 13, strings(), to=1),
    case("Transpose", 13, strings()),
    # types that torch names and computes nothing with, or does not name
    case("Cast", 23, np.float32([1]), to=23),
    case("Cast", 25, np.float32([1]), to=onnx.TensorProto.FLOAT8E8M0),
    # unsigned integers of more than 8 bits, for which torch has few kernels
    case("Add", 14, np.uint16([1]), np.uint16([1])),
    case("Max", 13, np.uint64([1]), np.uint64([1])),
    case("Div", 14, np.uint64([2**63]), np.uint64([3])),
    case("MatMul", 13, np.uint64([[1]]), np.uint64([[1]])),
    # attributes
    case("BatchNormalization", 9, *[np.ones((1, 1), "f4")] * 5, n_outputs=5),
    case("BatchNormalization", 15, *[np.ones((1, 1), "f4")] * 5, n_outputs=3, training_mode=1),
    case("Gemm", 13, np.int32([[1]]), np.int32([[1]]), alpha=0.5),
    case("MaxPool", 12, np.ones((1, 1, 2, 2), "f4"), n_outputs=2, kernel_shape=[2, 2]),
    case("GridSample", 20, *[np.zeros((1, 1, 2, 2, n), "f4") for n in (2, 3)], mode="cubic"),
    case("Conv", 11, np.zeros((1, 1, 1, 1, 1, 1), "f4"), np.zeros((1, 1, 1, 1, 1, 1), "f4")),
    case("QuantizeLinear", 21, np.float32([1]), np.float32(1), output_dtype=22),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_refused_says_what_is_accepted(case):
    with pytest.raises(RefusedError, match="given .*accepted") as info:
        run_kernel(case)
    assert isinstance(info.value, OrtMeterError)
    assert case.op_type in str(info.value)


def test_a_wrong_model_is_not_a_refusal():
    with pytest.raises(RuntimeError) as info:
        run_kernel(case("Add", 14, np.zeros(2, "f4"), np.zeros(3, "f4")))
    assert not isinstance(info.value, RefusedError)
    with pytest.raises(IndexError):
        run_kernel(case("Gather", 13, np.zeros(2, "f4"), np.int64([5])))
