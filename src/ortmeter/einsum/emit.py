"""Write a plan, or a plain Einsum, as an ONNX model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper

from ortmeter.dtypes import DTypeLike, onnx_type
from ortmeter.einsum.cost import Split, split_transpose
from ortmeter.einsum.parse import Dim, Operands, read_operands
from ortmeter.einsum.steps import Step, absorb_transposes

_OPSET = 18  # the nodes are the same from 15, where Shape has start
_CONTRIB = "com.microsoft"
_END = 2**63 - 1


def einsum_model(
    equation: str,
    *shapes_or_operands: Any,
    dtype: DTypeLike | None = None,
) -> onnx.ModelProto:
    """Make a model with a single node, ``Einsum``.

    ONNX Runtime 1.31 may not survive it: a diagonal of an empty operand may end the process.
    :func:`~ortmeter.einsum.decompose_einsum` avoids that.

    Parameters
    ----------
    equation : str
        Equation, as in :func:`numpy.einsum`.
    *shapes_or_operands : tuple or array
        As for :func:`~ortmeter.einsum.decompose_einsum`.
    dtype : dtype, optional
        Type of the elements, by default that of the operands, or float32 for shapes.

    Returns
    -------
    onnx.ModelProto
        A checked model at opset 18, with the inputs ``X0``, ``X1``, ... and the output ``Y``.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands, or it sums or multiplies another
        type than float16, float32 and float64.
    InvalidArgumentError
        The operands have several types.

    Examples
    --------
    >>> model = einsum_model("ij,jk", (2, 3), (3, 4))
    >>> [node.op_type for node in model.graph.node]
    ['Einsum']
    """
    operands = read_operands(equation, shapes_or_operands, dtype)
    parsed = operands.equation
    writer = _Writer(operands)
    # The operator does not broadcast an ellipsis that stands for fewer dimensions in an operand,
    # nor does it sort the letters of an implicit result as NumPy does.
    writer.node("Einsum", operands.names, "Y", equation=str(parsed))
    # The inference of shapes does not know that a size of 1 is broadcast.
    names = {x: x for x in "".join(operands.stretched)} | dict(operands.free)
    return writer.model([names.get(x, operands.size_of[x]) for x in parsed.output])


def emit_model(
    operands: Operands,
    steps: Sequence[Step],
    *,
    contrib: bool = False,
    split: bool = False,
) -> onnx.ModelProto:
    """Write steps as a model; *split* makes two fast transpositions of one that is slow."""
    flags: dict[str, dict[str, int]] = {}
    if contrib:
        steps, flags = absorb_transposes(steps)
    writer = _Writer(operands, flags)
    for step in steps:
        writer.step(step, split=split)
    if not steps:
        writer.node("Identity", ["X0"], "Y")
    return writer.model(operands.shape(tuple(operands.equation.output)))


class _Writer:
    """Collects the nodes and the constants of a model, under names that say what they hold."""

    def __init__(
        self, operands: Operands, flags: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        self._operands = operands
        self._kind = onnx_type(operands.dtype)
        self._flags = flags or {}
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._constants: dict[str, onnx.TensorProto] = {}
        self._infos: list[onnx.ValueInfoProto] = []

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add the node that makes a result, once, and return the name of the result."""
        if output not in self._nodes:
            self._nodes[output] = onnx.helper.make_node(
                op_type, inputs, [output], name=f"{op_type}_{output}", **attributes
            )
        return output

    def constant(self, role: str, values: Sequence[int]) -> str:
        name = "_".join((role, *(str(v).replace("-", "m") for v in values)))
        self._constants[name] = onnx.numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def model(self, shape: Sequence[Dim]) -> onnx.ModelProto:
        """Make the model of a result of this shape, and check it; a name is for any size."""
        tensors = zip((*self._operands.names, "Y"), (*self._operands.shapes, shape), strict=True)
        *inputs, output = (self._info(name, own) for name, own in tensors)
        opsets = [onnx.helper.make_opsetid("", _OPSET)]
        if any(node.domain == _CONTRIB for node in self._nodes.values()):
            opsets.append(onnx.helper.make_opsetid(_CONTRIB, 1))
        graph = onnx.helper.make_graph(
            list(self._nodes.values()),
            self._operands.equation.text.strip() or "einsum",
            inputs,
            [output],
            list(self._constants.values()),
            value_info=[info for info in self._infos if info.name != output.name],
        )
        model = onnx.helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True),
            producer_name="ortmeter",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _info(self, name: str, shape: Sequence[Dim]) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, self._kind, shape)

    def step(self, step: Step, *, split: bool) -> None:
        """Write a step; *split* writes slow transpositions in two."""
        inputs, output = step.inputs, step.output
        self._infos.append(self._info(output, step.shape))
        match step.kind:
            case "diagonal":
                self._diagonal(step, inputs[0], output)
            case "reshape":
                self._reshape(step, inputs[0], output)
            case "transpose":
                shape = tuple(step.shape[step.where.index(axis)] for axis in range(len(step.where)))
                size = self._operands.dtype.itemsize
                halves = split_transpose(shape, step.where, size) if split else None
                if halves is None:
                    self.node("Transpose", inputs, output, perm=step.where)
                else:
                    self._split_transpose(halves, step, inputs[0], output)
            case "reduce_sum":
                axes = self.constant("axes", step.where)
                self.node("ReduceSum", [*inputs, axes], output, keepdims=0)
            case "mul":
                self.node("Mul", inputs, output)
            case "matmul" if step.output in self._flags:
                flags = self._flags[step.output]
                self.node("FusedMatMul", inputs, output, domain=_CONTRIB, **flags)
            case "matmul":
                self.node("MatMul", inputs, output)

    def _diagonal(self, step: Step, source: str, output: str) -> None:
        """Merge two axes of size n: their diagonal is every (n + 1)th element."""
        (axis,) = step.where
        letter, size = step.axes[axis], step.shape[axis]
        axes = (*step.axes[:axis], letter * 2, *step.axes[axis + 1 :])
        flat = f"{output}_merged"
        # An inferred size would accept a matrix that is not square.
        merged = replace(step, axes=axes, shape=self._operands.shape(axes))
        self._reshape(merged, source, flat, infer=False)
        bounds = [
            self.constant(role, [value])
            for role, value in (("start", 0), ("end", _END), ("axis", axis))
        ]
        if isinstance(size, int):
            stride = self.constant("stride", [size + 1])
        else:
            terms = [self._size(letter), self.constant("one", [1])]
            stride = self.node("Add", terms, f"stride_{letter}")
        self.node("Slice", [flat, *bounds, stride], output)

    def _split_transpose(self, split: Split, step: Step, source: str, output: str) -> None:
        """Write two transpositions.

        ONNX Runtime joins those that follow one another, even around a ``Reshape``, into one that
        may be much slower. It leaves ``Flatten`` alone, which costs nothing.
        """
        merges = len(split.shape) < len(step.shape)
        if merges:
            merged = self.constant("shape", split.shape)
            source = self.node("Reshape", [source, merged], f"{output}_merged")
        first = self.node("Transpose", [source], f"{output}_first", perm=split.first)
        flat = self.node("Flatten", [first], f"{output}_flat", axis=1)
        half = self.node("Reshape", [flat, self.constant("shape", split.middle)], f"{output}_half")
        second = f"{output}_second" if merges else output
        self.node("Transpose", [half], second, perm=split.second)
        if merges:
            self.node("Reshape", [second, self.constant("shape", step.shape)], output)

    def _reshape(self, step: Step, source: str, output: str, *, infer: bool = True) -> None:
        """Write a reshape of any free sizes, even 0: its shape is a constant if it can be."""
        before, after = step.input_axes[0], step.axes
        added = [i for i, letters in enumerate(after) if not letters]
        removed = [i for i, letters in enumerate(before) if not letters]
        cuts = ["".join(before[:i]) for i in range(len(before) + 1)]
        is_free = infer and not any(isinstance(size, int) for size in step.shape)
        if [x for x in before if x] == [x for x in after if x] and not (added and removed):
            axes = self.constant("axes", added or removed)
            self.node("Unsqueeze" if added else "Squeeze", [source, axes], output)
        elif is_free and len(after) == 2 and after[0] in cuts:  # noqa: PLR2004 - a matrix
            self.node("Flatten", [source], output, axis=cuts.index(after[0]))
        else:
            shape, allowzero = self._target(step, infer=infer)
            self.node("Reshape", [source, shape], output, **{"allowzero": 1} if allowzero else {})

    def _target(self, step: Step, *, infer: bool) -> tuple[str, bool]:
        """Return the name of the shape of a reshape, and whether its zeros are sizes."""
        before, after, empty = step.input_axes[0], step.axes, 0 in step.shape
        free = [i for i, size in enumerate(step.shape) if not isinstance(size, int)]
        moved = [i for i in free if before[i : i + 1] != after[i : i + 1]]
        if free and (empty or (moved and (len(free) > 1 or not infer))):
            name = "_".join(("shape", *(letters or "1" for letters in after)))
            return self.node("Concat", [*map(self._size, after)], name, axis=0), True
        # Without a known zero, a zero copies the size of the same axis; -1 would not, beside it.
        inferred = -1 if moved else 0
        target = [inferred if i in free else size for i, size in enumerate(step.shape)]
        return self.constant("shape", target), empty

    def _size(self, letters: str) -> str:
        """Return the name of a vector of one integer, the size of an axis."""
        operands = self._operands
        if not operands.is_free(letters):
            return self.constant("shape", [operands.count(letters)])
        if len(letters) > 1:
            factors = [self._size(letters[:-1]), self._size(letters[-1])]
            return self.node("Mul", factors, f"size_{letters}")
        inputs = zip(operands.names, operands.equation.inputs, operands.stretched, strict=True)
        source, axis = next(
            (name, own.index(letters))
            for name, own, stretched in inputs
            if letters in own and letters not in stretched
        )
        return self.node("Shape", [source], f"size_{letters}", start=axis, end=axis + 1)
