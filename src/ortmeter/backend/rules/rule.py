"""A rule: patterns of nodes, what replaces them, where it holds, and why it does not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleSet
from onnxscript.rewriter.pattern import Var

from ortmeter.dtypes import short_name
from ortmeter.operators import find_operator
from ortmeter.runtime.cuda_kernels import cuda_kernel

T = TypeVar("T")
Types = frozenset[ir.DataType]

#: Domain of the operators that ONNX Runtime adds to the standard ones.
MICROSOFT = "com.microsoft"

F64 = ir.DataType.DOUBLE
F32 = ir.DataType.FLOAT
F16 = ir.DataType.FLOAT16
BF16 = ir.DataType.BFLOAT16
HALF = frozenset({F16, BF16})
REALS = HALF | {F32, F64}
#: Opset of the graphs, hence of the patterns and of what replaces them.
OPSET = 23


class NoMatch(Exception):  # noqa: N818 - it says no, it is not an error
    """Nodes match a pattern, and its replacement would not stand for them: here is why."""


def require(holds: object, reason: str) -> None:
    """Refuse a match, with its reason, unless a condition holds."""
    if not holds:
        raise NoMatch(reason)


def known(found: T | None, reason: str) -> T:
    """Refuse a match, with its reason, when what it needs is not known."""
    if found is None:
        raise NoMatch(reason)
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

        It raises `NoMatch` with the reason when the replacement would compute something else, and
        returns None when the nodes only look alike: that is not worth a word. New intermediate
        results need a shape and a type, or the rules that follow ignore them.
        """


@dataclass(frozen=True)
class Refusal:
    """A *result* that a rule would have computed in another way, and why it does not."""

    rule: str
    result: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.result}: {self.reason}"


@dataclass(frozen=True)
class Rule:
    """Fusions under the name that counts and levels know, tried in this order at every node.

    Those pay as measured on CPU; *on_cuda* has the others that pay on CUDA, as its kernels promise:
    nobody measured. They hold where the provider has a *kernel* for the operator that they write,
    or that they prepare for the rules that follow.
    """

    name: str
    fusions: tuple[Fusion, ...]
    kernel: str = ""
    on_cuda: tuple[Fusion, ...] = ()

    def apply(
        self, model: ir.Model, provider: str = "cpu", refusals: list[Refusal] | None = None
    ) -> int:
        """Replace the patterns of a model and drop what is left unused; count them."""
        fusions = (self.on_cuda if provider == "cuda" else ()) or self.fusions
        refused: dict[ir.Value, str] = {}
        rules = [self._rewriter(fusion, provider, refused) for fusion in fusions]
        count = int(RewriteRuleSet(rules, commute=True).apply_to_model(model))
        if count:
            # What is written after its pattern may be read before.
            model.graph.sort()
            common.IdentityEliminationPass()(model)
            common.CommonSubexpressionEliminationPass()(model)
            common.RemoveUnusedNodesPass()(model)
        if refusals is not None:
            refusals += [Refusal(self.name, str(at.name), why) for at, why in refused.items()]
        return count

    def _rewriter(self, fusion: Fusion, provider: str, refused: dict[ir.Value, str]) -> RewriteRule:
        """Make a rule of onnxscript that keeps the reasons of its failures."""
        place: list[ir.Value] = []
        accepted = kernel_types(self.kernel, provider)

        def check(context: MatchContext, **_: Any) -> MatchResult:
            place[:] = context.output_values[:1]
            found = place[0].dtype
            # truth values are those of a mask
            if found in accepted or (accepted and found is ir.DataType.BOOL):
                return MatchResult()
            if found is not None and found.is_floating_point():
                where = f"for {found.name.lower()} on {provider} at opset {OPSET}"
                why = f"no kernel of {self.kernel} {where}: {names(accepted) or 'none'}"
                refused.setdefault(place[0], why)
            return MatchResult().fail("no kernel")

        def rewrite(op: Any, **values: Any) -> Any:
            try:
                replacement = fusion.rewrite(op, **values)
            except NoMatch as refusal:
                refused.setdefault(place[0], str(refusal))
                return None
            if replacement is not None:
                refused.pop(place[0], None)
            return replacement

        return RewriteRule(fusion.pattern, rewrite, check, name=self.name)


def names(types: Types) -> str:
    """List types as a user reads them."""
    return ", ".join(sorted(each.name.lower() for each in types))


def kernel_types(operator: str, provider: str) -> Types:
    """List the real types for which a provider has a kernel of an operator."""
    domain, _, op_type = operator.rpartition(".")
    if not operator or provider != "cuda":
        types = find_operator(op_type, domain).cpu_types.split()
        return frozenset(t for t in REALS if not types or short_name(int(t)) in types)
    opset = 1 if domain else OPSET
    return frozenset(t for t in REALS if cuda_kernel(op_type, domain, opset=opset, dtype=int(t)))
