"""The kernels that the user chooses for some operators or nodes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator._node import Node, domain_name

__all__ = ["KernelKey", "Swap", "Swaps"]

KernelKey: TypeAlias = str | tuple[str, str]
Swap: TypeAlias = str | Callable[..., Any]

_NODE = "node:"


class Swaps:
    """What replaces the sources, by operator or by node.

    Parameters
    ----------
    kernels : mapping
        ``"Op"``, ``(domain, "Op")`` or ``"node:name"`` to the name of a source or a callable.
    sources : iterable of str
        Names of the sources that exist.

    Raises
    ------
    InvalidArgumentError
        A key or a value is not one of these.
    """

    def __init__(self, kernels: Mapping[KernelKey, Swap], sources: Iterable[str]) -> None:
        self._kernels = {_checked_key(key): swap for key, swap in kernels.items()}
        self._given = dict(zip(self._kernels, kernels, strict=True))
        self._matched: set[KernelKey] = set()
        self._operators: set[str] = set()
        self._labels: dict[str, None] = {}
        for key, swap in kernels.items():
            if not callable(swap) and swap not in (accepted := tuple(sources)):
                raise InvalidArgumentError(
                    f"kernels[{key!r}]={swap!r} is not a kernel. Accepted: a callable or "
                    + ", ".join(map(repr, accepted))
                )

    def find(self, node: Node) -> Swap | None:
        """Find what the user wants for a node: its name comes before its operator."""
        self._operators.add(".".join(filter(None, (node.domain, node.op_type))))
        self._labels[node.label] = None
        keys = (_NODE + node.label, (node.domain, node.op_type))
        found = [key for key in keys if key in self._kernels]
        self._matched.update(found)
        return self._kernels[found[0]] if found else None

    def check(self) -> None:
        """Raise when a key designates nothing in the nodes seen so far."""
        if unused := [self._given[key] for key in self._kernels if key not in self._matched]:
            raise InvalidArgumentError(
                f"kernels: {', '.join(map(repr, unused))} designate nothing in this model. "
                f"Operators: {', '.join(sorted(self._operators))}. "
                f"Nodes: {_shortened(list(self._labels))}"
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


def _shortened(names: list[str], limit: int = 40) -> str:
    more = f" and {len(names) - limit} others" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
