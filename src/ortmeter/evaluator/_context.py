"""What the kernels of an evaluator share, and what changes from a run to the next."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from ortmeter.evaluator._kernels import Kernel
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._plan import Watch
from ortmeter.evaluator._values import Memory

__all__ = ["Callback", "Context", "user_kernel"]

Callback = Callable[[onnx.NodeProto, list[Any], list[Any]], None]


@dataclass
class Context:
    """State shared by the kernels of an evaluator.

    Parameters
    ----------
    memory : Memory
        Where values live.
    callback : callable, optional
        Called with each node that ran, its inputs and its outputs.
    library : {"numpy", "torch"}
        Library of the feeds of this run: what the functions of the user see.
    """

    memory: Memory
    callback: Callback | None = None
    library: str = "numpy"

    def show(self, value: Any) -> Any:
        """Give a value in the library of the feeds."""
        return self.memory.export(value, self.library)

    @property
    def watcher(self) -> Watch | None:
        """What sees the nodes, ``None`` when nobody looks."""
        return self._watch if self.callback is not None else None

    def _watch(self, node: Node, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        assert self.callback is not None
        count = len(node.proto.input)  # the rest is what its graphs take from around
        shown = [self.show(value) for value in inputs[:count]]
        self.callback(node.proto, shown, [self.show(value) for value in outputs])


def user_kernel(node: Node, function: Callable[..., Any], context: Context) -> Kernel:
    """Make a kernel of a function of the user."""
    hold = context.memory.hold

    def run(*inputs: Any) -> Any:
        attributes = {
            name: context.show(context.memory.hold(value)) if hasattr(value, "dtype") else value
            for name, value in node.attributes.items()
        }
        result = function(*(context.show(value) for value in inputs), **attributes)
        if isinstance(result, tuple) or (isinstance(result, list) and node.n_outputs > 1):
            return tuple(hold(value) for value in result)
        return hold(result)

    return run
