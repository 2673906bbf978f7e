"""Two ways to run each node of a model, mixed at will, and the same model in float64."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
import onnx

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator._context import Context
from ortmeter.evaluator._feeds import FeedChecker
from ortmeter.evaluator._narrow import is_added
from ortmeter.evaluator._plan import Plan, Step, Watch
from ortmeter.evaluator._policy import torch_policy
from ortmeter.evaluator._values import element_type, fed_library, is_torch
from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.runtime.arrays import as_numpy

__all__ = ["BASELINE", "CANDIDATE", "Hybrid", "Visit", "exact_feeds", "parts"]

BASELINE, CANDIDATE = 0, 1

Visit: TypeAlias = Callable[[int, tuple[Any, ...], list[Any]], None]
"""Sees each node that ran: its rank, its inputs, the outputs that have a name."""


class Hybrid:
    """Runs of one model whose nodes have the kernel of the baseline or of the candidate.

    Parameters
    ----------
    sides : sequence of two Evaluator
        The baseline, the candidate.
    exact : Evaluator
        The model in float64.
    feeds, exact_feeds : mapping of str to array
        Inputs of the sides and of the model in float64.

    Raises
    ------
    InvalidArgumentError
        A side replaces a constant.
    """

    def __init__(
        self,
        sides: Sequence[Evaluator],
        exact: Evaluator,
        feeds: Mapping[str, Any],
        exact_feeds: Mapping[str, Any],
    ) -> None:
        *opened, (self._exact, exact_checker, context) = map(parts, (*sides, exact))
        self._plans = tuple(plan for plan, _, _ in opened)
        self._memory = context.memory
        self._steps = tuple(plan.steps for plan in self._plans)
        self._exact_steps = [s for s in self._exact.steps if not is_added(s.node.proto)]
        if len({len(steps) for steps in (*self._steps, self._exact_steps)}) > 1:
            raise InvalidArgumentError(
                "A kernel replaces a Constant, which has no discrepancy to attribute. Accepted: "
                "kernels of the other nodes"
            )
        for _, _, shared in opened:
            shared.library = fed_library(feeds.values())
        self._given = opened[BASELINE][1].take(feeds)
        self._exact_given = exact_checker.take(exact_feeds)
        self._is_wide: dict[int, list[bool]] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """Nodes of the baseline, in the order of the graph."""
        return self._steps[BASELINE]

    def policy(self, *, tf32: bool) -> AbstractContextManager[None]:
        """Compute without gradients, with the precision asked for."""
        return torch_policy(self._memory, tf32=tf32)

    def sources(self, rank: int) -> tuple[str, str]:
        """Name what ran a node last, on each side."""
        baseline, candidate = (steps[rank].used for steps in self._steps)
        return baseline, candidate

    def run(self, swapped: Collection[int] = (), visit: Visit | None = None) -> list[Any]:
        """Run the model, the nodes of these ranks with the kernels of the candidate."""
        pairs = enumerate(zip(*self._steps, strict=True))
        steps = [pair[rank in swapped] for rank, pair in pairs]
        watch = None if visit is None else _watch(steps, visit)
        return self._plans[BASELINE].with_steps(steps).run(self._given, watch)

    def run_exact(self) -> list[Any]:
        """Run the model in float64."""

        def remember(rank: int, inputs: tuple[Any, ...], outputs: list[Any]) -> None:
            del outputs
            self._is_wide[rank] = [_is_double(value) for value in inputs]

        return self._exact.run(self._exact_given, _watch(self._exact_steps, remember))

    def apply(self, side: int, rank: int, inputs: Sequence[Any]) -> list[Any]:
        """Run one node of a side."""
        return _apply(self._steps[side][rank], inputs)

    def apply_exact(self, rank: int, inputs: Sequence[Any]) -> list[Any]:
        """Run one node in float64, once :meth:`run_exact` told which inputs have this type."""
        flags = self._is_wide[rank]
        wide = [_widen(v) if flag else v for v, flag in zip(inputs, flags, strict=True)]
        return _apply(self._exact_steps[rank], wide)


def parts(evaluator: Evaluator) -> tuple[Plan, FeedChecker, Context]:
    """Open an evaluator: its plan, what checks its feeds, what its kernels share."""
    return evaluator._plan, evaluator._feeds, evaluator._context  # noqa: SLF001 - same subpackage


def exact_feeds(
    model: onnx.ModelProto, double: onnx.ModelProto, feeds: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert the feeds whose type is another one in float64."""
    pairs = zip(model.graph.input, double.graph.input, strict=True)
    wide = {value.name for value, exact in pairs if value.type != exact.type}
    return {name: _widen(value) if name in wide else value for name, value in feeds.items()}


def _widen(value: Any) -> Any:
    """Convert an array of any library, or a sequence of arrays, to float64."""
    if value is None or isinstance(value, list):
        return None if value is None else [_widen(item) for item in value]
    return value.double() if is_torch(value) else as_numpy(value).astype(np.float64)


def _is_double(value: Any) -> bool:
    if value is None or isinstance(value, list):
        return any(map(_is_double, value or ()))
    return element_type(value.dtype) == onnx.TensorProto.DOUBLE


def _watch(steps: Sequence[Step], visit: Visit) -> Watch:
    """See the nodes of the main graph by rank; those of subgraphs belong to their owner."""
    ranks = {step.node: rank for rank, step in enumerate(steps)}

    def watch(node: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        rank = ranks.get(node)
        if rank is not None:
            visit(rank, inputs, _named(steps[rank], outputs))

    return watch


def _apply(step: Step, inputs: Sequence[Any]) -> list[Any]:
    try:
        result = step.kernel(*inputs)
    except Exception as error:  # noqa: BLE001 - the step knows what it means
        result = step.recover(tuple(inputs), error)
    return _named(step, result if isinstance(result, tuple) else (result,))


def _named(step: Step, results: Sequence[Any]) -> list[Any]:
    """Keep the results that have a name."""
    return [value for slot, value in zip(step.outputs, results, strict=False) if slot]
