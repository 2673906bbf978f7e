"""Which outputs of a graph ONNX Runtime computes, and which ones torch makes from them.

ONNX has no views: an output that shares the memory of an input or of another output, or that is a
size, is made again by torch, after the run, from what the run computed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from ortmeter.backend._internals import example_value
from ortmeter.backend.errors import UnsupportedGraphError

__all__ = ["OutputPlan", "plan_outputs"]

# fmt: off
_VIEWS = frozenset({
    "T", "__getitem__", "alias", "as_strided", "chunk", "detach", "diagonal", "expand",
    "expand_as", "getitem", "mT", "movedim", "narrow", "permute", "select", "slice", "split",
    "squeeze", "swapaxes", "swapdims", "t", "transpose", "unbind", "unflatten", "unfold",
    "unsqueeze", "view", "view_as",
    # the tensor itself, or a view of it, when there is nothing to do
    "atleast_1d", "atleast_2d", "atleast_3d", "bfloat16", "bool", "broadcast_to", "contiguous",
    "cpu", "cuda", "double", "flatten", "float", "half", "int", "long", "ravel", "reshape", "to",
    "type", "type_as",
})
_IN_PLACE = frozenset({
    "iadd", "iand", "ifloordiv", "imul", "ior", "ipow", "isub", "itruediv", "ixor",
})
# fmt: on


@dataclass(frozen=True)
class OutputPlan:
    """How the outputs of a graph are made.

    Parameters
    ----------
    computed : tuple of Node
        Tensors that ONNX Runtime computes.
    positions : tuple of int or None
        For each output, its rank among those computed; None for what torch makes or for a
        constant.
    made : callable or None
        ``made(*inputs, *computed)`` returns the outputs that torch makes, in order.
    made_positions : tuple of int
        Where these are among the outputs.
    constants : tuple
        For each output, its value when it is a constant, else None.
    """

    computed: tuple[Node, ...]
    positions: tuple[int | None, ...]
    made: Callable[..., Sequence[Any]] | None
    made_positions: tuple[int, ...]
    constants: tuple[Any, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the outputs are what ONNX Runtime computes, in order."""
        return self.positions == tuple(range(len(self.computed)))

    def collect(self, inputs: Sequence[Any], computed: Sequence[torch.Tensor]) -> list[Any]:
        """Put the outputs in order."""
        outputs = list(self.constants)
        for i, position in enumerate(self.positions):
            if position is not None:
                outputs[i] = computed[position]
        if self.made is not None:
            values = self.made(*inputs, *computed)
            for i, value in zip(self.made_positions, values, strict=True):
                outputs[i] = value
        return outputs


def plan_outputs(module: GraphModule) -> OutputPlan:
    """Decide how the outputs of a graph are made.

    Parameters
    ----------
    module : GraphModule
        A graph of dynamo.

    Raises
    ------
    UnsupportedGraphError
        An output shares memory in a way that torch cannot make again from what is computed.
    """
    returned: list[Any] = list(cast("Iterable[Any]", module.graph.output_node().args[0]))
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    nodes = list(dict.fromkeys(value for value in returned if isinstance(value, Node)))
    shared = _shared_storages(dict.fromkeys([*inputs, *nodes]))
    sources = [_root(n) if _storages(n) & shared else n for n in nodes if _storages(n)]
    computed = tuple(dict.fromkeys(node for node in sources if node.op != "placeholder"))
    _refuse_shared(computed, inputs)
    made = {
        i: value
        for i, value in enumerate(returned)
        if isinstance(value, Node) and value not in computed
    }
    return OutputPlan(
        computed,
        tuple(computed.index(v) if v in computed else None for v in returned),
        _maker(module, [*inputs, *computed], list(made.values())) if made else None,
        tuple(made),
        tuple(None if isinstance(value, Node) else value for value in returned),
    )


def _storages(value: Any) -> set[int]:
    """Memory that a value shows; a node that splits a tensor returns several."""
    if not isinstance(value, Node):
        return set()
    tensors = [v for v in tree_leaves(example_value(value)) if isinstance(v, torch.Tensor)]
    # Storages of torch are objects with an identity, which the example values keep alive.
    return {id(tensor.untyped_storage()) for tensor in tensors}


def _shared_storages(nodes: Iterable[Node]) -> set[int]:
    counts = Counter(storage for node in nodes for storage in _storages(node))
    return {storage for storage, count in counts.items() if count > 1}


def _root(node: Node) -> Node:
    """Follow views back to the tensor whose memory they show."""
    while node.op != "placeholder" and (_is_view(node) or _is_in_place(node)):
        node = _first_argument(node)
    if node.op != "placeholder" and not example_value(node).is_contiguous():
        raise UnsupportedGraphError(
            f"{_name(node)}: an output is a view of its result, which is not contiguous in torch"
        )
    return node


def _refuse_shared(computed: Iterable[Node], inputs: Iterable[Node]) -> None:
    """Refuse results whose memory is that of an input or of another result."""
    taken = {storage for node in inputs for storage in _storages(node)}
    for node in computed:
        if _storages(node) & taken:
            raise UnsupportedGraphError(f"{_name(node)}: an output shares memory through it")
        taken |= _storages(node)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _first_argument(node: Node) -> Node:
    return cast("Node", node.args[0])


def _is_view(node: Node) -> bool:
    if _name(node) not in _VIEWS or not _storages(node):
        return False
    return bool(node.args) and _storages(node) <= _storages(node.args[0])


def _is_in_place(node: Node) -> bool:
    """Tell an operator whose result is its first argument, written over."""
    name = _name(node)
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return in_place and bool(node.args) and _storages(node) == _storages(node.args[0]) != set()


def _maker(module: GraphModule, given: Iterable[Node], wanted: Iterable[Node]) -> GraphModule:
    """Copy the nodes between what is given and what is wanted into a graph of their own."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in given}

    def copy(node: Node) -> Node:
        if node not in copies:
            if _is_in_place(node):
                copies[node] = copy(_first_argument(node))
            elif _is_view(node) or not _storages(node):
                copies[node] = graph.node_copy(node, copy)
            else:
                raise UnsupportedGraphError(
                    f"{_name(node)}: an output follows from its result, which is not an output"
                )
        return copies[node]

    graph.output(tuple(copy(node) for node in wanted))
    return GraphModule(module, graph)
