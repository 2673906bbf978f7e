"""Tell which nodes of the original model an optimized node replaces.

The optimizer of ONNX Runtime keeps the names of the tensors that remain, so that an optimized node
computes, from the same tensors, what the original nodes between its inputs and its outputs did.
"""

from collections.abc import Iterable

import onnx

from ortmeter.profiling.correlation import walk

__all__ = ["origins"]

#: Nodes that ONNX Runtime inserts: the same tensor, in another layout or on another device.
_COPIES = {"ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"}
#: What the names of blocked convolutions add to the name of their original output.
_BLOCKED = "_nchwc"


def origins(optimized: onnx.ModelProto, original: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Find the original nodes behind each node of the optimized graph.

    Parameters
    ----------
    optimized, original : onnx.ModelProto
        Graph that ran, and the model it was made from; nodes have names.

    Returns
    -------
    dict of str to tuple of str
        For each name of an optimized node, the names of the original nodes that it replaces, in
        the order of the original. Empty for what the optimizer inserted, or when no name tells.

    Examples
    --------
    >>> from ortmeter.runtime.loading import load_model
    >>> head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    >>> before = load_model(head + '''g (float[2,2] X, float[2,2] W) => (float[2,2] Y)
    ... { [product] Z = MatMul(X, W)  [activation] Y = Relu(Z) }''')
    >>> after = load_model(head + '''g (float[2,2] X, float[2,2] W) => (float[2,2] Y)
    ... { [fused] Y = com.microsoft.FusedGemm(X, W) }''')
    >>> origins(after, before)
    {'fused': ('product', 'activation')}
    """
    before = [found.node for found in walk(original.graph)]
    after = [found.node for found in walk(optimized.graph)]
    producer = {name: rank for rank, node in enumerate(before) for name in node.output if name}
    same = _same_tensors(after, producer)
    kept = [node for node in after if node.op_type not in _COPIES]
    targets = {node.name: _targets(node, same, producer) for node in kept}
    boundary = set().union(*targets.values()) | {t.name for t in optimized.graph.initializer}
    found = {
        name: _between(wanted, boundary - wanted, before, producer)
        for name, wanted in targets.items()
    }
    return {node.name: found.get(node.name, ()) for node in after}


def _same_tensors(nodes: Iterable[onnx.NodeProto], known: Iterable[str]) -> dict[str, str]:
    """Original name of each tensor that is a copy of an original one, or that is copied to one."""
    same: dict[str, str] = {}
    known = set(known)
    for node in nodes:
        if node.op_type in _COPIES:
            source, copy = node.input[0], node.output[0]
            if copy in known:
                same[source] = copy
            else:
                same[copy] = same.get(source, source)
    return same


def _targets(node: onnx.NodeProto, same: dict[str, str], known: dict[str, int]) -> set[str]:
    """Original tensors that a node computes."""
    names = {same.get(name, name) for name in node.output if name}
    if node.name.endswith(_BLOCKED):
        names.add(node.name.removesuffix(_BLOCKED))
    return names & known.keys()


def _between(
    targets: set[str], boundary: set[str], nodes: list[onnx.NodeProto], producer: dict[str, int]
) -> tuple[str, ...]:
    """Names of the nodes that compute the targets from what is at the boundary."""
    ranks: set[int] = set()
    pending = list(targets)
    while pending:
        rank = producer.get(pending.pop())
        if rank is not None and rank not in ranks:
            ranks.add(rank)
            pending += [name for name in nodes[rank].input if name not in boundary]
    return tuple(nodes[rank].name for rank in sorted(ranks))
