"""Let the products of ONNX Runtime read their operands as they are, without transposing them."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from ortmeter.einsum.steps import Step, result_name

__all__ = ["absorb_transposes"]


def absorb_transposes(steps: Sequence[Step]) -> tuple[list[Step], dict[str, dict[str, int]]]:
    """Move into the products what they can do of the transposes of their operands.

    Parameters
    ----------
    steps : sequence of Step
        Steps of a plan.

    Returns
    -------
    steps : list of Step
        The same without the transposes that disappear. A transpose that does not keep the last axis
        is replaced by one that does, copies runs of elements and leaves the rest to the product.
    flags : dict of str to dict
        Attributes of ``com.microsoft.FusedMatMul`` for the products that absorb something, by
        result.
    """
    # The axes of a step no longer tell how a product reads its operands: the flags do.
    flags: dict[str, dict[str, int]] = {}
    moves: dict[str, Step | None] = {}
    sources: dict[str, str] = {}
    made = {step.output: step for step in steps}
    for step in steps:
        for side, before in _transposed(step, made):
            absorbed, order = _split(before.where, batch=len({*map(len, step.input_axes)}) == 1)
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
    ], flags


def _transposed(step: Step, made: dict[str, Step]) -> Iterator[tuple[str, Step]]:
    """Find the operands of a product of matrices that a step transposes."""
    if step.kind != "matmul" or min(map(len, step.input_axes)) < 2:  # noqa: PLR2004 - a vector
        return
    for side, name in zip("AB", step.inputs, strict=True):
        before = made.get(name)
        if before is not None and before.kind == "transpose":
            yield side, before


def _split(
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
