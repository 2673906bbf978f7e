"""The plan of an equation: its steps and what they cost."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from ortmeter.dtypes import DTypeLike
from ortmeter.einsum._operands import Operands
from ortmeter.einsum._sizes import Shape, Sizes
from ortmeter.einsum.emit import emit_model
from ortmeter.einsum.parse import Equation
from ortmeter.einsum.steps import Step, run_step

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EinsumPlan"]

_Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class EinsumPlan:
    """Steps that compute an equation, made by :func:`~ortmeter.einsum.decompose_einsum`.

    Parameters
    ----------
    operands : Operands
        The equation, explicit, the shapes of its operands and their type.
    steps : tuple of Step
        What to do, in order. The operands are ``X0``, ``X1``, ...; the result of the last step is
        ``Y``. Without a step, the result is the operand.
    """

    operands: Operands
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def equation(self) -> str:
        """The equation as it was given."""
        return self.parsed.text

    @property
    def parsed(self) -> Equation:
        """The equation, explicit."""
        return self.operands.equation

    @property
    def sizes(self) -> Sizes:
        """Size of every letter."""
        return self.operands.sizes

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of each operand."""
        return self.operands.shapes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.operands.dtype

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the operands, which are also the inputs of the model."""
        return tuple(f"X{i}" for i in range(len(self.shapes)))

    @property
    def flop(self) -> int | None:
        """Operations, None when a size is not known."""
        return _total([step.flop for step in self.steps])

    @property
    def bytes_moved(self) -> int | None:
        """Bytes read and written by all the steps, None when a size is not known."""
        return _total([step.bytes_moved for step in self.steps])

    @property
    def largest_intermediate(self) -> int | None:
        """Elements of the largest result of a step, None when a size is not known."""
        counts = [self.sizes.count("".join(step.axes)) for step in self.steps]
        known = [count for count in counts if count is not None]
        return max(known, default=0) if len(known) == len(counts) else None

    def to_onnx(
        self,
        dtype: DTypeLike | None = None,
        opset: int = 18,
        *,
        contrib: bool = False,
        compute: DTypeLike | None = None,
    ) -> onnx.ModelProto:
        """Make the model that executes the steps.

        Parameters
        ----------
        dtype : dtype, optional
            Type of the inputs and of the output, that of the plan by default.
        opset : int
            Version of the ONNX operators, from 15.
        contrib : bool
            Let products absorb transposes by ``com.microsoft.FusedMatMul``, which only ONNX Runtime
            knows.
        compute : dtype, optional
            Type that sums and products use, when it is not *dtype*. By default, the one that the
            CPU provider of ONNX Runtime needs: int32 for integers of 8 and 16 bits, int64 for
            unsigned integers of 32 and 64 bits, float32 for bool and bfloat16.

        Returns
        -------
        onnx.ModelProto
            A checked model with the inputs :attr:`input_names` and the output ``Y``. The same plan
            gives the same model.

        Raises
        ------
        EinsumError
            No ONNX operator sums products of this type: complex numbers, strings, floats and
            integers of less than 16 and 8 bits.
        InvalidArgumentError
            The opset is not available.

        Notes
        -----
        A size of 0 must be known when the model is made: with operands that turn out to be empty,
        ONNX Runtime may refuse a reshape, or a product that absorbs a transpose.

        Examples
        --------
        >>> from ortmeter.einsum import decompose_einsum
        >>> model = decompose_einsum("bij,bkj->bki", (2, 3, 4), (2, 5, 4)).to_onnx()
        >>> [node.op_type for node in model.graph.node]
        ['Transpose', 'MatMul']
        """
        dtype = self.dtype if dtype is None else dtype
        return emit_model(self, dtype=dtype, opset=opset, contrib=contrib, compute=compute)

    def feeds(self, *operands: Any) -> dict[str, Any]:
        """Name the operands as the inputs of the model.

        Parameters
        ----------
        *operands : array
            One for each operand of the equation.

        Raises
        ------
        FeedError
            There are more or fewer.
        """
        self.operands.check_count(len(operands))
        return dict(zip(self.input_names, operands, strict=True))

    def run(self, *operands: Any) -> _Array:
        """Execute the steps with NumPy.

        Parameters
        ----------
        *operands : array
            One for each operand of the equation, of the shapes of the plan.

        Returns
        -------
        array
            The result.

        Raises
        ------
        FeedError
            The operands have not the number or the shapes that the plan was made for.
        """
        return self.results(*operands)[self.steps[-1].output if self.steps else "X0"]

    def results(self, *operands: Any) -> dict[str, _Array]:
        """Execute the steps with NumPy and keep every result.

        Parameters
        ----------
        *operands : array
            As for :meth:`run`.

        Returns
        -------
        dict of str to array
            The operands, then the result of each step, by name.
        """
        found = {name: np.asarray(x) for name, x in self.feeds(*operands).items()}
        sizes = self.operands.actual_sizes([x.shape for x in found.values()])
        for step in self.steps:
            found[step.output] = run_step(step, [found[name] for name in step.inputs], sizes)
        return found

    def to_frame(self) -> "pd.DataFrame":
        """Describe the steps.

        Returns
        -------
        pandas.DataFrame
            One row per step: ``kind``, ``inputs``, ``output``, ``subscripts``, ``shape``, ``flop``,
            ``bytes_moved``.
        """
        import pandas as pd

        columns = ("kind", "inputs", "output", "subscripts", "shape", "flop", "bytes_moved")
        rows = [[getattr(step, name) for name in columns] for step in self.steps]
        return pd.DataFrame(rows, columns=list(columns))

    def __str__(self) -> str:
        rows = [
            (
                step.kind,
                step.subscripts,
                f"{', '.join(step.inputs)} -> {step.output}",
                "x".join(str("?" if size is None else size) for size in step.shape) or "scalar",
                _count(step.flop),
                _count(step.bytes_moved),
            )
            for step in self.steps
        ]
        total = (
            "total",
            str(self.parsed),
            "",
            "",
            _count(self.flop),
            _count(self.bytes_moved),
        )
        header = ("step", "subscripts", "results", "shape", "FLOP", "bytes")
        return _align([header, *rows, total])

    def _repr_html_(self) -> str:
        # Drawings are above this layer: they are only reached when a notebook shows a plan.
        plotting = importlib.import_module("ortmeter.plotting")
        drawing = plotting.draw_model(self.to_onnx(), title=self.equation)
        return str(drawing._repr_html_())


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _align(rows: Sequence[tuple[str, ...]]) -> str:
    """Align a table: texts on the left, the last two columns on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numeric = len(widths) - 2
    lines = (
        "  ".join(
            cell.ljust(width) if i < numeric else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
