"""Write the graph of a model in the DOT language."""

import dataclasses
import itertools
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping

import onnx

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._labels import (
    at_most,
    attribute_text,
    clean,
    fill,
    shorten,
    tensor_text,
    type_text,
)
from ortmeter.runtime.graphs import bodies

__all__ = ["Element", "NodeNote", "write_dot"]

# Translucent fills: readable on a light and on a dark background.
_FILLS = {
    "node": "#4c78a82e",
    "input": "#54a24b3d",
    "output": "#b279a23d",
    "initializer": "#88888833",
}
_HOT = "#e4572e"
_STANDARD_DOMAINS = {"", "ai.onnx"}
MAX_LINES = 5
MAX_TOOLTIP_LINES = 40

# The bounds on the network simplex keep the layout of 500 nodes below half a second.
_HEADER = """digraph model {
compound=true; bgcolor="transparent"; nodesep=0.2; ranksep=0.3;
nslimit=1; nslimit1=1; mclimit=0.5; fontname="Helvetica,Arial,sans-serif"; fontsize=10;
node [shape=box, fontname="Helvetica,Arial,sans-serif", fontsize=12, height=0.3,
margin="0.14,0.06"];
edge [fontname="Helvetica,Arial,sans-serif", fontsize=9, arrowsize=0.6];"""


@dataclasses.dataclass(frozen=True)
class NodeNote:
    """What a measurement adds to one node of a drawing.

    Parameters
    ----------
    text : str
        Lines added to the tooltip of the node.
    share : float, optional
        Share of a total, between 0 and 1: it colours the box, which shows it as a percentage.

    Raises
    ------
    InvalidArgumentError
        The share is not between 0 and 1.
    """

    text: str = ""
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InvalidArgumentError(
                f"The share of a node is between 0 and 1, it cannot be {self.share!r}"
            )


@dataclasses.dataclass(frozen=True)
class Element:
    """Role (node, edge, input, output, initializer or body) and tooltip of one element."""

    kind: str
    tooltip: str


def write_dot(
    graph: onnx.GraphProto, notes: Mapping[str | int, NodeNote]
) -> tuple[str, dict[str, Element]]:
    """Write a graph in DOT.

    Parameters
    ----------
    graph : onnx.GraphProto
        Graph to draw, with its inferred types.
    notes : dict
        Notes by name of node, or by index of a node of *graph*.

    Returns
    -------
    str
        The text in DOT. Every element has an attribute ``id``.
    dict
        Role and tooltip of every element, by ``id``.

    Raises
    ------
    InvalidArgumentError
        A note has a key that is neither the name nor the index of a node.
    """
    writer = _Writer(notes)
    writer.graph(graph, _Scope(ChainMap(), ChainMap(), ChainMap()), range(len(graph.node)))
    unknown = [key for key in notes if key not in writer.noted]
    if unknown:
        raise InvalidArgumentError(
            f"Notes are given for {unknown!r}: a key is the name of a node, or the index of one of "
            f"the {len(graph.node)} nodes of the main graph"
        )
    return "\n".join([_HEADER, *writer.boxes, *writer.edges, "}", ""]), writer.elements


@dataclasses.dataclass(frozen=True)
class _Scope:
    """What the names of results mean in a graph: a subgraph sees the results around it."""

    boxes: ChainMap[str, str]
    constants: ChainMap[str, str]
    types: ChainMap[str, str]

    def child(self) -> "_Scope":
        return _Scope(self.boxes.new_child(), self.constants.new_child(), self.types.new_child())

    def describe(self, name: str) -> str:
        """Write the name of a result and its type."""
        text = self.constants.get(name) or self.types.get(name, "")
        return f"{clean(name)} {text}".rstrip()


class _Writer:
    """Collects the boxes, the edges and the tooltips of a graph and of its subgraphs."""

    def __init__(self, notes: Mapping[str | int, NodeNote]) -> None:
        self.notes = notes
        self.noted: set[str | int] = set()
        self.boxes: list[str] = []
        self.edges: list[str] = []
        self.elements: dict[str, Element] = {}

    def graph(self, graph: onnx.GraphProto, scope: _Scope, indices: Iterable[int | None]) -> None:
        """Write a graph; every name is known before it is used, whatever the order of the nodes."""
        for info in (*graph.input, *graph.value_info, *graph.output):
            scope.types[info.name] = type_text(info.type)
        scope.constants.update(_constants(graph))
        for info in graph.input:
            if info.name not in scope.constants.maps[0]:
                scope.boxes[info.name] = self._result_box("input", info.name, scope)
        identifiers = [self._new("node", "") for _ in graph.node]
        for identifier, node in zip(identifiers, graph.node, strict=True):
            scope.boxes.update(dict.fromkeys(filter(None, node.output), identifier))
        for identifier, node, index in zip(identifiers, graph.node, indices, strict=False):
            self._node(identifier, node, self._note(node.name, index), scope)
        for info in graph.output:
            self._output(info.name, scope)

    def _note(self, name: str, index: int | None) -> NodeNote:
        keys = [key for key in (name, index) if key not in {"", None} and key in self.notes]
        self.noted.update(keys)
        return self.notes[keys[0]] if keys else NodeNote()

    def _node(self, identifier: str, node: onnx.NodeProto, note: NodeNote, scope: _Scope) -> None:
        self.elements[identifier] = Element("node", _node_tooltip(node, scope, note))
        fill = _FILLS["node"] if note.share is None else _hot(note.share)
        self._box(identifier, list(_node_lines(node, scope, note)), fill, "rounded,filled")
        for name in dict.fromkeys(filter(None, node.input)):
            self._edge(name, identifier, scope)
        for name, body in bodies(node):
            self._body(identifier, clean(f"{node.op_type}: {name}"), body, scope.child())

    def _body(self, owner: str, title: str, body: onnx.GraphProto, scope: _Scope) -> None:
        """Write a subgraph in a frame that a dashed edge links to its node."""
        identifier = self._new("body", title)
        first = len(self.elements)
        self.boxes.append(
            f'subgraph cluster_{identifier} {{ id="{identifier}"; style="dashed,rounded";'
        )
        self.boxes.append(f"label={_label([title])};")
        self.graph(body, scope, itertools.repeat(None))
        self.boxes.append("}")
        inside = next(
            key for key in list(self.elements)[first:] if self.elements[key].kind in _FILLS
        )
        edge = self._new("edge", title)
        self.edges.append(
            f'{owner} -> {inside} [id="{edge}", lhead="cluster_{identifier}", style=dashed];'
        )

    def _output(self, name: str, scope: _Scope) -> None:
        if name in scope.constants and name not in scope.boxes:
            scope.boxes[name] = self._result_box("initializer", name, scope)
        self._edge(name, self._result_box("output", name, scope), scope)

    def _result_box(self, kind: str, name: str, scope: _Scope) -> str:
        text = scope.describe(name).removeprefix(clean(name)).strip()
        identifier = self._new(kind, f"{kind} {scope.describe(name)}")
        self._box(identifier, [f"{kind} {clean(name)}", text], _FILLS[kind], "filled")
        return identifier

    def _box(self, identifier: str, lines: list[str], fill: str, style: str) -> None:
        attributes = f'label={_label(lines)}, style="{style}", fillcolor="{fill}"'
        self.boxes.append(f'{identifier} [id="{identifier}", {attributes}];')

    def _edge(self, name: str, target: str, scope: _Scope) -> None:
        """Write an edge; its label would repeat the box of an input or of an output."""
        source = scope.boxes.get(name)
        if source is None:
            return
        edge = self._new("edge", scope.describe(name))
        ends = {self.elements[source].kind, self.elements[target].kind}
        lines = [clean(name), scope.types.get(name, "")]
        label = _edge_label(lines) if ends == {"node"} else '""'
        self.edges.append(f'{source} -> {target} [id="{edge}", label={label}];')

    def _new(self, kind: str, tooltip: str) -> str:
        identifier = f"{kind}{len(self.elements)}"
        self.elements[identifier] = Element(kind, tooltip)
        return identifier


def _hot(share: float) -> str:
    """Colour of a share: opaque enough to be seen, translucent enough for its text."""
    return f"{_HOT}{round(255 * (0.08 + 0.6 * share)):02x}"


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor_text(tensor)
    for sparse in graph.sparse_initializer:
        dims = ",".join(map(str, sparse.dims))
        yield sparse.values.name, f"sparse [{dims}]"


def _node_lines(node: onnx.NodeProto, scope: _Scope, note: NodeNote) -> Iterator[str]:
    yield clean(node.op_type) or "(no operator)"
    if node.domain not in _STANDARD_DOMAINS:
        yield clean(node.domain)
    if note.share is not None:
        yield f"{note.share:.1%}"
    yield from at_most(MAX_LINES, fill(filter(None, map(attribute_text, node.attribute))))
    constants = [name for name in node.input if name in scope.constants and name not in scope.boxes]
    yield from at_most(MAX_LINES, map(scope.describe, dict.fromkeys(constants)))


def _node_tooltip(node: onnx.NodeProto, scope: _Scope, note: NodeNote) -> str:
    domain = "" if node.domain in _STANDARD_DOMAINS else f"{clean(node.domain)}::"
    lines = [f"{domain}{clean(node.op_type)} {clean(node.name) or '(no name)'}"]
    if note.share is not None:
        lines.append(f"share: {note.share:.1%}")
    lines += [clean(line) for line in note.text.splitlines()]
    lines += [f"input {i}: {scope.describe(name)}" for i, name in enumerate(node.input) if name]
    lines += [f"output {i}: {scope.describe(name)}" for i, name in enumerate(node.output) if name]
    lines += filter(None, map(attribute_text, node.attribute))
    return "\n".join(shorten(line, 200) for line in at_most(MAX_TOOLTIP_LINES, lines))


def _label(lines: list[str]) -> str:
    """Write the label of a box: the first line stands out, empty lines are skipped."""
    first, *others = [_escape(shorten(line)) for line in lines if line] or ["?"]
    rows = [f"<b>{first}</b>", *(f'<font point-size="9">{other}</font>' for other in others)]
    return f"<{'<br/>'.join(rows)}>"


def _edge_label(lines: list[str]) -> str:
    """Write the label of an edge, a space away from it."""
    rows = [f'&#160;{_escape(shorten(line))}<br align="left"/>' for line in lines if line]
    return f"<{''.join(rows)}>"


_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\\": "\\\\"})


def _escape(text: str) -> str:
    """Escape a text for an HTML-like label; Graphviz reads backslashes there too."""
    return text.translate(_ESCAPES)
