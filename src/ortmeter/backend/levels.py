"""Optimization levels and their rewriting rules.

``none``
    The exported graph.
``default``
    Constants are folded and patterns become operators of the ONNX standard.
``default+onnxruntime``
    Then patterns become kernels of the domain ``com.microsoft``.

``-Rule`` after a level disables a rule: ``default+onnxruntime-GroupQuery``.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import onnxscript.optimizer
from onnxscript import rewriter
from onnxscript.rewriter._pattern_ir import Constant

from ortmeter.backend.corrections import bound_clips
from ortmeter.backend.errors import quiet
from ortmeter.backend.rules import DEFAULT, ONNXRUNTIME, Refusal, Rule
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider

__all__ = ["LEVELS"]

#: Levels, from the least to the most, with the rules that they go through, in this order.
LEVELS: dict[str, tuple[Rule, ...]] = {
    "none": (),
    "default": DEFAULT,
    "default+onnxruntime": (*DEFAULT, *ONNXRUNTIME),
}
# Masks and tables of angles fold well below; big weights are inputs at this point.
_FOLDING_LIMIT = 2**22


@dataclass(frozen=True)
class Level:
    """An optimisation level, without some of its rules."""

    name: str
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.name not in LEVELS:
            raise InvalidArgumentError(
                f"Level {str(self)!r} is not known. Accepted: {', '.join(LEVELS)}, "
                "each optionally followed by -Rule to disable a rule"
            )
        known = [rule.name for rule in LEVELS[self.name]]
        unknown = sorted(self.without.difference(known))
        if unknown:
            raise InvalidArgumentError(
                f"Level {str(self)!r} disables {', '.join(unknown)}, which {self.name!r} does "
                f"not have. Its rules: {', '.join(known) or 'none'}"
            )

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules of the level, in the order they are applied."""
        return tuple(rule for rule in LEVELS[self.name] if rule.name not in self.without)

    def __str__(self) -> str:
        return "".join([self.name, *(f"-{rule}" for rule in sorted(self.without))])


def parse_level(text: str) -> Level:
    """Read a level and, after it, ``-Rule`` for each rule to leave out."""
    name, *rest = re.split(r"(?=[+-])", text)
    stages = [part for part in rest if part.startswith("+")]
    without = frozenset(part[1:] for part in rest if part.startswith("-"))
    return Level("".join([name, *stages]), without)


def optimize_model(
    model: ir.Model, level: Level, *, provider: str = "cpu"
) -> tuple[dict[str, int], list[Refusal]]:
    """Apply the rules of a level to a model, in place, for the kernels of a provider.

    Returns how often each rule was applied, and where one was not. What must not be folded nor
    compared, the big weights, must be inputs without a value.
    """
    refusals: list[Refusal] = []
    if not LEVELS[level.name]:
        return {}, refusals
    device = Provider.parse(provider).name
    with quiet():
        _simplify(model)
        counts = {rule.name: rule.apply(model, device, refusals) for rule in level.rules}
        _simplify(model)
    bound_clips(model)
    return {name: count for name, count in counts.items() if count}, refusals


def _simplify(model: ir.Model) -> None:
    """Fold the constants, infer the shapes, drop what is repeated or unused."""
    with _exact_rules():
        onnxscript.optimizer.optimize_ir(
            model, input_size_limit=_FOLDING_LIMIT, output_size_limit=_FOLDING_LIMIT
        )
    _register_constants(model.graph)


def _register_constants(graph: ir.Graph) -> None:
    """Give a name of its own to each constant: onnxscript names two bounds of a tensor alike."""
    for node in graph:
        for rank, value in enumerate(node.inputs):
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if graph.initializers.get(value.name or "") is not value:
                value.name = f"{node.outputs[0].name}.{rank}"
                graph.register_initializer(value)


@contextmanager
def _exact_rules() -> Iterator[None]:
    """Compare constants exactly: onnxscript takes 1e-9 for the 0 of ``x + 0``, 1.000001 for 1.

    ``quiet`` lets one thread in. The names are not those of a documented interface.
    """
    patterns = [rule._target_pattern for rule in rewriter._DEFAULT_REWRITE_RULES]  # noqa: SLF001
    values = [value for pattern in patterns for node in pattern for value in node.inputs]
    with ExitStack() as stack:
        for constant in (value for value in values if isinstance(value, Constant)):
            for limit in ("_rel_tol", "_abs_tol"):
                stack.callback(setattr, constant, limit, getattr(constant, limit))
                setattr(constant, limit, 0.0)
        yield
