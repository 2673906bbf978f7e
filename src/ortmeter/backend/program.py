"""A session with the way from the arguments of a graph to its outputs."""

from collections.abc import Sequence
from typing import Any

import torch

from ortmeter.backend._internals import Call
from ortmeter.backend.export import ExportedGraph
from ortmeter.backend.record import CompiledGraph
from ortmeter.backend.weights import WeightWatch
from ortmeter.errors import ModelError

__all__ = ["Program"]


class Program:
    """A session fed with the arguments of a graph.

    Parameters
    ----------
    call : callable
        Runs the session on tensors.
    kept : object
        What the session reads and must outlive it.
    feeds : sequence of int
        Ranks of what it takes, among the arguments then *more*.
    more : sequence of torch.Tensor
        What it takes that is not an argument.
    exported : ExportedGraph
        How outputs are made from what it returns.
    watch : WeightWatch
        Weights that it holds.
    record : CompiledGraph
        What was done.
    """

    def __init__(
        self,
        call: Call,
        *,
        kept: object,
        feeds: Sequence[int],
        more: Sequence[torch.Tensor] = (),
        exported: ExportedGraph,
        watch: WeightWatch,
        record: CompiledGraph,
    ) -> None:
        self._call, self._kept = call, kept
        self._feeds, self._more = tuple(feeds), tuple(more)
        self._numbers = tuple(rank for rank, i in enumerate(feeds) if i in exported.numbers)
        self._outputs, self._updated = exported.outputs, exported.updated
        self._computes_all = exported.outputs.is_plain and not exported.updated
        self.recognizes, self.is_outdated = watch.recognizes, watch.is_outdated
        self.record = record

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run on the arguments of the graph and return its outputs."""
        given = (*arguments, *self._more) if self._more else arguments
        feeds = [given[i] for i in self._feeds]
        for i in self._numbers:
            feeds[i] = torch.tensor(feeds[i])
        try:
            computed = self._call(feeds)
        except Exception as cause:
            raise ModelError(f"ONNX Runtime failed: {str(cause).strip()}") from cause
        if self._computes_all:
            return computed
        count = len(self._outputs.computed)
        for i, value in zip(self._updated, computed[count:], strict=True):
            arguments[i].copy_(value)
        return self._outputs.collect(arguments, computed[:count])
