"""The names of a graph and the slots that hold their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from ortmeter.errors import ModelError

__all__ = ["NOTHING", "Names", "Scope"]

#: Slot of the absent inputs, which holds ``None``.
NOTHING = 0


@dataclass(frozen=True)
class Scope:
    """What the nodes of one graph share.

    Parameters
    ----------
    name : str
        Empty for the main graph, see :class:`~ortmeter.evaluator._node.Node`.
    imports : mapping of str to int
        Opset of each domain.
    bound : mapping of str to AttributeProto
        Attributes of the function around.
    is_nested : bool
        Whether unknown names come from the graph around.
    """

    name: str
    imports: Mapping[str, int]
    bound: Mapping[str, onnx.AttributeProto]
    is_nested: bool = False


@dataclass
class Names:
    """Slots of the names of one graph.

    Parameters
    ----------
    scope : Scope
        Graph that the names belong to.
    """

    scope: Scope
    slots: dict[str, int] = field(default_factory=lambda: {"": NOTHING})
    constants: dict[int, Any] = field(default_factory=dict)
    captures: list[str] = field(default_factory=list)

    def define(self, name: str) -> int:
        """Give a slot to a new result."""
        if not name:
            return NOTHING
        if name in self.slots:
            place = self.scope.name or "the graph"
            raise ModelError(f"Result {name!r} is defined twice in {place}")
        self.slots[name] = len(self.slots)
        return self.slots[name]

    def use(self, name: str, user: object) -> int:
        """Find a result, in the graph around when it is not here."""
        if name not in self.slots:
            if not self.scope.is_nested:
                raise ModelError(f"{user} needs {name!r}, which nothing before it gives")
            self.captures.append(name)
            self.define(name)
        return self.slots[name]
