"""Description of each graph compiled by the backend."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from ortmeter.backend.rules.rule import Refusal
from ortmeter.runtime.graphs import walk_nodes

_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """A graph that runs on ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        Model of the session, before the optimizations of ONNX Runtime. Weights of more than 64 KiB
        are inputs, so the model does not contain them.
    level : str
        Optimization level.
    provider : str
        Where it runs: ``cpu``, ``cuda``, ``cuda:1``.
    exported_operators : mapping of str to int
        Nodes by operator before the rules of the level, including subgraphs and functions.
        Operators outside the ONNX standard have their domain: ``com.microsoft.FusedMatMul``.
    fusions : mapping of str to int
        Number of times each rule was applied.
    export_s, optimization_s, session_s : float
        Seconds spent in each step.
    weight_bytes : int
        Size of the weights of more than 64 KiB.
    placement : mapping of str to int
        Nodes by provider, in the graph that ONNX Runtime executes.
    builds : int
        Sessions built for this graph, more than 1 if its weights changed.
    refusals : tuple of Refusal
        Matches of a pattern to which its rule does not apply, with the reason.
    """

    model: onnx.ModelProto
    level: str
    provider: str
    exported_operators: Mapping[str, int]
    fusions: Mapping[str, int]
    export_s: float
    optimization_s: float
    session_s: float
    weight_bytes: int
    placement: Mapping[str, int]
    builds: int = 1
    refusals: tuple[Refusal, ...] = ()

    @property
    def operators(self) -> dict[str, int]:
        """Nodes by operator, including subgraphs and functions."""
        return count_operators(self.model)

    @property
    def node_count(self) -> int:
        """Number of nodes, including subgraphs and functions."""
        return sum(self.operators.values())

    @property
    def custom_count(self) -> int:
        """Number of nodes outside the ONNX standard, including subgraphs and functions."""
        return sum(count for name, count in self.operators.items() if "." in name)

    def __str__(self) -> str:
        seconds = self.export_s + self.optimization_s + self.session_s
        return (
            f"{self.level} on {self.provider}: "
            f"{sum(self.exported_operators.values())} -> {self.node_count} nodes, "
            f"{self.custom_count} of them custom, compiled in {seconds:.2f} s, "
            f"fusions: {', '.join(f'{name} {n}' for name, n in self.fusions.items()) or 'none'}"
        )


@dataclass(frozen=True)
class Fallback:
    """A graph that runs on torch instead.

    Parameters
    ----------
    reason : str
        Why; it starts with the operator when one is to blame.
    operations : int
        How many operations it has.
    """

    reason: str
    operations: int

    def __str__(self) -> str:
        return f"runs on torch, {self.operations} operations: {self.reason}"


def count_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Count the nodes of a model by operator, subgraphs and functions included.

    The body of a function counts once, each call of it as a node. The most frequent come first;
    operators out of the ONNX standard have their domain.
    """
    nodes = walk_nodes([*model.graph.node, *(n for f in model.functions for n in f.node)])
    names = (n.op_type if n.domain in _STANDARD else f"{n.domain}.{n.op_type}" for n in nodes)
    return dict(Counter(names).most_common())
