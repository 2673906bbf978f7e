"""Optimisation levels: which rewriting rules a graph goes through.

``none``
    The graph as it was exported.
``default``
    Constants are folded and patterns become operators of the ONNX standard.
``default+onnxruntime``
    Then patterns become kernels of the domain ``com.microsoft``.

``-Rule`` after any of them leaves a rule out: ``default+onnxruntime-GroupQuery``.
"""

import re
from dataclasses import dataclass

import onnx_ir as ir
import onnxscript.optimizer

from ortmeter.backend._noise import quiet
from ortmeter.backend.rules import RULES, Rule
from ortmeter.errors import InvalidArgumentError
from ortmeter.providers import Provider

__all__ = ["LEVELS", "Level", "apply_level", "parse_level"]

#: Levels, from the least to the most, with the stages of rules that they go through.
LEVELS = {
    "none": (),
    "default": ("default",),
    "default+onnxruntime": ("default", "onnxruntime"),
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
        known = [rule.name for rule in _rules(self.name)]
        unknown = sorted(self.without.difference(known))
        if unknown:
            raise InvalidArgumentError(
                f"Level {str(self)!r} leaves out {', '.join(unknown)}, which {self.name!r} does "
                f"not have. Its rules: {', '.join(known) or 'none'}"
            )

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules of the level, in the order they are applied."""
        return tuple(rule for rule in _rules(self.name) if rule.name not in self.without)

    def __str__(self) -> str:
        return "".join([self.name, *(f"-{rule}" for rule in sorted(self.without))])


def _rules(name: str) -> list[Rule]:
    return [rule for rule in RULES.values() if rule.stage in LEVELS[name]]


def parse_level(text: str) -> Level:
    """Read an optimisation level.

    Parameters
    ----------
    text : str
        ``none``, ``default`` or ``default+onnxruntime``, followed by ``-Rule`` for each rule to
        leave out.

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


def apply_level(model: ir.Model, level: Level, *, provider: str = "cpu") -> dict[str, int]:
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
    dict of str to int
        How many times each rule was applied. Those that did not find their pattern are absent.

    Raises
    ------
    InvalidArgumentError
        The provider is not known.

    Examples
    --------
    >>> from ortmeter.loading import load_model
    >>> text = '''<ir_version: 10, opset_import: ["": 23]>
    ... g (float[2, 4] X) => (float[2, 4] Y) { S = Sigmoid(X)  Y = Mul(X, S) }'''
    >>> model = ir.from_proto(load_model(text))
    >>> apply_level(model, parse_level("default+onnxruntime"))
    {'Silu': 1}
    >>> [node.op_type for node in model.graph]
    ['QuickGelu']
    """
    device = Provider.parse(provider).name
    if not LEVELS[level.name]:
        return {}
    with quiet():
        _simplify(model)
        counts = {rule.name: rule.apply(model, device) for rule in level.rules}
        _simplify(model)
    return {name: count for name, count in counts.items() if count}


def _simplify(model: ir.Model) -> None:
    """Fold the constants, infer the shapes, drop what is repeated or unused."""
    onnxscript.optimizer.optimize_ir(
        model, input_size_limit=_FOLDING_LIMIT, output_size_limit=_FOLDING_LIMIT
    )
