"""Explain what the backend does with a model."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ortmeter.backend.ort_backend import OrtBackend
from ortmeter.backend.record import CompiledGraph, Fallback, list_counts
from ortmeter.discrepancy import Discrepancy, max_diff

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What the backend does with a model, graph by graph.

    Parameters
    ----------
    graphs : tuple of CompiledGraph, Fallback or None
        In the order in which dynamo found them; None when there is nothing to compute.
    discrepancy : Discrepancy
        Discrepancy between the outputs of the model and those of torch.
    """

    graphs: tuple[CompiledGraph | Fallback | None, ...]
    discrepancy: Discrepancy

    def __str__(self) -> str:
        graphs = [f"graph {i}: {_describe_graph(graph)}" for i, graph in enumerate(self.graphs)]
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
    >>> (graph,) = explanation.graphs
    >>> graph.operators, graph.refusals
    ({'com.microsoft.FusedMatMul': 1}, ())
    """
    chosen = backend or OrtBackend()
    graphs: list[CompiledGraph | Fallback | None] = []

    def compile_next(module: GraphModule, arguments: Sequence[Any]) -> Callable[..., Any]:
        compiled, fallbacks = len(chosen.graphs), len(chosen.fallbacks)
        run = chosen(module, arguments)
        found = (*chosen.graphs[compiled:], *chosen.fallbacks[fallbacks:], None)
        graphs.append(found[0])
        return run

    with torch.no_grad():
        expected = model(*copy.deepcopy(inputs))
        got = torch.compile(model, backend=compile_next)(*copy.deepcopy(inputs))
    return Explanation(tuple(graphs), max_diff(expected, got))


def _describe_graph(graph: CompiledGraph | Fallback | None) -> str:
    if not isinstance(graph, CompiledGraph):
        return str(graph or "runs on torch: nothing to compute")
    lines = [
        f"before: {list_counts(graph.exported_operators)}",
        f"after: {list_counts(graph.operators)}",
    ]
    at: dict[tuple[str, str], list[str]] = {}
    for refusal in graph.refusals:
        at.setdefault((refusal.rule, refusal.reason), []).append(refusal.result)
    for (rule, reason), found in at.items():
        lines.append(f"{rule} not applied {len(found)} times, first at {found[0]}: {reason}")
    if graph.provider != "cpu" and graph.fusions:
        # what the rules bring was measured on CPU only
        lines.append(f"rules not measured on {graph.provider}: {', '.join(graph.fusions)}")
    return "\n  ".join([str(graph), *lines])
