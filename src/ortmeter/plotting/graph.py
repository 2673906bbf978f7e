"""Draw a model: its graph in the DOT language, laid out.

A model is untrusted input: every text taken from it goes through :func:`clean`.
"""

import contextlib
import dataclasses
import html
import math
import re
import textwrap
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx.numpy_helper
import onnx.shape_inference

from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.descriptions import describe_type
from ortmeter.plotting.axes import clean, shorten
from ortmeter.plotting.drawing import Drawing, Element
from ortmeter.runtime.graphs import NOT_INFERRED, bodies, walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model

# Translucent fills: readable on a light and on a dark background.
_FILLS = {
    "node": "#4c78a82e",
    "input": "#54a24b3d",
    "output": "#b279a23d",
    "initializer": "#88888833",
}
_HOT = "#e4572e"
_LONGEST_DIM = 20  # letters of the name of a dimension
_STANDARD_DOMAINS = {"", "ai.onnx"}
# The time of a layout grows faster than the number of nodes.
MAX_NODES = 1000
MAX_LINES = 5
MAX_VALUES = 6
MAX_LINE = 32
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
    """Measurement shown on one node of a drawing.

    Parameters
    ----------
    text : str
        Lines added to the tooltip of the node.
    share : float, optional
        Share of a total, between 0 and 1, shown as a percentage and by the colour of the box.
    """

    text: str = ""
    share: float | None = None


def draw_model(
    model: ModelLike,
    *,
    title: str | None = None,
    notes: Mapping[str, NodeNote] | None = None,
) -> Drawing:
    """Draw a model.

    A box is a node, with its operator, attributes and initializers, or an input or output of the
    graph. A subgraph is a frame, linked to its node by a dashed edge. Edges show the name of the
    result, and its type and shape if they can be inferred.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`ortmeter.runtime.loading.load_model`.
    title : str, optional
        Title of the drawing, the name of the graph by default.
    notes : dict of NodeNote, optional
        Notes by name of node. If several nodes share a name, all of them get the note.

    Returns
    -------
    Drawing
        The drawing, the same for the same model.

    Raises
    ------
    InvalidArgumentError
        A note has a key that is not a node, or the model has more than 1000 nodes.
    ModelError
        The model cannot be read.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { [abs] Y = Abs(X) }'''
    >>> draw_model(text, notes={"abs": NodeNote("0.3 ms", share=1.0)})
    Drawing(title='g')
    """
    graph = load_model(model).graph
    with contextlib.suppress(*NOT_INFERRED, RuntimeError):
        graph = onnx.shape_inference.infer_shapes(load_model(model)).graph
    operators = Counter(clean(node.op_type) for node in walk_nodes(graph.node))
    if operators.total() > MAX_NODES:
        raise InvalidArgumentError(
            f"A model of {operators.total()} nodes is not drawn. Accepted: up to {MAX_NODES} nodes"
        )
    names = {node.name for node in walk_nodes(graph.node)} - {""}
    if unknown := [name for name in notes or {} if name not in names]:
        raise InvalidArgumentError(f"Notes are given for {unknown!r}, which no node is named")
    writer = _Writer(notes or {})
    writer.graph(graph, _Scope(ChainMap(), ChainMap(), ChainMap()))
    dot = "\n".join([_HEADER, *writer.boxes, *writer.edges, "}", ""])
    title = clean(title or graph.name or "model")
    counts = [f"{count} {shorten(operator)}" for operator, count in operators.most_common(8)]
    seen = f"{title}: graph of {operators.total()} nodes ({', '.join(counts)})"
    return Drawing(title, dot, writer.elements, seen)


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

    def __init__(self, notes: Mapping[str, NodeNote]) -> None:
        self.notes = notes
        self.boxes: list[str] = []
        self.edges: list[str] = []
        self.elements: dict[str, Element] = {}

    def graph(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        """Write a graph; every name is known before it is used, whatever the order of the nodes."""
        for info in (*graph.input, *graph.value_info, *graph.output):
            scope.types[info.name] = _type_text(info.type)
        scope.constants.update(_constants(graph))
        for info in graph.input:
            if info.name not in scope.constants.maps[0]:
                scope.boxes[info.name] = self._result_box("input", info.name, scope)
        identifiers = [self._new("node", "") for _ in graph.node]
        for identifier, node in zip(identifiers, graph.node, strict=True):
            scope.boxes.update(dict.fromkeys(filter(None, node.output), identifier))
        for identifier, node in zip(identifiers, graph.node, strict=True):
            self._node(identifier, node, self.notes.get(node.name, NodeNote()), scope)
        for info in graph.output:
            self._output(info.name, scope)

    def _node(self, identifier: str, node: onnx.NodeProto, note: NodeNote, scope: _Scope) -> None:
        self.elements[identifier] = Element("node", _node_tooltip(node, scope, note))
        fill = _FILLS["node"]
        if note.share is not None:  # opaque enough to be seen, translucent enough for its text
            fill = f"{_HOT}{round(255 * (0.08 + 0.6 * note.share)):02x}"
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
        self.graph(body, scope)
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


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for tensor in graph.initializer:
        yield tensor.name, _tensor_text(tensor)
    for sparse in graph.sparse_initializer:
        dims = ", ".join(map(str, sparse.dims))
        yield sparse.values.name, f"sparse [{dims}]"


def _node_lines(node: onnx.NodeProto, scope: _Scope, note: NodeNote) -> Iterator[str]:
    yield clean(node.op_type) or "(no operator)"
    if node.domain not in _STANDARD_DOMAINS:
        yield clean(node.domain)
    if note.share is not None:
        yield f"{note.share:.1%}"
    yield from _at_most(MAX_LINES, _fill(filter(None, map(_attribute_text, node.attribute))))
    constants = [name for name in node.input if name in scope.constants and name not in scope.boxes]
    yield from _at_most(MAX_LINES, map(scope.describe, dict.fromkeys(constants)))


def _node_tooltip(node: onnx.NodeProto, scope: _Scope, note: NodeNote) -> str:
    domain = "" if node.domain in _STANDARD_DOMAINS else f"{clean(node.domain)}::"
    lines = [f"{domain}{clean(node.op_type)} {clean(node.name) or '(no name)'}"]
    if note.share is not None:
        lines.append(f"share: {note.share:.1%}")
    lines += [clean(line) for line in note.text.splitlines()]
    lines += [f"input {i}: {scope.describe(name)}" for i, name in enumerate(node.input) if name]
    lines += [f"output {i}: {scope.describe(name)}" for i, name in enumerate(node.output) if name]
    lines += filter(None, map(_attribute_text, node.attribute))
    return "\n".join(shorten(line, 200) for line in _at_most(MAX_TOOLTIP_LINES, lines))


def _label(lines: list[str]) -> str:
    """Write the label of a box: the first line stands out, empty lines are skipped."""
    first, *others = [_escape(shorten(line)) for line in lines if line] or ["?"]
    rows = [f"<b>{first}</b>", *(f'<font point-size="9">{other}</font>' for other in others)]
    return f"<{'<br/>'.join(rows)}>"


def _edge_label(lines: list[str]) -> str:
    """Write the label of an edge, a space away from it."""
    rows = [f'&#160;{_escape(shorten(line))}<br align="left"/>' for line in lines if line]
    return f"<{''.join(rows)}>"


def _escape(text: str) -> str:
    """Escape a text for an HTML-like label; Graphviz reads backslashes there too."""
    return html.escape(text, quote=False).replace("\\", "\\\\")


def _at_most(limit: int, lines: Iterable[str]) -> list[str]:
    """Keep *limit* lines; the last one counts those that are left out."""
    lines = list(lines)
    if len(lines) <= limit:
        return lines
    return [*lines[: limit - 1], f"… {len(lines) - limit + 1} more"]


def _fill(texts: Iterable[str]) -> list[str]:
    """Put several short texts on a line."""
    lines = textwrap.wrap(", ".join(texts), MAX_LINE, break_long_words=False)
    return [line.removesuffix(",") for line in lines]


def _type_text(info: onnx.TypeProto) -> str:
    """Write a type, an empty text when it is unknown."""
    if info.WhichOneof("value") is None:
        return ""
    try:
        text = clean(describe_type(info))
        return re.sub(r"[^\[\], ]+", lambda dim: shorten(dim[0], _LONGEST_DIM), text)
    except InvalidArgumentError:  # an element type that ONNX does not have
        return ""


def _tensor_text(tensor: onnx.TensorProto) -> str:
    """Write the type and shape of a constant, with its values when it has a few of them."""
    try:
        element = short_name(tensor.data_type)
    except InvalidArgumentError:
        element = f"type {tensor.data_type}"
    text = f"{element}[{', '.join(map(str, tensor.dims))}]"
    values = _values_text(tensor)
    return f"{text} = {values}" if values else text


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    """Write an attribute, ``axis=1``; an empty text for a subgraph, which is drawn."""
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    if kind in {"GRAPH", "GRAPHS"}:
        return ""
    if attribute.ref_attr_name:
        return clean(f"{attribute.name}=@{attribute.ref_attr_name}")
    match kind:
        case "TENSOR":
            value = _tensor_text(attribute.t)
        case "INT" | "FLOAT" | "STRING" | "INTS" | "FLOATS" | "STRINGS":
            value = _value_text(onnx.helper.get_attribute_value(attribute))
        case _:
            value = f"({kind.lower().replace('_', ' ')})"
    return clean(f"{attribute.name}={value}")


def _values_text(tensor: onnx.TensorProto) -> str:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if external or math.prod(tensor.dims) not in range(1, MAX_VALUES + 1):
        return ""
    try:
        values = onnx.numpy_helper.to_array(tensor).ravel().tolist()
    except (KeyError, TypeError, ValueError):  # a malformed tensor has no values to show
        return ""
    return _value_text(values if tensor.dims else values[0])


def _value_text(value: object) -> str:
    if isinstance(value, list):
        shown = ",".join(map(_value_text, value[:MAX_VALUES]))
        return f"[{shown}]" if len(value) <= MAX_VALUES else f"[{shown},…]"
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return shorten(clean(value))
    return format(value, ".4g") if isinstance(value, float) else str(value)
