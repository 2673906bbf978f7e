"""Read the intermediate results of a model."""

import contextlib
import copy
import math
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.helper import make_tensor_value_info

from ortmeter.attribution.matching import Result
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import ModelError
from ortmeter.evaluator.node import domain_name
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import NOT_INFERRED, read_by, with_intermediate_outputs
from ortmeter.runtime.inputs import half_of_memory
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import make_session, optimized_model

_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_NUMERIC = "biufcV"  # V: bfloat16 and float8


def run_exposed(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    computed: Collection[str] | None = None,
    **session: Any,
) -> dict[str, Any]:
    """Run a model; return all the results of its nodes, or those *computed*, if they fit."""
    exposed = with_intermediate_outputs(model, computed)
    refuse_too_large(exposed, feeds)
    return run_session(make_session(exposed, **session), feeds)


def really_computed(
    model: onnx.ModelProto, values: Mapping[str, Any], **session: Any
) -> dict[str, Any]:
    """Leave out the results that overflow only because they are read.

    Without kernels in 16 bits, a session computes in 32 bits, and converts what is read.
    """
    overflowing = {
        name
        for name, value in values.items()
        if getattr(value, "dtype", None) in _NARROW and not np.isfinite(value).all()
    }
    if not overflowing:
        return dict(values)
    ran = optimized_model(model, **{**session, "optimization": "none"}).graph.node
    overflowing.difference_update(name for node in ran for name in node.output)
    return {name: value for name, value in values.items() if name not in overflowing}


def results_of(model: onnx.ModelProto, values: Mapping[str, Any]) -> list[Result]:
    """List the results of the nodes of a model that are numbers, in its order."""
    results: list[Result] = []
    sources: dict[str, frozenset[int]] = {}  # name -> nearest results that it is computed from
    for node in model.graph.node:
        parents = frozenset().union(*(sources.get(name, frozenset()) for name in read_by(node)))
        computed = node.op_type != "Constant"
        for name in filter(None, node.output):
            value = values.get(name)
            sources[name] = parents
            if computed and isinstance(value, np.ndarray) and value.dtype.kind in _NUMERIC:
                sources[name] = frozenset([len(results)])
                results.append(Result(name, node.name or name, operator_of(node), value, parents))
    return results


def operator_of(node: onnx.NodeProto) -> str:
    return ".".join(filter(None, (domain_name(node.domain), node.op_type)))


def refuse_too_large(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
    """Refuse outputs that would not fit, as far as their shapes follow from those of the inputs."""
    shaped = copy.deepcopy(model)
    for value in shaped.graph.input:
        if value.name in feeds and value.type.HasField("tensor_type"):
            kind, sizes = value.type.tensor_type.elem_type, as_numpy(feeds[value.name]).shape
            value.CopyFrom(make_tensor_value_info(value.name, kind, sizes))
    with contextlib.suppress(*NOT_INFERRED):
        shaped = onnx.shape_inference.infer_shapes(shaped, data_prop=True)
    kinds = [value.type.tensor_type for value in shaped.graph.output]
    total = sum(
        math.prod(dim.dim_value for dim in kind.shape.dim) * numpy_dtype(kind.elem_type).itemsize
        for kind in kinds
        if kind.HasField("shape")  # a size that is not known counts for 0
    )
    if 2 * total > half_of_memory():  # ONNX Runtime has them too while they are copied
        raise ModelError(
            f"The results of the nodes take {total / 2**30:.1f} GiB, more than a quarter of the "
            "memory. Accepted: smaller inputs"
        )
