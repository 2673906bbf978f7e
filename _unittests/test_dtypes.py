"""Tests of ortmeter.dtypes."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from ortmeter.dtypes import numpy_dtype, onnx_type, short_name, torch_dtype, unit_roundoff
from ortmeter.errors import InvalidArgumentError


class Row(NamedTuple):
    """The names of one element type."""

    name: str
    scalar: type
    torch_type: torch.dtype | None
    short: str  # the one of onnx_ir
    bits: int | None  # of the significand, None for what is not a real float


TABLE = [
    # floats
    Row("FLOAT", np.float32, torch.float32, "f32", 24),
    Row("DOUBLE", np.float64, torch.float64, "f64", 53),
    Row("FLOAT16", np.float16, torch.float16, "f16", 11),
    Row("BFLOAT16", ml_dtypes.bfloat16, torch.bfloat16, "bf16", 8),
    # 8 bits and less
    Row("FLOAT8E4M3FN", ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, "f8e4m3fn", 4),
    Row("FLOAT8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, torch.float8_e4m3fnuz, "f8e4m3fnuz", 4),
    Row("FLOAT8E5M2", ml_dtypes.float8_e5m2, torch.float8_e5m2, "f8e5m2", 3),
    Row("FLOAT8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, torch.float8_e5m2fnuz, "f8e5m2fnuz", 3),
    Row("FLOAT8E8M0", ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu, "f8e8m0", 1),
    Row("FLOAT4E2M1", ml_dtypes.float4_e2m1fn, None, "f4e2m1", 2),
    # integers
    Row("INT4", ml_dtypes.int4, torch.int4, "i4", None),
    Row("INT8", np.int8, torch.int8, "i8", None),
    Row("INT16", np.int16, torch.int16, "i16", None),
    Row("INT32", np.int32, torch.int32, "i32", None),
    Row("INT64", np.int64, torch.int64, "i64", None),
    Row("UINT4", ml_dtypes.uint4, torch.uint4, "u4", None),
    Row("UINT8", np.uint8, torch.uint8, "u8", None),
    Row("UINT16", np.uint16, torch.uint16, "u16", None),
    Row("UINT32", np.uint32, torch.uint32, "u32", None),
    Row("UINT64", np.uint64, torch.uint64, "u64", None),
    # others
    Row("BOOL", np.bool_, torch.bool, "b8", None),
    Row("STRING", np.str_, None, "s", None),
    Row("COMPLEX64", np.complex64, torch.complex64, "c64", None),
    Row("COMPLEX128", np.complex128, torch.complex128, "c128", None),
]
ALL = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


@ALL
def test_every_description_gives_the_same_type(row):
    enum = TensorProto.DataType.Value(row.name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(enum)
    assert onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(row.short)) == enum
    descriptions = [enum, row.name, row.name.lower(), row.scalar, np.dtype(row.scalar), row.short]
    descriptions += [f"tensor({row.name.lower()})"]
    descriptions += [dtype.name] if row.name != "STRING" else []
    descriptions += [row.torch_type, str(row.torch_type)] if row.torch_type else []
    for description in descriptions:
        assert onnx_type(description) == enum, description
        assert numpy_dtype(description) == dtype, description
        assert short_name(description) == row.short, description
        if row.torch_type:
            assert torch_dtype(description) is row.torch_type, description


@ALL
def test_unit_roundoff(row):
    if row.bits is None:
        with pytest.raises(InvalidArgumentError, match="is not a real floating-point type"):
            unit_roundoff(row.name)
    else:
        assert unit_roundoff(row.name) == 2.0**-row.bits


@pytest.mark.parametrize(
    ("description", "short"),
    [
        # Python types are those of numpy
        (float, "f64"),
        (int, short_name(np.int_)),
        (bool, "b8"),
        (str, "s"),
        # a string is an ONNX name, never a type code of numpy
        ("float", "f32"),
        ("i8", "i8"),
        ("u4", "u4"),
        # in the profiles of ONNX Runtime, with the number of elements in a byte
        ("Int4x2", "i4"),
        # dtypes of numpy with the same elements
        (np.dtype(">f4"), "f32"),
        (np.dtypes.StringDType(), "s"),
        (np.dtype(object), "s"),
        (np.longlong, "i64"),
    ],
    ids=repr,
)
def test_ambiguous_descriptions(description, short):
    assert short_name(description) == short


@pytest.mark.parametrize(
    "description",
    [
        0,
        True,
        None,
        "",
        "f8",
        "float16x2",
        "seq(tensor(float))",
        object,
        np.dtype([("a", "f4")]),
        torch.float4_e2m1fn_x2,
        torch.zeros(1),
    ],
    ids=repr,
)
def test_unknown_types_are_refused(description):
    with pytest.raises(
        InvalidArgumentError, match=r"is not an ONNX element type\. Accepted: "
    ) as info:
        onnx_type(description)
    assert repr(description) in str(info.value)


@pytest.mark.parametrize("name", ["string", "float4e2m1"])
def test_torch_lacks_some_types(name):
    with pytest.raises(InvalidArgumentError, match=f"has no dtype for '{name}'"):
        torch_dtype(name)
