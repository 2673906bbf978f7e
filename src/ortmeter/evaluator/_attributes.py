"""Attributes of nodes: references of functions resolved, values decoded."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.errors import ModelError

__all__ = ["bind_node", "dense_array", "initializers", "python_value", "subgraphs"]

_KINDS = onnx.AttributeProto


def bind_node(node: onnx.NodeProto, bound: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Replace the references to the attributes of a function by their values.

    Parameters
    ----------
    node : NodeProto
        A node of the body of a function; it is not modified.
    bound : mapping of str to AttributeProto
        Value of each attribute of the function. What is absent has no value in this call, and the
        attribute of the node takes its own default.
    """
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        value = bound.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            added = copy.attribute.add()
            added.CopyFrom(value)
            added.name = attribute.name
    return copy


def subgraphs(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """List the graphs that a node executes, by name of attribute."""
    return {a.name: a.g for a in node.attribute if a.type == _KINDS.GRAPH}


def initializers(
    graph: onnx.GraphProto,
) -> Iterator[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]]:
    """List the initializers of a graph with their names, sparse ones included."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse


def python_value(attribute: onnx.AttributeProto) -> Any:
    """Decode an attribute: Python numbers, text, lists, NumPy arrays, protos for the rest.

    Examples
    --------
    >>> python_value(onnx.helper.make_attribute("axes", [0, -1]))
    [0, -1]
    """
    decode = _DECODERS.get(attribute.type)
    value = onnx.helper.get_attribute_value(attribute)
    return value if decode is None else decode(value)


def dense_array(tensor: onnx.TensorProto | onnx.SparseTensorProto) -> np.ndarray:
    """Read an initializer, sparse or not."""
    if isinstance(tensor, onnx.SparseTensorProto):
        return _from_sparse(tensor)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (OSError, ValueError, TypeError, onnx.checker.ValidationError) as cause:
        raise ModelError(f"Tensor {tensor.name!r} cannot be read: {cause}") from cause


def _from_sparse(tensor: onnx.SparseTensorProto) -> np.ndarray:
    values, indices = dense_array(tensor.values), dense_array(tensor.indices)
    dense = np.zeros(tuple(tensor.dims), values.dtype)
    if indices.ndim == 1:  # positions in the flat tensor
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="surrogateescape")


_DECODERS: dict[int, Callable[[Any], Any]] = {
    _KINDS.STRING: _text,
    _KINDS.STRINGS: lambda values: [_text(value) for value in values],
    _KINDS.INTS: list,
    _KINDS.FLOATS: list,
    _KINDS.TENSOR: dense_array,
    _KINDS.TENSORS: lambda values: [dense_array(value) for value in values],
    _KINDS.SPARSE_TENSOR: dense_array,
    _KINDS.SPARSE_TENSORS: lambda values: [dense_array(value) for value in values],
}
