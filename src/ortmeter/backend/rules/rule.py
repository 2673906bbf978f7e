"""A rule: patterns of nodes, what replaces them, and where the replacement holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

__all__ = ["BF16", "F16", "F32", "F64", "MICROSOFT", "Fusion", "Rule"]

#: Domain of the operators that ONNX Runtime adds to the standard ones.
MICROSOFT = "com.microsoft"

F64 = ir.DataType.DOUBLE
F32 = ir.DataType.FLOAT
F16 = ir.DataType.FLOAT16
BF16 = ir.DataType.BFLOAT16


class Fusion(Protocol):
    """A pattern of nodes and what replaces it.

    Additions and multiplications match in both orders. No result that the pattern removes is used
    elsewhere, nor is an output of the graph.
    """

    @property
    def pattern(self) -> Callable[..., Any]:
        """Writes the pattern, ``pattern(op, x, y...)``, and returns the results others may use.

        Each call of a method of *op*, the name of an operator, makes a node. The other parameters
        are the inputs of the pattern.
        """

    @property
    def rewrite(self) -> Callable[..., Any]:
        """Writes the replacement, ``rewrite(op, *, x, y...)``, and returns the same results.

        It receives the values of the graph that match the inputs of the pattern and the results
        that the pattern names. It returns None when it cannot stand for them. New intermediate
        results need a shape and a type, or the rules that follow ignore them.
        """


@dataclass(frozen=True)
class Rule:
    """Fusions under one name, and where they hold.

    Parameters
    ----------
    name : str
        What counts and levels call it.
    stage : str
        The part of a level that brings it, ``default`` or ``onnxruntime``.
    fusions : tuple of Fusion
        Tried in this order at every node.
    element_types : mapping of str to set of onnx_ir.DataType
        Element types that the kernel of the replacement has, by name of provider.
    opset : int
        First opset of the standard domain where the replacement exists.

    Examples
    --------
    >>> from ortmeter.backend.rules import RULES
    >>> rule = RULES["GroupQuery"]
    >>> rule.stage, rule.opset, sorted(t.name for t in rule.element_types["cuda"])
    ('onnxruntime', 23, ['BFLOAT16', 'FLOAT16'])
    """

    name: str
    stage: str
    fusions: tuple[Fusion, ...]
    element_types: Mapping[str, frozenset[ir.DataType]]
    opset: int = 18

    def apply(self, model: ir.Model, provider: str = "cpu") -> int:
        """Replace the patterns of a model, and drop what is left unused.

        Parameters
        ----------
        model : onnx_ir.Model
            Modified in place. Values whose shape or type is unknown are left as they are.
        provider : str
            Name of a provider, ``cpu`` or ``cuda``.

        Returns
        -------
        int
            How many patterns were replaced.
        """
        accepted = self.element_types.get(provider, frozenset())
        if not accepted or model.opset_imports.get("", 0) < self.opset:
            return 0
        rules = [
            RewriteRule(fusion.pattern, fusion.rewrite, _has_kernel(accepted), name=self.name)
            for fusion in self.fusions
        ]
        count = int(RewriteRuleSet(rules, commute=True).apply_to_model(model))
        if count:
            # What is written after its pattern may be read before, and what is reused may be later.
            model.graph.sort()
            common.IdentityEliminationPass()(model)
            common.RemoveUnusedNodesPass()(model)
        return count


def _has_kernel(accepted: frozenset[ir.DataType]) -> Callable[..., bool]:
    """Condition on a match: the kernel of the replacement has the element type of the result."""

    def condition(context: Any, **_: Any) -> bool:
        return context.output_values[0].dtype in accepted

    return condition
