"""Find the tensors of a model that hold denormal numbers, which many CPUs compute slowly."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.errors import OrtMeterError
from ortmeter.runtime.arrays import as_numpy, is_array
from ortmeter.runtime.graphs import constant_tensors, with_intermediate_outputs
from ortmeter.runtime.inputs import half_of_memory
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import make_session

# Smallest share that changes a time: a denormal number costs about a hundred others.
_LEAST = 1e-3
_DTYPES = (np.float32, np.float64)


def denormal_tensors(
    model: onnx.ModelProto, feeds: Mapping[str, Any] | None, activations: int | None
) -> dict[str, float]:
    """Return the share of denormal numbers of the tensors that hold some, above 0.1%.

    Parameters
    ----------
    model : onnx.ModelProto
        Model, whose constants are read.
    feeds : mapping of str to array, optional
        Inputs: the model runs once, and all its intermediate results are read.
    activations : int, optional
        Bytes of the intermediate results; unknown, or more than half of the memory, they are not
        computed.

    Returns
    -------
    dict of str to float
        Share of the elements of each tensor, from 0 to 1.

    Examples
    --------
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Z) { Y = Mul(X, X)  Z = Exp(Y) }''')
    >>> denormal_tensors(model, {"X": np.float32([1e-20, 1])}, 16)
    {'Y': 0.5}
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    arrays: dict[str, Any] = {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in (tensors | constant_tensors(model.graph.node)).items()
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    }
    arrays.update(feeds or {})
    if feeds is not None and activations is not None and activations <= half_of_memory():
        exposed = with_intermediate_outputs(model)
        with suppress(OrtMeterError):  # no kernel on the CPU, or too large for a message
            session = make_session(exposed, provider="cpu", optimization="none")
            arrays.update(run_session(session, feeds))
    shares = {name: _share(as_numpy(v)) for name, v in arrays.items() if is_array(v)}
    return {name: share for name, share in shares.items() if share >= _LEAST}


def _share(array: np.ndarray) -> float:
    if array.dtype not in _DTYPES or not array.size:
        return 0.0
    small = np.abs(array) < np.finfo(array.dtype).tiny
    return float(np.count_nonzero(small & (array != 0))) / array.size
