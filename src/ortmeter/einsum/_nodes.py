"""Write each step as ONNX nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ortmeter.einsum._graph import GraphWriter
from ortmeter.einsum._reshaping import SizeReader, write_reshape
from ortmeter.einsum.steps import Step

__all__ = ["NodeWriter"]

_END = 2**63 - 1


@dataclass(frozen=True)
class NodeWriter:
    """Writes steps as nodes.

    Parameters
    ----------
    writer : GraphWriter
        Receives the nodes.
    reader : SizeReader
        Computes the shapes that are not known.
    flags : mapping of str to dict
        Attributes of the products that absorb transposes, by result.
    """

    writer: GraphWriter
    reader: SizeReader
    flags: Mapping[str, Mapping[str, int]]

    def write(self, step: Step, renamed: Mapping[str, str]) -> None:
        """Write a step; some results have another name in the model."""
        inputs = [renamed.get(name, name) for name in step.inputs]
        output = renamed.get(step.output, step.output)
        match step.kind:
            case "diagonal":
                self._diagonal(step, inputs[0], output)
            case "reshape":
                write_reshape(self.writer, self.reader, step, inputs[0], output)
            case "transpose":
                self.writer.node("Transpose", inputs, output, perm=step.where)
            case "reduce_sum":
                axes = self.writer.constant("axes", step.where)
                self.writer.node("ReduceSum", [*inputs, axes], output, keepdims=0)
            case "mul":
                self.writer.node("Mul", inputs, output)
            case "matmul" if step.output in self.flags:
                self.writer.fused(inputs, output, **self.flags[step.output])
            case "matmul":
                self.writer.node("MatMul", inputs, output)

    def _diagonal(self, step: Step, source: str, output: str) -> None:
        """Merge two axes of size n: their diagonal is every (n + 1)th element."""
        (axis,) = step.where
        letter, size = step.axes[axis], step.shape[axis]
        if isinstance(size, int):
            square, stride = size * size, self.writer.constant("stride", [size + 1])
        else:
            square, stride = None, self.reader.stride(letter)
        merged = replace(
            step,
            axes=(*step.axes[:axis], letter * 2, *step.axes[axis + 1 :]),
            shape=(*step.shape[:axis], square, *step.shape[axis + 1 :]),
        )
        flat = f"{output}_merged"
        write_reshape(self.writer, self.reader, merged, source, flat)
        bounds = [
            self.writer.constant(role, [value])
            for role, value in (("start", 0), ("end", _END), ("axis", axis))
        ]
        self.writer.node("Slice", [flat, *bounds, stride], output)
