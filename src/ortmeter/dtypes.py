"""Element types and their names in ONNX, NumPy, torch and ONNX Runtime.

Every function accepts any of these descriptions of an element type:

* a value of ``onnx.TensorProto.DataType``, an ``int``;
* a NumPy dtype or scalar type: ``np.dtype("float16")``, ``np.float16``, ``np.str_``;
* a torch dtype: ``torch.float16``;
* a name, in any case: ``"float16"``, ``"f16"``, ``"FLOAT16"``, ``"torch.float16"``,
  ``"tensor(float16)"`` (ONNX Runtime), or ``"Int4x2"`` (its profiles).

Ambiguous descriptions mean:

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

    #: A type: the name or number of ONNX, a NumPy or a torch type.
    DTypeLike: TypeAlias = int | str | np.dtype[Any] | type[Any] | torch.dtype
else:
    DTypeLike: TypeAlias = int | str | np.dtype | type

__all__ = [
    "DTypeLike",
    "float_info",
    "numpy_dtype",
    "torch_dtype",
    "unit_roundoff",
]

_finfo: Any = ml_dtypes.finfo  # has no types

# Short names are those that onnx_ir prints: a letter for the kind, then bits.
_LETTERS = {"FLOAT": "f", "BFLOAT": "bf", "INT": "i", "UINT": "u", "COMPLEX": "c"}
_WITHOUT_BITS = {"FLOAT": "f32", "DOUBLE": "f64", "BOOL": "b8", "STRING": "s"}


def _shorten(name: str) -> str:
    letters = re.split(r"\d", name)[0]
    return _WITHOUT_BITS.get(name) or _LETTERS[letters] + name.removeprefix(letters).lower()


_ENUM = onnx.TensorProto.DataType
_SHORT_NAME_OF: dict[int, str] = {
    kind: _shorten(name) for name, kind in _ENUM.items() if name != "UNDEFINED"
}
_NUMPY_OF = {kind: onnx.helper.tensor_dtype_to_np_dtype(kind) for kind in _SHORT_NAME_OF}
_TYPE_OF_NAME: dict[str, int] = {
    name.lower(): kind
    for kind, short in _SHORT_NAME_OF.items()
    for name in (_ENUM.Name(kind), _NUMPY_OF[kind].name, short)
}


def onnx_type(dtype: DTypeLike) -> int:
    """Return the value of ``onnx.TensorProto.DataType`` of an element type."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        kind = dtype if dtype in _SHORT_NAME_OF else None
    elif isinstance(dtype, str) or str(type(dtype)) == "<class 'torch.dtype'>":
        kind = _from_name(str(dtype))
    elif isinstance(dtype, np.dtype | type):
        kind = _from_numpy(dtype)
    else:
        kind = None
    if kind is None:
        raise InvalidArgumentError(
            f"{dtype!r} is not an ONNX element type. Accepted: a value of "
            "onnx.TensorProto.DataType, a numpy or torch dtype, 'tensor(float16)', or one of "
            + ", ".join(sorted(_TYPE_OF_NAME))
        )
    return kind


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
        In native byte order. Types that NumPy lacks come from ``ml_dtypes``, with at least one byte
        per element; strings are objects.

    Raises
    ------
    InvalidArgumentError
        ONNX has no such element type.

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
        ONNX, or the installed torch, has no such element type.
    MissingDependencyError
        torch is not installed.

    Examples
    --------
    >>> torch_dtype("tensor(float)")
    torch.float32
    """
    name = numpy_dtype(dtype).name
    module = import_optional("torch", "torch")
    member = getattr(module, name, None)
    if not isinstance(member, module.dtype):
        raise InvalidArgumentError(
            f"torch {module.__version__} has no dtype for {dtype!r} (looked for torch.{name})"
        )
    return cast("torch.dtype", member)


def short_name(dtype: DTypeLike) -> str:
    """Return the short name of an element type: ``f32``, ``bf16``, ``i64``, ``b8``, ``s``."""
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
        ``2**-p`` where *p* is the number of bits of the significand, including the implicit one
        (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 2.1). It assumes
        rounding to nearest, without overflow or underflow.

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
    """Return the limits of a floating-point type, including those below 16 bits.

    Parameters
    ----------
    dtype : int, str, numpy dtype or scalar type, torch dtype
        Any description of a real floating-point type, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    finfo
        Same attributes as :class:`numpy.finfo`: ``nmant``, ``minexp``, ``smallest_subnormal``,
        ``max``...

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
