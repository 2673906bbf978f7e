"""Explain what the backend does with a model."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ortmeter.backend.ort_backend import OrtBackend
from ortmeter.backend.record import CompiledGraph, Fallback, list_counts
from ortmeter.backend.rules import Refusal
from ortmeter.discrepancy import Discrepancy, max_diff

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class ExplainedGraph:
    """A graph of a model. Torch runs it if it is not compiled or has nothing to compute."""

    compiled: CompiledGraph | None
    fallback: Fallback | None

    def __str__(self) -> str:
        if self.compiled is None:
            return str(self.fallback or "runs on torch: nothing to compute")
        lines = [
            f"before: {list_counts(self.compiled.exported_operators)}",
            f"after: {list_counts(self.compiled.operators)}",
        ]
        for (rule, reason), at in _by_reason(self.compiled.refusals).items():
            lines.append(f"{rule} not applied {len(at)} times, first at {at[0]}: {reason}")
        if self.compiled.provider != "cpu" and self.compiled.fusions:
            # what the rules bring was measured on CPU only
            unmeasured = ", ".join(self.compiled.fusions)
            lines.append(f"rules not measured on {self.compiled.provider}: {unmeasured}")
        return "\n  ".join([str(self.compiled), *lines])


@dataclass(frozen=True)
class Explanation:
    """What the backend does with a model, graph by graph.

    Parameters
    ----------
    graphs : tuple of ExplainedGraph
        In the order in which dynamo found them.
    discrepancy : Discrepancy
        Discrepancy between the outputs of the model and those of torch.
    """

    graphs: tuple[ExplainedGraph, ...]
    discrepancy: Discrepancy

    def __str__(self) -> str:
        graphs = [f"graph {i}: {graph}" for i, graph in enumerate(self.graphs)]
        return "\n".join([*graphs, f"model compared with torch: {self.discrepancy}"])


def explain(
    model: Callable[..., Any], *inputs: Any, backend: OrtBackend | None = None
) -> Explanation:
    """Compile a model, run it once, and compare it with torch.

    Parameters
    ----------
    model : callable
        A module or a function, run twice without gradients on copies of the inputs.
    *inputs : object
        Its arguments.
    backend : OrtBackend, optional
        Backend, by default with default options.

    Returns
    -------
    Explanation
        For each graph: operators before and after, fusions, reasons why a rule did not apply to a
        match of its pattern, reason why torch runs the graph if it does.

    Raises
    ------
    UnsupportedGraphError
        A graph cannot run on ONNX Runtime and *backend* does not fall back.

    Examples
    --------
    >>> explanation = explain(lambda x: x @ x.t(), torch.ones(2, 2))
    >>> compiled = explanation.graphs[0].compiled
    >>> compiled.operators, compiled.refusals
    ({'com.microsoft.FusedMatMul': 1}, ())
    """
    chosen = backend or OrtBackend()
    graphs: list[ExplainedGraph] = []

    def compile_next(module: GraphModule, arguments: Sequence[Any]) -> Callable[..., Any]:
        compiled, fallbacks = len(chosen.graphs), len(chosen.fallbacks)
        run = chosen(module, arguments)
        graph = next(iter(chosen.graphs[compiled:]), None)
        graphs.append(ExplainedGraph(graph, next(iter(chosen.fallbacks[fallbacks:]), None)))
        return run

    with torch.no_grad():
        expected = model(*copy.deepcopy(inputs))
        got = torch.compile(model, backend=compile_next)(*copy.deepcopy(inputs))
    return Explanation(tuple(graphs), max_diff(expected, got))


def _by_reason(refusals: Sequence[Refusal]) -> dict[tuple[str, str], list[str]]:
    """List the results where a rule did not apply, by rule and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        found.setdefault((refusal.rule, refusal.reason), []).append(refusal.result)
    return found
