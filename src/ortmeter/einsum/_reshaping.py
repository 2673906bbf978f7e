"""Write a reshape: its shape is a constant if it can be, else it is computed from the inputs."""

from collections.abc import Sequence

from ortmeter.einsum._graph import GraphWriter
from ortmeter.einsum._sizes import Axes
from ortmeter.einsum.steps import Step

__all__ = ["SizeReader", "write_reshape"]

_COPY, _INFER = 0, -1


class SizeReader:
    """Writes the nodes that compute shapes when the model runs, each once.

    Parameters
    ----------
    writer : GraphWriter
        Receives the nodes.
    inputs : sequence of (str, str)
        Name and letters of each input of the model.
    stretched : sequence of str
        Letters along which each input is broadcast: it does not tell their size.
    """

    def __init__(
        self, writer: GraphWriter, inputs: Sequence[tuple[str, str]], stretched: Sequence[str]
    ) -> None:
        self._writer = writer
        self._homes = {
            letter: (name, axis)
            for (name, letters), unknown in zip(inputs, stretched, strict=True)
            for axis, letter in enumerate(letters)
            if letter not in unknown
        }
        self._known: set[str] = set()

    def size(self, letters: str) -> str:
        """Give the name of a vector of one integer, the size of an axis."""
        if len(letters) > 1:
            factors = [self.size(letters[:-1]), self.size(letters[-1])]
            return self._once("Mul", factors, f"size_{letters}")
        source, axis = self._homes[letters]
        return self._once("Shape", [source], f"size_{letters}", start=axis, end=axis + 1)

    def stride(self, letter: str) -> str:
        """Give the name of a vector of one integer, the stride of a diagonal."""
        one = self._writer.constant("one", [1])
        return self._once("Add", [self.size(letter), one], f"stride_{letter}")

    def shape(self, target: Sequence[int | str]) -> str:
        """Give the name of a shape: integers are known, the others are letters."""
        constants = [size for size in target if isinstance(size, int)]
        if len(constants) == len(target):
            return self._writer.constant("shape", constants)
        parts = [
            self._writer.constant("shape", [x]) if isinstance(x, int) else self.size(x)
            for x in target
        ]
        sizes = (str(x) if isinstance(x, int) else f"size{x}" for x in target)
        name = "_".join(("shape", *sizes)).replace("-", "m")
        return self._once("Concat", parts, name, axis=0)

    def _once(self, op_type: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        if name not in self._known:
            self._known.add(name)
            self._writer.node(op_type, inputs, name, **attributes)
        return name


def write_reshape(
    writer: GraphWriter, reader: SizeReader, step: Step, source: str, output: str
) -> None:
    """Write a reshape.

    Parameters
    ----------
    writer : GraphWriter
        Receives the nodes.
    reader : SizeReader
        Computes the shapes that are not known.
    step : Step
        The axes before and after.
    source, output : str
        Names of the tensors.
    """
    before, after = step.input_axes[0], step.axes
    added = [i for i, letters in enumerate(after) if not letters]
    removed = [i for i, letters in enumerate(before) if not letters]
    target = _target(before, step)
    if [x for x in before if x] == [x for x in after if x] and not (added and removed):
        axes = writer.constant("axes", added or removed)
        writer.node("Unsqueeze" if added else "Squeeze", [source, axes], output)
    elif all(isinstance(size, int) for size in target) or (cut := _cut(before, step)) is None:
        # Without a known zero, a zero means a copy of the size of the same axis.
        options = {"allowzero": 1} if 0 in step.shape else {}
        writer.node("Reshape", [source, reader.shape(target)], output, **options)
    else:
        writer.node("Flatten", [source], output, axis=cut)


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
