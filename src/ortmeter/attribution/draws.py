"""Give a model what its nodes draw, so that the rest of it can be compared."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ortmeter.attribution.intermediates import operator_of
from ortmeter.dtypes import onnx_type
from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.draws import drawing_nodes
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import make_session


def with_draws_given(
    model: onnx.ModelProto, feeds: Mapping[str, Any], before: Sequence[np.ndarray] = ()
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], str]:
    """Copy a model whose inputs are also the results that its nodes draw.

    The results of one run are returned, or those of another model, by rank, if they have the same
    shapes; then a sentence, empty where nothing is drawn: the model is the same.
    """
    drawing = drawing_nodes(model, feeds)
    if not drawing:
        return model, {}, ""
    names = [name for node in drawing for name in node.output if name]
    labels = ", ".join(
        f"{node.name or next(filter(None, node.output))!r} ({operator_of(node)})"
        for node in drawing
    )
    kept = [output for output in model.graph.output if output.name not in names]
    if not kept:
        raise InvalidArgumentError(
            f"there is nothing to compare: every output is drawn by {labels}. Accepted: a model "
            "with an output that is computed"
        )
    shown, given = copy.deepcopy(model), copy.deepcopy(model)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    drawn = run_session(make_session(shown, provider="cpu", optimization="none"), feeds)
    if [array.shape for array in before] == [array.shape for array in drawn.values()]:
        pairs = zip(drawn.items(), before, strict=True)
        drawn = {name: other.astype(array.dtype) for (name, array), other in pairs}
    for node in drawing:
        given.graph.node.remove(node)
    del given.graph.output[:]
    given.graph.output.extend(kept)
    given.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx_type(array.dtype), array.shape)
        for name, array in drawn.items()
    )
    left = [output.name for output in model.graph.output if output.name in names]
    outputs = f" Output {', '.join(left)} is left out." if left else ""
    return (
        given,
        drawn,
        (
            f"values are drawn by {labels}, so there is nothing to compare in them. Both sides are "
            f"given the same draw, and what is computed from it is compared.{outputs}"
        ),
    )
