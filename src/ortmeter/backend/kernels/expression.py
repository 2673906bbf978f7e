"""Element-wise expressions: what a kernel computes, whatever the graph that it comes from."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortmeter.backend.kernels.operators import MICROSOFT, find_operator
from ortmeter.backend.kernels.steps import Literal, Step
from ortmeter.dtypes import short_name

__all__ = ["Expression"]

_NAMES_IN_FULL = 5


@dataclass(frozen=True)
class Expression:
    """Steps from inputs to the result of the last one.

    Parameters
    ----------
    inputs : tuple of onnx_ir.DataType
        Element types of the inputs. Their shapes are broadcast together.
    steps : tuple of Step
        Each one reads inputs and results of those before.

    Examples
    --------
    >>> f32 = ir.DataType.FLOAT
    >>> sigmoid = Step("", "Sigmoid", (), ("x0",), f32)
    >>> expression = Expression((f32, f32), (sigmoid, Step("", "Mul", (), ("t0", "x1"), f32)))
    >>> str(expression)
    'f32 x0, f32 x1 -> Sigmoid(x0):f32; Mul(t0, x1):f32'
    >>> expression.name
    'Sigmoid_Mul_86138407'
    """

    inputs: tuple[ir.DataType, ...]
    steps: tuple[Step, ...]

    @property
    def dtype(self) -> ir.DataType:
        """Element type of the result."""
        return self.steps[-1].dtype

    @property
    def name(self) -> str:
        """Its operators, then a hash of its text: equal expressions have the same."""
        operators = [step.op_type for step in self.steps]
        hidden = len(operators) - _NAMES_IN_FULL
        if hidden > 1:
            operators = [*operators[:_NAMES_IN_FULL], f"{hidden}more"]
        return "_".join([*operators, hashlib.sha256(str(self).encode()).hexdigest()[:8]])

    def __str__(self) -> str:
        inputs = ", ".join(f"{short_name(int(t))} x{i}" for i, t in enumerate(self.inputs))
        return f"{inputs} -> {'; '.join(map(str, self.steps))}"

    def nodes(self, inputs: Sequence[ir.Value]) -> list[ir.Node]:
        """Write the expression as nodes of ONNX; the last one gives the result.

        Parameters
        ----------
        inputs : sequence of onnx_ir.Value
            What ``x0``, ``x1``... are.
        """
        values: dict[str, ir.Value] = {f"x{i}": value for i, value in enumerate(inputs)}
        nodes: list[ir.Node] = []
        for i, step in enumerate(self.steps):
            arguments = [_read(argument, values, nodes) for argument in step.arguments]
            operator = step.op_type
            if step.domain == MICROSOFT and len(arguments) > 1:
                # The kernels of ONNX Runtime add a vector only, those of an expression anything.
                nodes.append(ir.Node("", "Add", arguments))
                arguments = list(nodes[-1].outputs)
                operator = operator.removeprefix("Bias")
            attributes = [_attribute(name, value) for name, value in step.attributes]
            nodes.append(ir.Node(step.domain, operator, arguments, attributes))
            values[f"t{i}"] = nodes[-1].outputs[0]
            values[f"t{i}"].type = ir.TensorType(step.dtype)
        return nodes

    def code(self, of: Mapping[ir.DataType, str]) -> list[str]:
        """Write the expression as statements of C, one per step: ``const float t0 = ...;``.

        Parameters
        ----------
        of : mapping of onnx_ir.DataType to str
            C type that holds a value of each element type.
        """
        statements = []
        for i, step in enumerate(self.steps):
            operator = find_operator(step)
            assert operator is not None, step
            arguments = [_code(argument, of) for argument in step.arguments]
            text = operator.write(step, arguments, of[step.dtype])
            statements.append(f"const {of[step.dtype]} t{i} = {text};")
        return statements


def _read(
    argument: str | Literal | None, values: Mapping[str, ir.Value], nodes: list[ir.Node]
) -> ir.Value | None:
    if not isinstance(argument, Literal):
        return None if argument is None else values[argument]
    tensor = ir.tensor([argument.value], dtype=argument.dtype).numpy().reshape(())
    nodes.append(ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(tensor))]))
    return nodes[-1].outputs[0]


def _attribute(name: str, value: float | str) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    return ir.AttrFloat32(name, value) if isinstance(value, float) else ir.AttrInt64(name, value)


def _code(argument: str | Literal | None, of: Mapping[ir.DataType, str]) -> str:
    if not isinstance(argument, Literal):
        return argument or ""
    value, kind = argument.value, of[argument.dtype]
    if value != value:  # noqa: PLR0124 - NaN is the only number that differs from itself
        return f"not_a_number<{kind}>()"
    if value in {float("inf"), float("-inf")}:
        return f"{'-' if value < 0 else ''}infinity<{kind}>()"
    return f"{kind}({value.hex() if isinstance(value, float) else value})"
