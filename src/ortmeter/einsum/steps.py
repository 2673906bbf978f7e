"""Steps of a plan, their costs, a builder that skips useless steps, and transposes in products."""

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ortmeter.einsum.parse import Axes, Operands, Shape


@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Parameters
    ----------
    kind : {"diagonal", "reduce_sum", "transpose", "reshape", "mul", "matmul"}
        What it does.
    inputs : tuple of str
        Results that it reads.
    output : str
        Result that it writes.
    input_axes : tuple of tuple of str
        Axes of each input: the letters merged in each axis, none for an axis of size 1.
    axes : tuple of str
        Axes of the output.
    shape : tuple of int, str or None
        Shape of the output: free sizes have their names, those that are merged have none.
    flop : int or None
        Operations, counted as in :mod:`ortmeter.operators.costs`; None when a size is free.
    bytes_moved : int or None
        Bytes read and written, none by a reshape; None when a size is free.
    where : tuple of int
        Permutation of a transpose, axes that a reduce_sum removes, first of the two adjacent axes
        of a diagonal.
    """

    kind: str
    inputs: tuple[str, ...]
    output: str
    input_axes: tuple[Axes, ...]
    axes: Axes
    shape: Shape
    flop: int | None
    bytes_moved: int | None
    where: tuple[int, ...] = ()

    @property
    def subscripts(self) -> str:
        """The step as an equation: ``b(st)h,bhd->b(st)d``, merged letters between brackets."""
        return f"{','.join(map(_spell, self.input_axes))}->{_spell(self.axes)}"


def _spell(axes: Axes) -> str:
    return "".join(letters if len(letters) == 1 else f"({letters})" for letters in axes)


def result_name(root: str, axes: Axes, taken: Container[str] = ()) -> str:
    """Name a result after the operand or product that it comes from, and its axes: ``X0_b_st``."""
    base = "_".join((root, *(letters or "1" for letters in axes))) if axes else f"{root}_scalar"
    names = (base if i == 1 else f"{base}_v{i}" for i in itertools.count(1))
    return next(name for name in names if name not in taken)


class Tensor(NamedTuple):
    """A result that the next steps may read, and the operand or product that it comes from."""

    name: str
    root: str
    axes: Axes

    @property
    def letters(self) -> str:
        return "".join(self.axes)


class StepBuilder:
    """Collects steps; those that do nothing are skipped, those that follow one another merged.

    They are those of any sizes: :func:`with_sizes` adds what depends on them.
    """

    def __init__(self, stretched: Sequence[str]) -> None:
        self._stretched = stretched
        self._steps: dict[str, Step] = {}
        self._products = itertools.count()

    def operand(self, index: int, letters: str) -> Tensor:
        """Start from an operand; its axes that are stretched to another size have no letter."""
        stretched = self._stretched[index]
        axes = tuple("" if letter in stretched else letter for letter in letters)
        return Tensor(f"X{index}", f"X{index}", axes)

    def diagonal(self, tensor: Tensor, letter: str) -> Tensor:
        """Keep the diagonal of the first two axes of a letter, which are brought side by side."""
        first = tensor.axes.index(letter)
        second = tensor.axes.index(letter, first + 1)
        order = [i for i in range(len(tensor.axes)) if i != second]
        order.insert(first + 1, second)
        beside = self._permute(tensor, order)
        axes = (*beside.axes[:first], *beside.axes[first + 1 :])
        return self._add("diagonal", [beside], axes, where=(first,))

    def reduce_sum(self, tensor: Tensor, letters: set[str]) -> Tensor:
        where = tuple(i for i, axis in enumerate(tensor.axes) if axis in letters)
        if not where:
            return tensor
        axes = tuple(axis for i, axis in enumerate(tensor.axes) if i not in where)
        return self._add("reduce_sum", [tensor], axes, where=where)

    def transpose(self, tensor: Tensor, axes: Axes) -> Tensor:
        return self._permute(tensor, [tensor.axes.index(axis) for axis in axes])

    def reshape(self, tensor: Tensor, axes: Axes) -> Tensor:
        """Merge or split axes, add or remove axes of size 1."""
        if axes == tensor.axes:
            return tensor
        before = self._steps.get(tensor.name)
        if before is not None and before.kind == "reshape":
            origin = Tensor(before.inputs[0], tensor.root, before.input_axes[0])
            return self.reshape(origin, axes)
        return self._add("reshape", [tensor], axes)

    def mul(self, left: Tensor, right: Tensor, letters: str) -> Tensor:
        """Multiply elements; both operands have their letters in the order of the result."""
        operands = [self._align(tensor, letters) for tensor in (left, right)]
        return self._add("mul", operands, tuple(letters))

    def matmul(self, left: Tensor, right: Tensor, axes: Axes) -> Tensor:
        """Multiply matrices, in batch."""
        return self._add("matmul", [left, right], axes)

    def finish(self, tensor: Tensor) -> tuple[Step, ...]:
        """Return the steps that a tensor needs, in order; the last result is ``Y``."""
        needed: list[Step] = []
        names = {tensor.name}
        for step in reversed(self._steps.values()):
            if step.output in names:
                names.update(step.inputs)
                needed.append(step)
        if needed:
            needed[0] = replace(needed[0], output="Y")
        return tuple(reversed(needed))

    def _align(self, tensor: Tensor, letters: str) -> Tensor:
        """Add axes of size 1 for the letters of a result that a tensor lacks, but the first."""
        aligned = tuple(x if x in tensor.axes else "" for x in letters)
        before = self._steps.get(tensor.name)
        if before is not None and before.kind == "reshape" and before.input_axes[0] == aligned:
            return self.reshape(tensor, aligned)  # the axes of size 1 were there
        first = min((letters.index(x) for x in tensor.letters), default=len(letters))
        return self.reshape(tensor, aligned[first:])

    def _permute(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        if list(order) == sorted(order):
            return tensor
        before = self._steps.get(tensor.name)
        if before is not None and before.kind == "transpose":
            origin = Tensor(before.inputs[0], tensor.root, before.input_axes[0])
            return self._permute(origin, [before.where[i] for i in order])
        axes = tuple(tensor.axes[i] for i in order)
        return self._add("transpose", [tensor], axes, where=tuple(order))

    def _add(
        self, kind: str, inputs: Sequence[Tensor], axes: Axes, *, where: tuple[int, ...] = ()
    ) -> Tensor:
        root = inputs[0].root if len(inputs) == 1 else f"T{next(self._products)}"
        name = result_name(root, axes, self._steps)
        read = tuple(tensor.axes for tensor in inputs)
        names = tuple(tensor.name for tensor in inputs)
        self._steps[name] = Step(kind, names, name, read, axes, (), 0, 0, where)
        return Tensor(name, root, axes)


def with_sizes(step: Step, operands: Operands) -> Step:
    """Write the shape of a step, and what it costs."""
    kind, names, name, read, axes, _, flop, moved, where = vars(step).values()
    shape = operands.shape(axes)
    if operands.is_free("".join(map("".join, (*read, axes)))):
        return replace(step, shape=shape, flop=None, bytes_moved=None)
    *inputs, out = (operands.count("".join(a)) for a in (*read, axes))
    if kind == "diagonal":
        inputs = [out]
    if kind != "reshape":
        moved = (sum(inputs) + out) * operands.dtype.itemsize
    if kind == "reduce_sum":
        flop = max(inputs[0] - out, 0)
    elif kind == "mul":
        flop = out
    elif kind == "matmul":
        flop = 2 * out * operands.count(read[0][-1])
    return Step(kind, names, name, read, axes, shape, flop, moved, where)


def absorb_transposes(
    steps: Sequence[Step],
) -> tuple[Sequence[Step], dict[str, dict[str, int]]]:
    """Let products read operands that are not transposed, as FusedMatMul does.

    Return the steps without the transposes that disappear, and the attributes of the products that
    absorb something, by result. A transpose that does not keep the last axis is replaced by one
    that does, copies runs of elements and leaves the rest to the product.
    """
    # The axes of a step no longer tell how a product reads its operands: the flags do.
    flags: dict[str, dict[str, int]] = {}
    moves: dict[str, Step | None] = {}
    sources: dict[str, str] = {}
    made = {step.output: step for step in steps}
    for step in steps:
        for side, before in _transposed(step, made):
            absorbed, order = _absorb(before.where, batch=len({*map(len, step.input_axes)}) == 1)
            if not absorbed:
                continue
            flags.setdefault(step.output, {}).update({f"{flag}{side}": 1 for flag in absorbed})
            moved = _reorder(before, order, made)
            moves[before.output] = moved
            sources[before.output] = before.inputs[0] if moved is None else moved.output
    kept = (moves.get(step.output, step) for step in steps)
    return [
        replace(step, inputs=tuple(sources.get(name, name) for name in step.inputs))
        for step in kept
        if step is not None
    ] if flags else steps, flags


def _transposed(step: Step, made: dict[str, Step]) -> Iterator[tuple[str, Step]]:
    """Find the operands of a product of matrices that a step transposes."""
    if step.kind != "matmul" or min(map(len, step.input_axes)) < 2:  # noqa: PLR2004 - a vector
        return
    for side, name in zip("AB", step.inputs, strict=True):
        before = made.get(name)
        if before is not None and before.kind == "transpose":
            yield side, before


def _absorb(
    order: tuple[int, ...], *, batch: bool
) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Split a permutation: what a product absorbs, then what remains, None for nothing.

    With ``transBatch`` the first axis of the operand comes after those of the batch; with ``trans``
    its last two axes are then exchanged. Both operands of such a product have the same rank.
    """
    last = len(order) - 1
    swapped = (*order[:-2], order[-1], order[-2])
    identity = tuple(range(len(order)))
    batch_last = (*range(1, last), 0, last)
    if swapped == identity:
        return ("trans",), None
    if batch and order == batch_last:
        return ("transBatch",), None
    if batch and swapped == batch_last:
        return ("trans", "transBatch"), None
    # What remains copies runs of elements.
    return (("trans",), swapped) if swapped[-1] == last else ((), None)


def _reorder(step: Step, order: tuple[int, ...] | None, taken: Container[str]) -> Step | None:
    if order is None:
        return None
    axes = tuple(step.input_axes[0][i] for i in order)
    shape = (*step.shape[:-2], step.shape[-1], step.shape[-2])
    root, _, _ = step.output.partition("_")
    return replace(step, output=result_name(root, axes, taken), axes=axes, shape=shape, where=order)
