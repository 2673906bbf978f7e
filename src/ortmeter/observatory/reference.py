"""What a model should return: the same graph computed in float64."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ortmeter.errors import OrtMeterError
from ortmeter.evaluator import to_float64
from ortmeter.evaluator.float64 import exact_feeds, is_added
from ortmeter.evaluator.judges import Evaluation, evaluated
from ortmeter.operators.draws import drawing_nodes

__all__ = ["Reference", "reference"]

#: How a reference is known.
FLOAT64, FLOAT32, SAME, NONE, DRAWN = "float64", "float32", "same type", "none", "drawn"


@dataclass(frozen=True)
class Reference:
    """The outputs of a model by its definition.

    Parameters
    ----------
    outputs : mapping of str to array
        Empty when nothing computes them.
    kind : {"float64", "float32", "same type", "none", "drawn"}
        ``float32`` when an operator of the model is defined, or known, in float32 only: it is
        followed step by step. ``same type`` when the outputs are in float64 already: the reference
        is not more precise than what it judges. ``drawn`` when a node draws numbers: there is
        nothing to compare.
    evaluation : Evaluation, optional
        What computed them, and may compute them again with other kernels.
    """

    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    kind: str = NONE
    evaluation: Evaluation | None = None


def reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Reference:
    """Compute what a model should return, without ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        Operators of ONNX, or those of ONNX Runtime that
        ``ortmeter.operators`` defines.
    feeds : mapping of str to array
        Inputs, in the types of the model.

    Returns
    -------
    Reference
        Outputs in float64, integers and booleans as they are.

    Examples
    --------
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] X) => (float[2] Y) { Y = Reciprocal(X) }'''
    >>> found = reference(onnx.parser.parse_model(text), {"X": np.float32([3, 4])})
    >>> found.kind, found.outputs["Y"].tolist()
    ('float64', [0.3333333333333333, 0.25])
    """
    if drawing_nodes(model, feeds):
        return Reference(kind=DRAWN)
    double = to_float64(model)
    kind = FLOAT32 if any(map(is_added, double.graph.node)) else FLOAT64
    if any(o.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for o in model.graph.output):
        kind = SAME
    for variant, how in ((double, kind), (model, FLOAT32)):
        with suppress(OrtMeterError):
            found = evaluated(variant, exact_feeds(model, variant, feeds))
            return Reference(found.outputs, how, found)
    return Reference()
