"""Element types: ONNX, NumPy, torch and ONNX Runtime names of the same thing.

Every function takes any of these descriptions of an element type:

* a value of ``onnx.TensorProto.DataType``, an ``int``;
* a NumPy dtype or scalar type: ``np.dtype("float16")``, ``np.float16``, ``np.str_``;
* a torch dtype: ``torch.float16``;
* a name, in any case: ``"float16"``, ``"f16"``, ``"FLOAT16"``, ``"torch.float16"``, or
  ``"tensor(float16)"``, the one of ONNX Runtime, and ``"Int4x2"``, the one of its profiles.

Some descriptions have two meanings elsewhere; here:

* the *string* ``"float"`` is the ONNX one, 32 bits, like ``"tensor(float)"``, and ``"double"`` has
  64 bits; the Python *type* ``float`` is the NumPy one, 64 bits;
* a string is never a NumPy type code: ``"f32"``, ``"i8"``, ``"u4"`` count **bits**, so ``"i8"`` is
  int8 (NumPy reads eight bytes) and ``"f8"`` is unknown;
* strings are held by NumPy arrays of objects, as in ONNX;
* the byte order of a NumPy dtype is not part of the element type;
* ``torch.float4_e2m1fn_x2``, two elements in one byte, is not an element type.
"""

import re
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import ml_dtypes
import numpy as np
import onnx
import onnx.helper

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional

if TYPE_CHECKING:
    import torch

    DTypeLike: TypeAlias = int | str | np.dtype[Any] | type[Any] | torch.dtype
else:
    DTypeLike: TypeAlias = int | str | np.dtype | type

__all__ = [
    "DTypeLike",
    "float_info",
    "numpy_dtype",
    "onnx_type",
    "short_name",
    "torch_dtype",
    "unit_roundoff",
]

_finfo: Any = ml_dtypes.finfo  # has no types

# Name in onnx.TensorProto -> short name, the one that onnx_ir prints.
_SHORT_NAMES = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "f8e4m3fn",
    "FLOAT8E4M3FNUZ": "f8e4m3fnuz",
    "FLOAT8E5M2": "f8e5m2",
    "FLOAT8E5M2FNUZ": "f8e5m2fnuz",
    "FLOAT8E8M0": "f8e8m0",
    "FLOAT6E2M3": "f6e2m3",
    "FLOAT6E3M2": "f6e3m2",
    "FLOAT4E2M1": "f4e2m1",
    "INT2": "i2",
    "INT4": "i4",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "UINT2": "u2",
    "UINT4": "u4",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "BOOL": "b8",
    "STRING": "s",
    "COMPLEX64": "c64",
    "COMPLEX128": "c128",
}

# The installed onnx may be older than the table: the types it does not know are left out.
_ENUM = onnx.TensorProto.DataType
_SHORT_NAME_OF: dict[int, str] = {
    _ENUM.Value(name): short
    for name, short in _SHORT_NAMES.items()
    if name in _ENUM.keys()  # noqa: SIM118 - not a dict
}
_NUMPY_OF = {kind: onnx.helper.tensor_dtype_to_np_dtype(kind) for kind in _SHORT_NAME_OF}
_TYPE_OF_NAME: dict[str, int] = {
    name.lower(): kind
    for kind, short in _SHORT_NAME_OF.items()
    for name in (_ENUM.Name(kind), _NUMPY_OF[kind].name, short)
}


def onnx_type(dtype: DTypeLike) -> int:
    """Return the ONNX enum of an element type.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of an element type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    int
        A value of ``onnx.TensorProto.DataType``.

    Raises
    ------
    InvalidArgumentError
        Nothing in ONNX has this element type.

    Examples
    --------
    >>> onnx_type("tensor(float16)") == onnx_type(np.float16) == onnx.TensorProto.FLOAT16
    True
    """
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        found = dtype if dtype in _SHORT_NAME_OF else None
    elif isinstance(dtype, str) or str(type(dtype)) == "<class 'torch.dtype'>":
        found = _from_name(str(dtype))
    elif isinstance(dtype, np.dtype | type):
        found = _from_numpy(dtype)
    else:
        found = None
    if found is None:
        raise InvalidArgumentError(
            f"{dtype!r} is not an ONNX element type. Accepted: a value of "
            "onnx.TensorProto.DataType, a numpy or torch dtype, 'tensor(float16)', or one of "
            + ", ".join(sorted(_TYPE_OF_NAME))
        )
    return found


def _from_name(name: str) -> int | None:
    if name.startswith("tensor(") and name.endswith(")"):
        name = name[len("tensor(") : -1]
    # Profiles of ONNX Runtime say how many elements are in a byte: Int4x2, Float4E2M1x2.
    name = re.sub(r"(?i)(?<=int4|int2|e2m1)x[24]$", "", name)
    return _TYPE_OF_NAME.get(name.removeprefix("torch.").lower())


def _from_numpy(dtype: np.dtype[Any] | type[Any]) -> int | None:
    is_class = isinstance(dtype, type)
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        return None
    if is_class and dtype.kind == "O":  # what NumPy answers for any class that it does not know
        return None
    if dtype.kind in "SUT":
        return int(onnx.TensorProto.STRING)
    return _TYPE_OF_NAME.get(dtype.name)


def numpy_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the NumPy dtype of an element type.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of an element type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    numpy.dtype
        In native byte order. The types that NumPy lacks come from ``ml_dtypes``, one element in
        one byte at least; strings are objects.

    Raises
    ------
    InvalidArgumentError
        Nothing in ONNX has this element type.

    Examples
    --------
    >>> numpy_dtype("tensor(float)"), numpy_dtype("bf16")
    (dtype('float32'), dtype(bfloat16))
    """
    return _NUMPY_OF[onnx_type(dtype)]


def torch_dtype(dtype: DTypeLike) -> "torch.dtype":
    """Return the torch dtype of an element type.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of an element type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    torch.dtype
        The type of a tensor of these elements, one element per item.

    Raises
    ------
    InvalidArgumentError
        Nothing in ONNX, or nothing in the installed torch, has this element type.
    MissingDependencyError
        torch is not installed.

    Examples
    --------
    >>> torch_dtype("tensor(float)")
    torch.float32
    """
    name = numpy_dtype(dtype).name
    module = import_optional("torch", "torch")
    found = getattr(module, name, None)
    if not isinstance(found, module.dtype):
        raise InvalidArgumentError(
            f"torch {module.__version__} has no dtype for {dtype!r} (looked for torch.{name})"
        )
    return cast("torch.dtype", found)


def short_name(dtype: DTypeLike) -> str:
    """Return the short name of an element type: a letter for the kind, then bits.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of an element type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    str
        ``f32``, ``bf16``, ``f8e4m3fn``, ``i64``, ``u8``, ``b8`` (bool), ``c64``, ``s`` (string):
        the names that onnx_ir prints.

    Raises
    ------
    InvalidArgumentError
        Nothing in ONNX has this element type.

    Examples
    --------
    >>> short_name(np.float32), short_name("tensor(bfloat16)"), short_name(bool)
    ('f32', 'bf16', 'b8')
    """
    return _SHORT_NAME_OF[onnx_type(dtype)]


def unit_roundoff(dtype: DTypeLike) -> float:
    """Return the largest relative error of rounding a real number to a floating-point type.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of a real floating-point type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    float
        ``2**-p`` where *p* is the number of bits of the significand, the implicit one included
        (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 2.1), for a
        rounding to nearest that neither overflows nor underflows.

    Raises
    ------
    InvalidArgumentError
        The type is not a real floating-point type.

    Examples
    --------
    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return float(2.0 ** -(float_info(dtype).nmant + 1))


def float_info(dtype: DTypeLike) -> Any:
    """Return the limits of a floating-point type, those below 16 bits included.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of a real floating-point type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    finfo
        What :class:`numpy.finfo` holds: ``nmant``, ``minexp``, ``smallest_subnormal``, ``max``...

    Raises
    ------
    InvalidArgumentError
        The type is not a real floating-point type.

    Examples
    --------
    >>> float(float_info("float8e4m3fn").max)
    448.0
    """
    if not short_name(dtype).startswith(("f", "bf")):
        raise InvalidArgumentError(f"{dtype!r} is not a real floating-point type")
    return _finfo(numpy_dtype(dtype))
