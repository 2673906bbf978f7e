"""The rule of the level ``+experimental``: chains become kernels."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortmeter.backend.errors import KernelError, KernelWarning
from ortmeter.backend.kernels.chains import Chain, find_chains
from ortmeter.backend.kernels.library import build_library
from ortmeter.backend.kernels.sources import DOMAIN
from ortmeter.runtime.providers import Provider

__all__ = ["ELEMENT_WISE", "ChainRule", "FusedChains"]


@dataclass(frozen=True)
class FusedChains:
    """What was done with the chains of a model.

    Parameters
    ----------
    count : int
        How many became one node.
    library : Path or None
        Where their kernels are; None when there is no chain, or no kernel for them.
    reason : str
        Why chains were left to ONNX Runtime, empty otherwise.
    """

    count: int = 0
    library: Path | None = None
    reason: str = ""


@dataclass(frozen=True)
class ChainRule:
    """Replace each chain of element-wise nodes by one node, whose kernel is compiled.

    Parameters
    ----------
    name : str
        What counts and levels call it.
    stage : str
        The part of a level that brings it.
    """

    name: str
    stage: str

    def apply(self, model: ir.Model, provider: Provider) -> FusedChains:
        """Replace the chains of a model, or none of them.

        Parameters
        ----------
        model : onnx_ir.Model
            Modified in place.
        provider : Provider
            Where it will run.

        Warns
        -----
        KernelWarning
            There are chains and no kernel for them; the model is left as it is.
        """
        found = [(graph, find_chains(graph, provider.name)) for graph in model.graphs()]
        expressions = [chain.expression for _, chains in found for chain in chains]
        if not expressions:
            return FusedChains()
        try:
            library = build_library(expressions, provider)
        except KernelError as error:
            warnings.warn(
                f"{self.name}: {len(expressions)} chains of operators are left to ONNX Runtime, "
                f"{error}",
                KernelWarning,
                stacklevel=2,
            )
            return FusedChains(reason=str(error))
        for graph, chains in found:
            for chain in chains:
                _replace(chain, graph)
        model.opset_imports[DOMAIN] = 1
        return FusedChains(len(expressions), library)


#: The rule.
ELEMENT_WISE = ChainRule("ElementWise", "experimental")


def _replace(chain: Chain, graph: ir.Graph) -> None:
    """Put a node in the place of the last one, which comes after all that they read."""
    expression = chain.expression
    result = ir.Value(name=chain.result.name, shape=chain.result.shape, type=chain.result.type)
    node = ir.Node(
        DOMAIN,
        expression.name,
        chain.inputs,
        [ir.AttrString("expression", str(expression))],
        outputs=[result],
    )
    ir.convenience.replace_nodes_and_values(
        graph, chain.nodes[-1], chain.nodes, [node], [chain.result], [result]
    )
