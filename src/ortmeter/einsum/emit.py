"""Write a plan, or a plain Einsum, as an ONNX model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from ortmeter.dtypes import DTypeLike, onnx_type
from ortmeter.einsum.cost import Split, split_transpose
from ortmeter.einsum.parse import Axes, Operands, Shape, read_operands
from ortmeter.einsum.steps import Step, absorb_transposes
from ortmeter.errors import InvalidArgumentError

_FIRST_OPSET = 15  # Shape takes the dimensions to read since this one
_CONTRIB = "com.microsoft"
_END = 2**63 - 1
_COPY, _INFER = 0, -1  # sizes in the shape that Reshape reads


def einsum_model(
    equation: str,
    *shapes_or_operands: Any,
    dtype: DTypeLike | None = None,
    opset: int = 18,
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
    opset : int
        Version of the ONNX operators, at least 15.

    Returns
    -------
    onnx.ModelProto
        A checked model with the inputs ``X0``, ``X1``, ... and the output ``Y``.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands, or it sums or multiplies another
        type than float16, float32 and float64.
    InvalidArgumentError
        The operands have several types, or the opset is not available.

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
    stretched = "".join(operands.stretched)
    shape = [None if x in stretched else operands.size_of[x] for x in parsed.output]
    return writer.model(opset, tuple(shape))


def emit_model(
    operands: Operands,
    steps: Sequence[Step],
    *,
    opset: int = 18,
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
    return writer.model(opset, operands.shape(tuple(operands.equation.output)))


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
        # The inputs that tell the size of each letter: a stretched one does not.
        inputs = zip(operands.names, operands.equation.inputs, operands.stretched, strict=True)
        self._homes = {
            letter: (name, axis)
            for name, letters, stretched in inputs
            for axis, letter in enumerate(letters)
            if letter not in stretched
        }

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

    def model(self, opset: int, shape: Shape) -> onnx.ModelProto:
        """Make the model of a result of this shape, and check it."""
        last = onnx.defs.onnx_opset_version()
        if not _FIRST_OPSET <= opset <= last:
            raise InvalidArgumentError(f"opset={opset}. Accepted: {_FIRST_OPSET} to {last}")
        equation = self._operands.equation
        tensors = zip(
            (*self._operands.names, "Y"),
            (*equation.inputs, equation.output),
            (*self._operands.shapes, shape),
            strict=True,
        )
        *inputs, output = (_info(name, self._kind, letters, own) for name, letters, own in tensors)
        opsets = [onnx.helper.make_opsetid("", opset)]
        if any(node.domain == _CONTRIB for node in self._nodes.values()):
            opsets.append(onnx.helper.make_opsetid(_CONTRIB, 1))
        graph = onnx.helper.make_graph(
            list(self._nodes.values()),
            equation.text.strip() or "einsum",
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

    def step(self, step: Step, *, split: bool) -> None:
        """Write a step; *split* writes slow transpositions in two."""
        inputs, output = step.inputs, step.output
        self._infos.append(onnx.helper.make_tensor_value_info(output, self._kind, step.shape))
        match step.kind:
            case "diagonal":
                self._diagonal(step, inputs[0], output)
            case "reshape":
                self._reshape(step, inputs[0], output)
            case "transpose":
                halves = _split(step, self._operands.dtype.itemsize) if split else None
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
        if isinstance(size, int):
            square, stride = size * size, self.constant("stride", [size + 1])
        else:
            one = self.constant("one", [1])
            square, stride = None, self.node("Add", [self._size(letter), one], f"stride_{letter}")
        merged = replace(
            step,
            axes=(*step.axes[:axis], letter * 2, *step.axes[axis + 1 :]),
            shape=(*step.shape[:axis], square, *step.shape[axis + 1 :]),
        )
        flat = f"{output}_merged"
        self._reshape(merged, source, flat)
        bounds = [
            self.constant(role, [value])
            for role, value in (("start", 0), ("end", _END), ("axis", axis))
        ]
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
            shape = self.constant("shape", cast("Sequence[int]", step.shape))
            self.node("Reshape", [second, shape], output)

    def _reshape(self, step: Step, source: str, output: str) -> None:
        """Write a reshape: its shape is a constant if it can be, else it is computed."""
        before, after = step.input_axes[0], step.axes
        added = [i for i, letters in enumerate(after) if not letters]
        removed = [i for i, letters in enumerate(before) if not letters]
        target = _target(before, step)
        if [x for x in before if x] == [x for x in after if x] and not (added and removed):
            axes = self.constant("axes", added or removed)
            self.node("Unsqueeze" if added else "Squeeze", [source, axes], output)
        elif all(isinstance(size, int) for size in target) or (cut := _cut(before, step)) is None:
            # Without a known zero, a zero means a copy of the size of the same axis.
            options = {"allowzero": 1} if 0 in step.shape else {}
            self.node("Reshape", [source, self._shape(target)], output, **options)
        else:
            self.node("Flatten", [source], output, axis=cut)

    def _shape(self, target: Sequence[int | str]) -> str:
        """Return the name of a shape: integers are known, the others are letters."""
        constants = [size for size in target if isinstance(size, int)]
        if len(constants) == len(target):
            return self.constant("shape", constants)
        parts = [
            self.constant("shape", [x]) if isinstance(x, int) else self._size(x) for x in target
        ]
        sizes = (str(x) if isinstance(x, int) else f"size{x}" for x in target)
        name = "_".join(("shape", *sizes)).replace("-", "m")
        return self.node("Concat", parts, name, axis=0)

    def _size(self, letters: str) -> str:
        """Return the name of a vector of one integer, the size of an axis."""
        if len(letters) > 1:
            factors = [self._size(letters[:-1]), self._size(letters[-1])]
            return self.node("Mul", factors, f"size_{letters}")
        source, axis = self._homes[letters]
        return self.node("Shape", [source], f"size_{letters}", start=axis, end=axis + 1)


def _info(name: str, kind: int, letters: str, shape: Shape) -> onnx.ValueInfoProto:
    """Describe a tensor; a dimension that is not known has the name of its letter."""
    named = [x if size is None else size for x, size in zip(letters, shape, strict=True)]
    return onnx.helper.make_tensor_value_info(name, kind, named)


def _target(before: Axes, step: Step) -> list[int | str]:
    """Choose what each axis of the target shape is: an integer, or letters whose size is read."""
    target: list[int | str] = []
    empty = 0 in step.shape
    for i, (letters, size) in enumerate(zip(step.axes, step.shape, strict=True)):
        if isinstance(size, int):
            target.append(size)
        elif before[i : i + 1] == (letters,) and not empty:
            target.append(_COPY)
        else:
            target.append(letters)
    read = [i for i, size in enumerate(target) if isinstance(size, str)]
    if read and not empty:
        target[max(read, key=lambda i: len(step.axes[i]))] = _INFER
    return target


def _cut(before: Axes, step: Step) -> int | None:
    """Find where to cut the axes to merge them into the two of a matrix, None otherwise."""
    if len(step.axes) != 2 or 0 in step.shape:  # noqa: PLR2004 - a matrix
        return None
    merged = ["".join(before[:i]) for i in range(len(before) + 1)]
    return merged.index(step.axes[0]) if step.axes[0] in merged else None


def _split(step: Step, itemsize: int) -> Split | None:
    shape = [step.shape[step.where.index(axis)] for axis in range(len(step.where))]
    known = [size for size in shape if isinstance(size, int)]
    return split_transpose(tuple(known), step.where, itemsize) if len(known) == len(shape) else None
