"""Write two fast transpositions where a model has a slow one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from ortmeter.dtypes import numpy_dtype
from ortmeter.einsum._transposes import Split, split_transpose

__all__ = ["split_transposes"]


def split_transposes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Split the transpositions of a model that are slow, when their shape is known.

    Parameters
    ----------
    model : onnx.ModelProto
        Not modified.

    Returns
    -------
    onnx.ModelProto or None
        None when there is nothing to split.

    Notes
    -----
    ONNX Runtime joins transpositions that follow one another, even around a ``Reshape``, into one
    that may be much slower. It leaves ``Flatten`` alone, which costs nothing: one is put between
    the two.
    """
    values = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type for v in (*values.input, *values.value_info)}
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    for node in model.graph.node:
        shape = _shape(types.get(node.input[0])) if node.op_type == "Transpose" else None
        split = None if shape is None else _split(node, shape, types[node.input[0]].elem_type)
        if shape is None or split is None:
            nodes.append(node)
            continue
        added, shapes = _write(node, split, shape)
        nodes += added
        constants += shapes
    if len(nodes) == len(model.graph.node):
        return None
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(constants)
    onnx.checker.check_model(result)
    return result


def _shape(kind: onnx.TypeProto.Tensor | None) -> tuple[int, ...] | None:
    if kind is None or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return tuple(dim.dim_value for dim in kind.shape.dim)


def _split(node: onnx.NodeProto, shape: Sequence[int], element_type: int) -> Split | None:
    return split_transpose(shape, _order(node), numpy_dtype(element_type).itemsize)


def _order(node: onnx.NodeProto) -> tuple[int, ...]:
    return next(tuple(a.ints) for a in node.attribute if a.name == "perm")


def _write(
    node: onnx.NodeProto, split: Split, shape: Sequence[int]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Write the two transpositions, with the shapes that their reshapes need."""
    middle = tuple(split.shape[axis] for axis in split.first)
    result = tuple(shape[axis] for axis in _order(node))
    source, target = node.input[0], node.output[0]
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def add(op: str, output: str, *values: str, **attributes: Any) -> str:
        nodes.append(
            onnx.helper.make_node(op, values, [output], name=f"{op}_{output}", **attributes)
        )
        return output

    def reshape(value: str, output: str, wanted: Sequence[int]) -> str:
        name = f"{output}_shape"
        constants.append(onnx.numpy_helper.from_array(np.array(wanted, np.int64), name))
        return add("Reshape", output, value, name)

    merged = source
    if split.shape != tuple(shape):
        merged = reshape(source, f"{target}_merged", split.shape)
    moved = add("Transpose", f"{target}_first", merged, perm=split.first)
    flat = add("Flatten", f"{target}_flat", moved, axis=1)
    half = reshape(flat, f"{target}_half", middle)
    if len(split.shape) == len(shape):
        add("Transpose", target, half, perm=split.second)
    else:
        whole = add("Transpose", f"{target}_second", half, perm=split.second)
        reshape(whole, target, result)
    return nodes, constants
