"""Models built by code."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.errors import InvalidArgumentError
from ortmeter.loading import ModelLike, load_model

__all__ = ["freeze_inputs"]


def freeze_inputs(model: ModelLike, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Turn inputs of a model into constants.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.loading.load_model`. It is not modified.
    values : mapping of str to array
        Constant of each input to freeze.

    Returns
    -------
    onnx.ModelProto
        A model with the other inputs, whose initializers hold the constants.

    Raises
    ------
    InvalidArgumentError
        A name is not an input of the model, or a value has another element type.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X, float[n] Y) => (float[n] Z) { Z = Add(X, Y) }'''
    >>> frozen = freeze_inputs(text, {"Y": np.float32([1, 2])})
    >>> [node.name for node in frozen.graph.input]
    ['X']
    """
    source = load_model(model)
    types = {node.name: node.type.tensor_type.elem_type for node in source.graph.input}
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    for tensor in tensors:
        if types.get(tensor.name) != tensor.data_type:
            accepted = {n: onnx.TensorProto.DataType.Name(t) for n, t in types.items() if t}
            raise InvalidArgumentError(
                f"{tensor.name!r} ({onnx.TensorProto.DataType.Name(tensor.data_type)}) cannot be "
                f"frozen. Accepted inputs and types: {accepted}"
            )
    frozen = onnx.ModelProto()
    frozen.CopyFrom(source)
    kept = [node for node in source.graph.input if node.name not in values]
    del frozen.graph.input[:]
    frozen.graph.input.extend(kept)
    frozen.graph.initializer.extend(tensors)
    return frozen
