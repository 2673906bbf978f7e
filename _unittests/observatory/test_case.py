import dataclasses

import numpy as np
import onnx
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.case import Case, call, expand

_ABS = Case("Abs", "Y = Abs(X)", "T[64] X")


def _drawn(values, kind="f32", inputs="T[4096] X"):
    return dataclasses.replace(_ABS, type=kind, inputs=f"{inputs} = {values}").feeds()["X"]


def test_a_scalar_has_rank_0_and_an_output_any():
    model = Case("Add", "Y = Add(X, Z)", "T[2,3] X, T[] Z").model()
    scalar = model.graph.input[1].type.tensor_type
    assert scalar.HasField("shape")
    assert not scalar.shape.dim
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [2, 3]
    assert not model.graph.output[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(("kind", "expected"), [("f16", "FLOAT16"), ("b8", "BOOL")])
def test_t_is_the_type_of_the_case(kind, expected):
    body, outputs = "Y = Identity(X) I = Identity(Z)", "T Y, i64 I"
    case = Case("Cast", body, "T[4] X, i64[4] Z", type=kind, outputs=outputs)
    graph = case.model().graph
    kinds = [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)]
    names = [onnx.TensorProto.DataType.Name(kind) for kind in kinds]
    assert names == [expected, "INT64", expected, "INT64"]
    assert {str(array.dtype) for array in case.feeds().values()} > {"int64"}


def test_weights_and_numbers_are_initializers():
    case = Case(
        "Gemm",
        "A = MatMul(X, W) B = PRelu(A, S) Y = Reshape(B, N)",
        "T[4,64] X, T[64,64] W*, T[4,1] S = 0.1, i64[2] N = 8 32",
    )
    model = case.model()
    assert [value.name for value in model.graph.input] == ["X"] == [*case.feeds()]
    found = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(found["S"], np.full((4, 1), np.float32(0.1)))
    assert found["N"].tolist() == [8, 32]
    # The outputs of a product of normal inputs are near 1.
    assert 0.05 < np.abs(found["W"]).mean() < 0.2


def test_normal_inputs_have_both_signs_and_one_zero_in_16():
    drawn = _drawn("normal")
    assert 0.04 < np.mean(drawn == 0) < 0.09
    assert 0.4 < np.mean(drawn > 0) < 0.53
    assert not np.signbit(drawn[drawn == 0]).any()


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [("positive", 0.1, 2), ("unit", -1, 1), ("above one", 1, 3), ("below 7", 0, 6)],
)
def test_a_distribution_fills_its_range(values, low, high):
    drawn = _drawn(values)
    margin = 0.01 * (high - low)
    assert low <= drawn.min() < low + margin
    assert high - margin < drawn.max() <= high


@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_denormals_are_below_the_smallest_normal_number(kind):
    drawn = _drawn("denormal", kind)
    assert np.abs(drawn).max() <= np.finfo(drawn.dtype).tiny
    assert {-1, 1} <= {*np.sign(drawn)}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("i8", "normal", range(-128, 128)),
        ("i64", "normal", range(-128, 128)),
        ("u8", "normal", range(256)),
        ("i64", "positive", range(1, 128)),
        ("b8", "normal", range(2)),
    ],
)
def test_integers_take_every_value(kind, values, expected):
    assert {*_drawn(values, kind).tolist()} == {*expected}


def test_order_shuffles_the_ranks_of_the_first_axis():
    columns = _drawn("order", "i64", "T[64,3] X")
    assert (np.sort(columns, axis=0) == np.arange(64)[:, None]).all()
    assert len({tuple(column) for column in columns.T}) == 3


def test_inputs_are_the_same_each_time_and_differ_from_one_another():
    case = Case("Add", "Y = Add(X, Z)", "T[64] X, T[64] Z")
    first, again = case.feeds(), case.feeds()
    assert all((first[name] == again[name]).all() for name in first)
    assert not (first["X"] == first["Z"]).all()
    other = dataclasses.replace(case, type="f16").feeds()
    assert (other["X"] == first["X"].astype(np.float16)).all()


def test_the_name_counts_inputs_and_outputs():
    assert _ABS.name == "Abs-f32-L1"
    shapes = {"4096": "L1", "131072": "L2", "131073": "L3", "8388608": "memory"}
    for shape, label in shapes.items():
        assert dataclasses.replace(_ABS, inputs=f"T[{shape}] X").name == f"Abs-f32-{label}"
    assert dataclasses.replace(_ABS, outputs="T[131072] Y").name == "Abs-f32-L2"
    assert dataclasses.replace(_ABS, variant="of two words").name == "Abs-of-two-words-f32-L1"


def test_the_domains_and_opset_are_imported():
    model = Case("QuickGelu", "Y = com.microsoft.QuickGelu(X)", "T[4] X", opset=17).model()
    assert {opset.domain: opset.version for opset in model.opset_import} == {
        "": 17,
        "com.microsoft": 1,
    }
    assert [(node.domain, node.op_type) for node in model.graph.node] == [
        ("com.microsoft", "QuickGelu")
    ]
    assert [opset.domain for opset in _ABS.model().opset_import] == [""]


def test_a_call_is_a_case_of_one_node_and_expand_gives_it_several_types():
    inputs = "T[8] X = positive, T[8] W*, i64[1] K = 2"
    assert call("Abs", "T[64] X") == _ABS
    case = call('ai.onnx.TopK<a = "b.c">', inputs, "few", "i8", "T Y, i64[2] I")
    assert (case.op, case.body) == ("TopK", 'Y, I = ai.onnx.TopK<a = "b.c">(X, W, K)')
    assert (case.inputs, case.variant, case.type) == (inputs, "few", "i8")
    assert (case.outputs, case.shapes) == ("T Y, i64[2] I", "T[8] X, T[8] W, i64[1] K")
    assert [case.name for case in expand(_ABS, "f64", "i8")] == ["Abs-f64-L1", "Abs-i8-L1"]


def _build(case):
    return case.name, case.model(), case.feeds()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"body": "Y = Abs(X"}, "'Y = Abs(X' of a case of Abs: Expected .* Accepted: nodes"),
        ({"inputs": "T[4]X"}, "'T[4]X' in a case of Abs. Accepted: tensors such as"),
        ({"inputs": "T X"}, "'T X' in a case of Abs. Accepted: .* and 'T[] X' for a scalar"),
        ({"type": "f33"}, "'f33' is not an ONNX element type"),
        ({"inputs": "T[64] X = gaussian"}, "values of 'X', float[64] X, are 'gaussian'"),
        ({"inputs": "T[64] X = unit", "type": "i8"}, "int8[64] X, are 'unit'"),
        ({"inputs": "T[64] X = 1 2"}, "are [1, 2] .* as many as in the shape"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_wrong_case_is_refused_in_one_line(fields, message):
    escaped = message.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(InvalidArgumentError, match=escaped) as caught:
        _build(dataclasses.replace(_ABS, **fields))
    assert "\n" not in str(caught.value)
