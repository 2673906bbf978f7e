"""Where the kernels of a node come from, what is wrong with them, what the user swaps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator.node import Node, domain_name
from ortmeter.facts import Fact, read_facts
from ortmeter.operators.descriptions import describe
from ortmeter.operators.registry import Kernel
from ortmeter.runtime.placement import enumerate_some

KernelKey: TypeAlias = str | tuple[str, str]
Swap: TypeAlias = str | Callable[..., Any]


class NodeError(ModelError):
    """A node cannot run; the message says which one, on what and why."""


class Source(NamedTuple):
    """Where kernels come from: a name, and what returns the kernel of a node, or refuses.

    A cautious one is passed over where it is known to be wrong.
    """

    name: str
    kernel: Callable[[Node], Kernel]
    is_cautious: bool = True


class KnownError(Fact, frozen=True, kw_only=True):
    """A wrong answer of a source, for an operator of the standard domain.

    Only the types, ranks and presence of the inputs may count, not their values.
    """

    source: str
    op_type: str
    reason: str
    given: int | None = None
    missing: int | None = None
    opset_below: int | None = None
    sets: str = ""
    attributes: Mapping[str, str | int] = {}

    def applies(self, node: Node, inputs: Sequence[Any]) -> bool:
        """Check that every condition holds."""
        present = {rank for rank, value in enumerate(inputs) if value is not None}
        return (
            (self.given is None or self.given in present)
            and self.missing not in present
            and (self.opset_below is None or node.opset < self.opset_below)
            and (not self.sets or bool(node.attributes.get(self.sets)))
            and all(node.attributes.get(n, type(v)()) == v for n, v in self.attributes.items())
        )


KNOWN_ERRORS = read_facts(__package__, "known_errors.toml", KnownError)
"""Every known error: such a source is passed over, unless ``kernels`` asks for it."""


def known_errors(source: Source, node: Node) -> list[KnownError]:
    """List what is known to be wrong with the kernel of a source for a node."""
    key = ("", source.name, node.op_type) if source.is_cautious else None
    return [error for error in KNOWN_ERRORS if (node.domain, error.source, error.op_type) == key]


def raise_for(node: Node, source: str, inputs: Sequence[Any], cause: Exception) -> NoReturn:
    """Say which node failed, on what, and why; a node of a body has already said it."""
    if isinstance(cause, NodeError):
        raise cause
    raise NodeError(
        f"The {source} kernel of {node} fails on {describe(inputs)}: {cause}"
    ) from cause


_NODE = "node:"


class Swaps:
    """What the user puts in place of the sources, by operator or by node."""

    def __init__(self, kernels: Mapping[KernelKey, Swap], sources: Iterable[str]) -> None:
        self._kernels = {_checked_key(key): swap for key, swap in kernels.items()}
        self._given = dict(zip(self._kernels, kernels, strict=True))
        self._matched: set[KernelKey] = set()
        for key, swap in kernels.items():
            if not callable(swap) and swap not in (accepted := tuple(sources)):
                raise InvalidArgumentError(
                    f"kernels[{key!r}]={swap!r} is not a kernel. Accepted: a callable or "
                    + ", ".join(map(repr, accepted))
                )

    def find(self, node: Node) -> Swap | None:
        """Find what the user wants for a node: its name comes before its operator."""
        keys = (_NODE + node.label, (node.domain, node.op_type))
        found = [key for key in keys if key in self._kernels]
        self._matched.update(found)
        return self._kernels[found[0]] if found else None

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise when a key designates none of the nodes, which were all seen."""
        if unused := [self._given[key] for key in self._kernels if key not in self._matched]:
            raise InvalidArgumentError(
                f"kernels: {', '.join(map(repr, unused))} match no node of this model. "
                f"Operators: {', '.join(sorted({node.operator for node in nodes}))}. "
                f"Nodes: {enumerate_some([*dict.fromkeys(node.label for node in nodes)])}"
            )


def _checked_key(key: KernelKey) -> KernelKey:
    """Write a key in one way: ``(domain, op)`` or ``node:name``."""
    match key:
        case str() if key.startswith(_NODE):
            return key
        case str():
            return ("", key)
        case (str(domain), str(op_type)):
            return (domain_name(domain), op_type)
    raise InvalidArgumentError(
        f"kernels: {key!r} is not a key. Accepted: 'Op', ('domain', 'Op') or 'node:name'"
    )
