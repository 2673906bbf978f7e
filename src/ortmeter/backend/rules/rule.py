"""A rule: patterns of nodes, what replaces them, where it holds, and why it does not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleSet
from onnxscript.rewriter.pattern import Var

T = TypeVar("T")
Types = frozenset[ir.DataType]

#: Domain of the operators that ONNX Runtime adds to the standard ones.
MICROSOFT = "com.microsoft"

F64 = ir.DataType.DOUBLE
F32 = ir.DataType.FLOAT
F16 = ir.DataType.FLOAT16
BF16 = ir.DataType.BFLOAT16


class Refused(Exception):  # noqa: N818 - it says no, it is not an error
    """Nodes match a pattern, and its replacement would not stand for them: here is why."""


def require(holds: object, reason: str) -> None:
    """Refuse a match, with its reason, unless a condition holds."""
    if not holds:
        raise Refused(reason)


def known(found: T | None, reason: str) -> T:
    """Refuse a match, with its reason, when what it needs is not known."""
    if found is None:
        raise Refused(reason)
    return found


def optional(name: str) -> Any:
    """Input of a pattern that a node may not have."""
    return Var(name, can_match_none=True)


class Fusion(Protocol):
    """A pattern of nodes and what replaces it.

    Additions and multiplications match in both orders. No result that the pattern removes is used
    elsewhere, nor is an output of the graph.
    """

    @property
    def pattern(self) -> Callable[..., Any]:
        """Writes the pattern, ``pattern(op, x, y...)``, and returns the results others may use."""

    @property
    def rewrite(self) -> Callable[..., Any]:
        """Checks the match and writes its replacement, ``rewrite(op, *, x, y...)``.

        It raises `Refused` with the reason when the replacement would compute something else, and
        returns None when the nodes only look alike: that is not worth a word. New intermediate
        results need a shape and a type, or the rules that follow ignore them.
        """


@dataclass(frozen=True)
class Refusal:
    """A place where the pattern of a rule is and the rule does not apply.

    Parameters
    ----------
    rule : str
        Name of the rule.
    result : str
        The result that it would have computed in another way.
    reason : str
        Why it does not.

    Examples
    --------
    >>> print(Refusal("GroupQuery", "attention", "32 positions: it takes 512 to be worth it"))
    GroupQuery at attention: 32 positions: it takes 512 to be worth it
    """

    rule: str
    result: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.result}: {self.reason}"


@dataclass(frozen=True)
class Rule:
    """Fusions under the name that counts and levels know, tried in this order at every node.

    They hold for the element types that the kernel of the replacement has on each provider, from
    the first opset where it exists.
    """

    name: str
    fusions: tuple[Fusion, ...]
    element_types: Mapping[str, Types]
    opset: int = 18
    #: Providers where nothing was measured: ONNX Runtime may do as well by itself.
    unmeasured: frozenset[str] = frozenset()

    def apply(
        self, model: ir.Model, provider: str = "cpu", refusals: list[Refusal] | None = None
    ) -> int:
        """Replace the patterns of a model and drop what is left unused; count them."""
        accepted = self.element_types.get(provider, frozenset())
        if not accepted or model.opset_imports.get("", 0) < self.opset:
            return 0
        refused: dict[ir.Value, str] = {}
        rules = [self._rewriter(fusion, accepted, provider, refused) for fusion in self.fusions]
        count = int(RewriteRuleSet(rules, commute=True).apply_to_model(model))
        if count:
            # What is written after its pattern may be read before, and what is reused may be later.
            model.graph.sort()
            common.IdentityEliminationPass()(model)
            common.RemoveUnusedNodesPass()(model)
        if refusals is not None:
            refusals += [Refusal(self.name, str(at.name), why) for at, why in refused.items()]
        return count

    def _rewriter(
        self, fusion: Fusion, accepted: Types, provider: str, refused: dict[ir.Value, str]
    ) -> RewriteRule:
        """Make a rule of onnxscript that keeps the reasons of its failures."""
        place: list[ir.Value] = []

        def check(context: MatchContext, **_: Any) -> MatchResult:
            place[:] = context.output_values[:1]
            found = place[0].dtype
            if found in accepted:
                return MatchResult()
            if found is not None and found.is_floating_point():
                names = ", ".join(sorted(each.name.lower() for each in accepted))
                refused.setdefault(
                    place[0], f"no kernel for {found.name.lower()} on {provider}: {names}"
                )
            return MatchResult().fail("no kernel")

        def rewrite(op: Any, **values: Any) -> Any:
            try:
                replacement = fusion.rewrite(op, **values)
            except Refused as refusal:
                refused.setdefault(place[0], str(refusal))
                return None
            if replacement is not None:
                refused.pop(place[0], None)
            return replacement

        return RewriteRule(fusion.pattern, rewrite, check, name=self.name)
