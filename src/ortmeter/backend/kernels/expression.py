"""Element-wise expressions: what a kernel computes, whatever the graph that it comes from.

The text of an expression names its kernel: it says nothing of the graph.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import HALF, REALS
from ortmeter.dtypes import short_name

_QUANTITIES = REALS | {ir.DataType.INT32, ir.DataType.INT64}
_BOOL = frozenset({ir.DataType.BOOL})
#: Element types of what kernels compute with.
NUMBERS = _QUANTITIES | _BOOL
_NAMES_IN_FULL = 5
_FUNCTION_COST = 8


@dataclass(frozen=True)
class Literal:
    """A number in an expression; true is 1."""

    value: float
    dtype: ir.DataType

    def __str__(self) -> str:
        text = self.value.hex() if isinstance(self.value, float) else str(self.value)
        return f"{short_name(int(self.dtype))}:{text}"


@dataclass(frozen=True)
class Step:
    """One operator of an expression: attributes sorted by name, element type of its result.

    Among the arguments, ``x0`` is the first input of the expression, ``t0`` the result of its first
    step; None is an optional input that is absent.
    """

    op_type: str
    attributes: tuple[tuple[str, float | str], ...]
    arguments: tuple[str | Literal | None, ...]
    dtype: ir.DataType

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.attributes)
        operator = f"{self.op_type}<{options}>" if options else self.op_type
        arguments = ", ".join("" if a is None else str(a) for a in self.arguments)
        return f"{operator}({arguments}):{short_name(int(self.dtype))}"


@dataclass(frozen=True)
class Expression:
    """Steps from inputs, whose shapes are broadcast together, to the result of the last one.

    The results of the steps of ranks *more* are wanted as well.

    Examples
    --------
    >>> f32 = ir.DataType.FLOAT
    >>> sigmoid = Step("Sigmoid", (), ("x0",), f32)
    >>> expression = Expression((f32, f32), (sigmoid, Step("Mul", (), ("t0", "x1"), f32)))
    >>> str(expression)
    'f32 x0, f32 x1 -> Sigmoid(x0):f32; Mul(t0, x1):f32'
    >>> expression.name
    'Sigmoid_Mul_86138407'
    """

    inputs: tuple[ir.DataType, ...]
    steps: tuple[Step, ...]
    more: tuple[int, ...] = ()

    @property
    def results(self) -> tuple[int, ...]:
        """Ranks of the steps whose results are wanted, the last one at the end."""
        return (*self.more, len(self.steps) - 1)

    @property
    def dtypes(self) -> tuple[ir.DataType, ...]:
        """Element types of the results."""
        return tuple(self.steps[i].dtype for i in self.results)

    @property
    def cost(self) -> int:
        """Cost of an element: 1 for an access or an operation, more for a function."""
        functions = sum(step.op_type in _FUNCTIONS for step in self.steps)
        each = len(self.inputs) + len(self.results) + len(self.steps)
        return each + (_FUNCTION_COST - 1) * functions

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
        more = [f"also t{i}" for i in self.more]
        return f"{inputs} -> {'; '.join([*map(str, self.steps), *more])}"

    def nodes(self, inputs: Sequence[ir.Value]) -> tuple[list[ir.Node], list[ir.Value]]:
        """Write the expression as nodes of ONNX, and return its results."""
        values: dict[str, ir.Value] = {f"x{i}": value for i, value in enumerate(inputs)}
        nodes: list[ir.Node] = []
        for i, step in enumerate(self.steps):
            arguments = [_read(argument, values, nodes) for argument in step.arguments]
            attributes = ir.convenience.convert_attributes(dict(step.attributes))
            nodes.append(ir.Node("", step.op_type, arguments, attributes))
            values[f"t{i}"] = nodes[-1].outputs[0]
            values[f"t{i}"].type = ir.TensorType(step.dtype)
        return nodes, [values[f"t{i}"] for i in self.results]

    def code(self, of: Mapping[ir.DataType, str]) -> list[str]:
        """Write the expression as statements of C, one per step: ``const float t0 = ...;``.

        *of* gives the C type that holds a value of each element type.
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


def _code(argument: str | Literal | None, of: Mapping[ir.DataType, str]) -> str:
    if not isinstance(argument, Literal):
        return argument or ""
    value, kind = argument.value, of[argument.dtype]
    if math.isnan(value):
        return f"not_a_number<{kind}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<{kind}>()"
    return f"{kind}({value.hex() if isinstance(value, float) else value})"


_Writer = Callable[[Step, Sequence[str], str], str]
_Condition = Callable[[Step, Sequence[ir.DataType | None]], bool]


@dataclass(frozen=True)
class Operator:
    """An operator that a kernel can compute, and how it is written in C.

    In a template ``{0}``, ``{1}``... are the arguments, ``{kind}`` is the C type of the result,
    ``{alpha}`` an attribute. A node with attributes that are not in ``defaults`` is left to ONNX
    Runtime, and so is what ``condition(step, dtypes)`` refuses.
    """

    template: str | _Writer
    accepted: frozenset[ir.DataType] = REALS
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    condition: _Condition | None = None

    def write(self, step: Step, arguments: Sequence[str], kind: str) -> str:
        """Write a step in C; absent arguments are empty."""
        if callable(self.template):
            return self.template(step, arguments, kind)
        numbers = {  # attributes of ONNX have 32 bits
            name: f"{kind}({float(np.float32(value)).hex()})"
            for name, value in {**self.defaults, **dict(step.attributes)}.items()
            if isinstance(value, float)
        }
        return self.template.format(*arguments, kind=kind, **numbers)

    def takes(self, step: Step, arguments: Sequence[ir.DataType | None]) -> bool:
        """Return whether a kernel can compute a step on arguments of these element types."""
        return (
            step.dtype in NUMBERS
            and all(dtype in self.accepted for dtype in arguments if dtype is not None)
            and all(n in self.defaults and v is not None for n, v in step.attributes)
            and (self.condition is None or self.condition(step, arguments))
        )


def find_operator(step: Step) -> Operator | None:
    """Return the operator of a step, None when kernels do not know it."""
    return OPERATORS.get(step.op_type)


_POWERS = {
    -2.0: "{kind}(1) / ({0} * {0})",
    -1.0: "{kind}(1) / {0}",
    -0.5: "{kind}(1) / square_root({0})",
    0.5: "square_root({0})",
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
}


def _exponent(step: Step) -> float | None:
    literal = step.arguments[1]
    return float(literal.value) if isinstance(literal, Literal) else None


def _has_power(step: Step, arguments: Sequence[ir.DataType | None]) -> bool:
    return arguments[0] in REALS and _exponent(step) in _POWERS


def _power(step: Step, arguments: Sequence[str], kind: str) -> str:
    exponent = _exponent(step)
    assert exponent is not None, step
    return _POWERS[exponent].format(*arguments, kind=kind)


def _rounds_once(step: Step, arguments: Sequence[ir.DataType | None]) -> bool:
    """Leave what depends on the machine: a real number out of the range of an integer."""
    (source,) = arguments
    if step.dtype in HALF:
        return source not in {ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64}
    return step.dtype in REALS | _BOOL or source not in REALS


def _cast(step: Step, arguments: Sequence[str], kind: str) -> str:
    (value,) = arguments
    if step.dtype == ir.DataType.BOOL:
        return f"{value} != 0"
    # A half type is held in 32 bits: its rounding is what the cast does.
    rounding = {ir.DataType.FLOAT16: "half", ir.DataType.BFLOAT16: "bfloat"}.get(step.dtype)
    return f"from_{rounding}(to_{rounding}(float({value})))" if rounding else f"{kind}({value})"


def _clip(step: Step, arguments: Sequence[str], kind: str) -> str:  # noqa: ARG001 - a writer
    value, low, high = [*arguments, "", ""][:3]
    return f"clip({value}, {low or f'-infinity<{kind}>()'}, {high or f'infinity<{kind}>()'})"


def _gelu(step: Step, arguments: Sequence[str], kind: str) -> str:  # noqa: ARG001 - a writer
    exact = dict(step.attributes).get("approximate", "none") == "none"
    return f"{'gelu' if exact else 'gelu_tanh'}({arguments[0]})"


def _two_by_two(template: str) -> _Writer:
    """Write an operator of any number of arguments."""

    def write(step: Step, arguments: Sequence[str], kind: str) -> str:  # noqa: ARG001 - a writer
        text, *rest = arguments
        for argument in rest:
            text = template.format(text, argument)
        return text

    return write


_ARITHMETIC = {
    "Add": Operator("{0} + {1}", _QUANTITIES),
    "Sub": Operator("{0} - {1}", _QUANTITIES),
    "Mul": Operator("{0} * {1}", _QUANTITIES),
    # Not of integers: a division by zero ends the process.
    "Div": Operator("{0} / {1}"),
    "Neg": Operator("-{0}", _QUANTITIES),
    "Abs": Operator("absolute({0})", _QUANTITIES),
    "Sign": Operator("sign({0})", _QUANTITIES),
    "Min": Operator(_two_by_two("minimum({}, {})"), _QUANTITIES),
    "Max": Operator(_two_by_two("maximum({}, {})"), _QUANTITIES),
    "Sum": Operator(_two_by_two("({} + {})")),
    "Clip": Operator(_clip),
    "Reciprocal": Operator("{kind}(1) / {0}"),
    "Sqrt": Operator("square_root({0})"),
    "Floor": Operator("round_down({0})"),
    "Ceil": Operator("round_up({0})"),
    "Round": Operator("round_to_even({0})"),
    "Pow": Operator(_power, _QUANTITIES, condition=_has_power),
}
_FUNCTIONS = {
    "Exp": Operator("exponential({0})"),
    "Log": Operator("logarithm({0})"),
    "Erf": Operator("error_function({0})"),
    "Tanh": Operator("hyperbolic_tangent({0})"),
    "Sigmoid": Operator("sigmoid({0})"),
    "Relu": Operator("relu({0})", _QUANTITIES),
    "LeakyRelu": Operator("leaky_relu({0}, {alpha})", defaults={"alpha": 0.01}),
    "ThresholdedRelu": Operator("thresholded_relu({0}, {alpha})", defaults={"alpha": 1.0}),
    "Elu": Operator("elu({0}, {alpha})", defaults={"alpha": 1.0}),
    "Celu": Operator("celu({0}, {alpha})", defaults={"alpha": 1.0}),
    "Selu": Operator(
        "selu({0}, {alpha}, {gamma})",
        defaults={"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    ),
    "HardSigmoid": Operator(
        "hard_sigmoid({0}, {alpha}, {beta})", defaults={"alpha": 0.2, "beta": 0.5}
    ),
    "HardSwish": Operator("hard_swish({0})"),
    "Softplus": Operator("softplus({0})"),
    "Softsign": Operator("softsign({0})"),
    "Swish": Operator("swish({0}, {alpha})", defaults={"alpha": 1.0}),
    "Mish": Operator("mish({0})"),
    "Gelu": Operator(_gelu, defaults={"approximate": "none"}),
}
_CHOICES = {
    "Where": Operator("{0} ? {1} : {2}", NUMBERS),
    "Equal": Operator("{0} == {1}", NUMBERS),
    "Less": Operator("{0} < {1}", _QUANTITIES),
    "LessOrEqual": Operator("{0} <= {1}", _QUANTITIES),
    "Greater": Operator("{0} > {1}", _QUANTITIES),
    "GreaterOrEqual": Operator("{0} >= {1}", _QUANTITIES),
    "IsNaN": Operator("{0} != {0}"),
    "Not": Operator("!{0}", _BOOL),
    "And": Operator("{0} & {1}", _BOOL),
    "Or": Operator("{0} | {1}", _BOOL),
    "Xor": Operator("{0} != {1}", _BOOL),
    "Cast": Operator(_cast, NUMBERS, {"to": 0, "saturate": 1}, _rounds_once),
}

#: Operators of ONNX by name.
OPERATORS = MappingProxyType(_ARITHMETIC | _FUNCTIONS | _CHOICES)
