"""The operators of an expression and the numbers in it."""

from dataclasses import dataclass

import onnx_ir as ir

from ortmeter.dtypes import short_name

__all__ = ["Literal", "Step"]


@dataclass(frozen=True)
class Literal:
    """A number in an expression.

    Parameters
    ----------
    value : float or int
        The number; true is 1.
    dtype : onnx_ir.DataType
        Its element type.
    """

    value: float
    dtype: ir.DataType

    def __str__(self) -> str:
        text = self.value.hex() if isinstance(self.value, float) else str(self.value)
        return f"{short_name(int(self.dtype))}:{text}"


@dataclass(frozen=True)
class Step:
    """One operator of an expression.

    Parameters
    ----------
    domain, op_type : str
        The operator.
    attributes : tuple of (str, value)
        Sorted by name: numbers and strings.
    arguments : tuple of str, Literal or None
        ``x0`` is the first input of the expression, ``t0`` the result of its first step; None is
        an optional input that is absent.
    dtype : onnx_ir.DataType
        Element type of its result.
    """

    domain: str
    op_type: str
    attributes: tuple[tuple[str, float | str], ...]
    arguments: tuple[str | Literal | None, ...]
    dtype: ir.DataType

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.attributes)
        name = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        operator = f"{name}<{options}>" if options else name
        arguments = ", ".join("" if a is None else str(a) for a in self.arguments)
        return f"{operator}({arguments}):{short_name(int(self.dtype))}"
