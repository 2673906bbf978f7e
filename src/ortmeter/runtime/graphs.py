"""Nodes of a graph and of the graphs inside it."""

from collections.abc import Iterable, Iterator

import onnx


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """List the graphs that a node holds, but for empty ones, with the name of their attribute."""
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            if body.node or body.output:
                yield attribute.name, body


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """List nodes in order, those of a body after the node that holds it."""
    for node in nodes:
        yield node
        for _, body in bodies(node):
            yield from walk_nodes(body.node)
