"""Write a plan, or a plain Einsum, as an ONNX model."""

from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs
import onnx.helper

from ortmeter.dtypes import DTypeLike, onnx_type, short_name
from ortmeter.einsum._absorption import absorb_transposes
from ortmeter.einsum._graph import GraphWriter
from ortmeter.einsum._nodes import NodeWriter
from ortmeter.einsum._operands import Operands, read_operands
from ortmeter.einsum._reshaping import SizeReader
from ortmeter.einsum._sizes import Shape
from ortmeter.einsum._types import FUSED, compute_type
from ortmeter.einsum.errors import EinsumError
from ortmeter.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ortmeter.einsum.result import EinsumPlan

__all__ = ["einsum_model", "emit_model"]

_FIRST_OPSET = 15  # Shape takes the dimensions to read since this one
_SUMS = {"matmul", "mul", "reduce_sum"}


def einsum_model(
    equation: str,
    *shapes_or_operands: Any,
    dtype: DTypeLike | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Make the model of one node, ``Einsum``.

    Parameters
    ----------
    equation : str
        What :func:`numpy.einsum` accepts.
    *shapes_or_operands : tuple or array
        As for :func:`~ortmeter.einsum.decompose_einsum`.
    dtype : dtype, optional
        Type of the elements. By default that of the operands, float32 for shapes.
    opset : int
        Version of the ONNX operators, from 15.

    Returns
    -------
    onnx.ModelProto
        A checked model with the inputs ``X0``, ``X1``, ... and the output ``Y``.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        The operands have several types, or the opset is not available.

    Examples
    --------
    >>> model = einsum_model("ij,jk", (2, 3), (3, 4))
    >>> [node.op_type for node in model.graph.node]
    ['Einsum']
    """
    _check_opset(opset)
    operands = read_operands(equation, shapes_or_operands, dtype)
    parsed = operands.equation
    writer = GraphWriter()
    names = [f"X{i}" for i in range(len(operands.shapes))]
    # The operator does not broadcast an ellipsis that stands for fewer dimensions in an operand,
    # nor does it sort the letters of an implicit result as NumPy does.
    text = equation if "->" in equation and "..." not in equation else parsed.with_letters()
    writer.node("Einsum", names, "Y", equation=text)
    # Nor does the inference of shapes know that a size of 1 is broadcast.
    stretched = "".join(operands.sizes.stretched)
    shape = [None if x in stretched else operands.sizes.of[x] for x in parsed.output]
    return _finish(writer, operands, onnx_type(operands.dtype), opset, tuple(shape))


def emit_model(
    plan: "EinsumPlan", *, dtype: DTypeLike, opset: int, contrib: bool, compute: DTypeLike | None
) -> onnx.ModelProto:
    """Write a plan as a model, see :meth:`~ortmeter.einsum.EinsumPlan.to_onnx`.

    Parameters
    ----------
    plan : EinsumPlan
        What to write.
    dtype, opset, contrib, compute
        As in :meth:`~ortmeter.einsum.EinsumPlan.to_onnx`.
    """
    _check_opset(opset)
    kind = inner = onnx_type(dtype)
    if any(step.kind in _SUMS for step in plan.steps):  # moves take every type
        kind, inner = _types(plan, dtype, compute)
    steps = list(plan.steps)
    flags: dict[str, dict[str, int]] = {}
    if contrib and inner in FUSED:
        steps, flags = absorb_transposes(steps)
    writer = GraphWriter()
    letters = list(zip(plan.input_names, plan.parsed.inputs, strict=True))
    reader = SizeReader(writer, letters, plan.sizes.stretched)
    nodes = NodeWriter(writer, reader, flags)
    # What is cast has the name of the type that it is cast to.
    suffix = "" if inner == kind else f"_{short_name(inner)}"
    if suffix:
        for name in plan.input_names:
            writer.node("Cast", [name], name + suffix, to=inner)
    renamed = {name: name + suffix for name in (*plan.input_names, "Y")}
    for step in steps:
        nodes.write(step, renamed)
        writer.describe(renamed.get(step.output, step.output), inner, step.shape)
    if suffix:
        writer.node("Cast", ["Y" + suffix], "Y", to=kind)
    elif not steps:
        writer.node("Identity", ["X0"], "Y")
    return _finish(writer, plan.operands, kind, opset, plan.sizes.shape(tuple(plan.parsed.output)))


def _finish(
    writer: GraphWriter, operands: Operands, kind: int, opset: int, shape: Shape
) -> onnx.ModelProto:
    equation = operands.equation
    inputs = [
        _info(f"X{i}", kind, letters, own)
        for i, (letters, own) in enumerate(zip(equation.inputs, operands.shapes, strict=True))
    ]
    output = _info("Y", kind, equation.output, shape)
    return writer.model(equation.text.strip() or "einsum", inputs, output, opset)


def _info(name: str, kind: int, letters: str, shape: Shape) -> onnx.ValueInfoProto:
    """Describe a tensor; a dimension that is not known has the name of its letter."""
    named = [x if size is None else size for x, size in zip(letters, shape, strict=True)]
    return onnx.helper.make_tensor_value_info(name, kind, named)


def _types(plan: "EinsumPlan", dtype: DTypeLike, compute: DTypeLike | None) -> tuple[int, int]:
    try:
        return compute_type(dtype, compute)
    except InvalidArgumentError as cause:
        text = plan.equation
        raise EinsumError(str(cause), text, 0, len(text)) from cause


def _check_opset(opset: int) -> None:
    last = onnx.defs.onnx_opset_version()
    if not _FIRST_OPSET <= opset <= last:
        raise InvalidArgumentError(f"opset={opset}. Accepted: {_FIRST_OPSET} to {last}")
