"""Which operators have a CUDA kernel, as read in the library of one release of ONNX Runtime.

A node has the since version of its schema at the opset of the model, and a kernel takes a range of
since versions. A kernel that is registered without an end takes its first version only: a newer
schema leaves the operator without a kernel until somebody registers one. An operator whose schema
is a function is expanded when it has no kernel, which this table does not tell.
Another release of ONNX Runtime is assumed to have the same kernels. ``make gpu-check`` compares the
table with where nodes run on a GPU.
"""

import functools
import importlib.resources
from itertools import groupby

import onnx
import onnx.defs

from ortmeter.dtypes import short_name

#: The release that the table describes.
KERNELS_OF = "1.31.1"


def cuda_kernel(op_type: str, domain: str = "", *, opset: int, dtype: int | None = None) -> bool:
    """Whether CUDA has a kernel for an operator, at this opset of its domain in the model.

    *dtype* is the ONNX type of the main constraint of the operator (T, else T1), any by default.
    """
    domain = "" if domain == "ai.onnx" else domain
    try:
        version = onnx.defs.get_schema(op_type, opset, domain).since_version
    except onnx.defs.SchemaError:  # a schema of ONNX Runtime: they are all of version 1
        version = 1
    return any(
        first <= version <= last and _takes(types, dtype)
        for first, last, types in _kernels().get((domain, op_type), ())
    )


def _takes(types: list[str], dtype: int | None) -> bool:
    if dtype is None or short_name(dtype) in types:
        return True
    return "*" in types and dtype != onnx.TensorProto.STRING


def cuda_opsets(op_type: str, domain: str = "") -> list[range]:
    """List the opsets of a model where CUDA has a kernel for an operator, as ranges."""
    last = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}
    known = range(1, last.get("" if domain == "ai.onnx" else domain, 1) + 1)
    runs = groupby(known, lambda opset: cuda_kernel(op_type, domain, opset=opset))
    found = [list(opsets) for has_kernel, opsets in runs if has_kernel]
    return [range(opsets[0], opsets[-1] + 1) for opsets in found]


@functools.cache
def _kernels() -> dict[tuple[str, str], list[tuple[int, int, list[str]]]]:
    """Read the table: first and last since version, element types, by domain and operator."""
    text = importlib.resources.files(__package__).joinpath("cuda_kernels.txt").read_text()
    kernels: dict[tuple[str, str], list[tuple[int, int, list[str]]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            operator, versions, *types = line.split()
            domain, _, op_type = operator.rpartition(".")
            first, _, last = versions.partition("-")
            kernels.setdefault((domain, op_type), []).append((int(first), int(last), types))
    return kernels
