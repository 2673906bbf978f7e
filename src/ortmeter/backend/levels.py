"""Optimisation levels: which rewriting rules a graph goes through.

``none``
    The graph as it was exported.
``default``
    Constants are folded and patterns become operators of the ONNX standard.
``default+onnxruntime``
    Then patterns become kernels of the domain ``com.microsoft``.
``default+onnxruntime+experimental``
    Then chains of element-wise operators become kernels that are compiled on this machine.

``-Rule`` after any of them leaves a rule out: ``default+onnxruntime-GroupQuery``.
"""

import re
from dataclasses import dataclass, field

import onnx_ir as ir
import onnxscript.optimizer

from ortmeter.backend.errors import quiet
from ortmeter.backend.kernels.chains import ELEMENT_WISE, ChainRule, FusedChains
from ortmeter.backend.rules import DEFAULT, ONNXRUNTIME, Refusal, Rule
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider

__all__ = ["LEVELS", "Level", "Optimized", "optimize_model", "parse_level"]

#: Levels, from the least to the most, with the rules that they go through, in this order.
LEVELS: dict[str, tuple[Rule | ChainRule, ...]] = {
    "none": (),
    "default": DEFAULT,
    "default+onnxruntime": (*DEFAULT, *ONNXRUNTIME),
    "default+onnxruntime+experimental": (*DEFAULT, *ONNXRUNTIME, ELEMENT_WISE),
}
# Masks and tables of angles fold well below; big weights are inputs at this point.
_FOLDING_LIMIT = 2**22


@dataclass(frozen=True)
class Level:
    """An optimisation level.

    Parameters
    ----------
    name : str
        One of :data:`~ortmeter.backend.LEVELS`.
    without : frozenset of str
        Names of the rules that are left out.

    Raises
    ------
    InvalidArgumentError
        There is no such level, or it has no such rule.

    Examples
    --------
    >>> level = Level("default", frozenset({"Rotary", "CausalMask"}))
    >>> str(level), "RMSNorm" in [rule.name for rule in level.rules]
    ('default-CausalMask-Rotary', True)
    """

    name: str
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.name not in LEVELS:
            raise InvalidArgumentError(
                f"Level {str(self)!r} is not known. Accepted: {', '.join(LEVELS)}, "
                "each with -Rule to leave a rule out"
            )
        known = [rule.name for rule in LEVELS[self.name]]
        unknown = sorted(self.without.difference(known))
        if unknown:
            raise InvalidArgumentError(
                f"Level {str(self)!r} leaves out {', '.join(unknown)}, which {self.name!r} does "
                f"not have. Its rules: {', '.join(known) or 'none'}"
            )

    @property
    def rules(self) -> tuple[Rule | ChainRule, ...]:
        """Rules of the level, in the order they are applied."""
        return tuple(rule for rule in LEVELS[self.name] if rule.name not in self.without)

    def __str__(self) -> str:
        return "".join([self.name, *(f"-{rule}" for rule in sorted(self.without))])


def parse_level(text: str) -> Level:
    """Read an optimisation level.

    Parameters
    ----------
    text : str
        ``none``, ``default``, ``default+onnxruntime`` or ``default+onnxruntime+experimental``,
        followed by ``-Rule`` for each rule to leave out.

    Returns
    -------
    Level
        Its text is canonical: rules that are left out come at the end, in alphabetical order.

    Raises
    ------
    InvalidArgumentError
        There is no such level, or it has no such rule.

    Examples
    --------
    >>> str(parse_level("default-CausalMask+onnxruntime"))
    'default+onnxruntime-CausalMask'
    """
    name, *rest = re.split(r"(?=[+-])", text)
    stages = [part for part in rest if part.startswith("+")]
    without = frozenset(part[1:] for part in rest if part.startswith("-"))
    return Level("".join([name, *stages]), without)


@dataclass(frozen=True)
class Optimized:
    """What was done to a model.

    Parameters
    ----------
    fusions : dict of str to int
        How many times each rule was applied. Those that did not find their pattern are absent.
    refusals : tuple of Refusal
        Where the pattern of a rule is and the rule does not apply, and why.
    kernels : FusedChains
        What became of the chains of element-wise operators: ``kernels.library`` is what a session
        takes as ``custom_ops``.
    """

    fusions: dict[str, int] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    kernels: FusedChains = field(default_factory=FusedChains)


def optimize_model(model: ir.Model, level: Level, *, provider: str = "cpu") -> Optimized:
    """Optimise a model.

    Parameters
    ----------
    model : onnx_ir.Model
        Modified in place. What must not be folded nor compared, the big weights, must be inputs
        without a value.
    level : Level
        Which rules to apply; ``none`` changes nothing.
    provider : str
        Where it will run, ``cpu``, ``cuda`` or ``cuda:1``: kernels do not have the same types.

    Returns
    -------
    Optimized
        Counts of the rules, why they did not apply elsewhere, the library of compiled kernels.

    Raises
    ------
    InvalidArgumentError
        The provider is not known.

    Warns
    -----
    KernelWarning
        Kernels cannot be compiled here.

    Examples
    --------
    >>> from ortmeter.runtime.loading import load_model
    >>> text = '''<ir_version: 10, opset_import: ["": 23]>
    ... g (float[2, 4] X, float[1, 4] R, float[4] G) => (float[2, 4] Y) {
    ...     T = Add(X, R)  Y = LayerNormalization(T, G) }'''
    >>> model = ir.from_proto(load_model(text))
    >>> level = parse_level("default+onnxruntime")
    >>> print(*optimize_model(model, level, provider="cuda").refusals)
    SkipLayerNorm at Y: the residual is broadcast
    """
    device = Provider.parse(provider)
    if not LEVELS[level.name]:
        return Optimized()
    refusals: list[Refusal] = []
    rules = [rule for rule in level.rules if isinstance(rule, Rule)]
    with quiet():
        _simplify(model)
        counts = {rule.name: rule.apply(model, device.name, refusals) for rule in rules}
        _simplify(model)
    # After what ONNX Runtime has kernels for, and outside of what is quiet: it may warn.
    kernels = ELEMENT_WISE.apply(model, device) if ELEMENT_WISE in level.rules else FusedChains()
    counts[ELEMENT_WISE.name] = kernels.count
    done = {name: count for name, count in counts.items() if count}
    return Optimized(done, tuple(refusals), kernels)


def _simplify(model: ir.Model) -> None:
    """Fold the constants, infer the shapes, drop what is repeated or unused."""
    onnxscript.optimizer.optimize_ir(
        model, input_size_limit=_FOLDING_LIMIT, output_size_limit=_FOLDING_LIMIT
    )
