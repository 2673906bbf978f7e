"""A drawing of a graph: laid out, shown by a page or a notebook, saved to a file."""

import dataclasses
import html
import importlib.resources
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from ortmeter.optional import import_optional

_KEPT_ON_TEXT = {"x", "y", "text-anchor", "font-size", "font-weight"}

# Colours are those of the page; grey lines and the tooltip are readable on any of them.
_FRAME = """<div class="ortmeter-drawing" style="position:relative;margin:1em 0">
<div style="display:flex;flex-wrap:wrap;gap:.5em;align-items:center;margin-bottom:.3em">
<span style="flex:1;overflow-wrap:anywhere">{title}</span>
<span class="ortmeter-tools" hidden>{buttons}</span></div>
<div class="ortmeter-view" tabindex="0" role="group" aria-label="{title}. {help}" \
style="max-height:60vh;overflow:auto;box-sizing:border-box;border:1px solid #8888;\
border-radius:4px">{svg}</div>
<div class="ortmeter-tip" hidden style="position:absolute;z-index:9;pointer-events:none;\
max-width:100%;box-sizing:border-box;padding:.3em .6em;border:1px solid #888;border-radius:4px;\
background:#1f2328;color:#fff;font:13px/1.4 sans-serif;white-space:pre-wrap;\
overflow-wrap:anywhere"></div>
<script>{script}</script>
</div>"""
_HELP = "Drag or use the arrow keys to move, Ctrl and the wheel or + and - to zoom, 0 to reset."
_BUTTONS = {
    "+": "Zoom in",
    "-": "Zoom out",
    "fit": "Fit the whole graph",
    "reset": "Reset the view",
}
_BUTTON = """<button type="button" data-action="{action}" title="{label}" aria-label="{label}" \
style="min-width:2.2em;min-height:2em;margin-left:.3em;padding:0 .5em;color:inherit;\
background:none;border:1px solid #8888;border-radius:4px;cursor:pointer">{action}</button>"""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Drawing of a graph.

    Parameters
    ----------
    title : str
        Title of the drawing.
    dot : str
        The graph in the DOT language.
    svg : str
        The picture, to insert in a page or to write into a file: it uses the text colour of the
        page and shrinks to the width of its container.

    Notes
    -----
    A notebook or a page shows the picture in a box: drag to move it, Ctrl + wheel or the buttons to
    zoom, and a tooltip for every node and edge. Without scripts the picture is static. Nothing is
    downloaded.
    """

    title: str
    dot: str = dataclasses.field(repr=False)
    svg: str = dataclasses.field(repr=False)

    def _repr_html_(self) -> str:
        buttons = [_BUTTON.format(action=key, label=label) for key, label in _BUTTONS.items()]
        script = importlib.resources.files(__package__).joinpath("pan_zoom.js")
        return _FRAME.format(
            title=html.escape(self.title),
            help=_HELP,
            buttons="".join(buttons),
            svg=self.svg,
            script=script.read_text(encoding="utf-8"),
        )


@dataclasses.dataclass(frozen=True)
class Element:
    """Role (node, edge, input, output, initializer or body) and tooltip of one element."""

    kind: str
    tooltip: str


def lay_out(dot: str, elements: Mapping[str, Element], description: str) -> str:
    """Lay out a graph in DOT, with the role and the tooltip of its elements by ``id``.

    The SVG takes the text colour of the page, the width of its container up to its own, and has no
    ``id``: several of them live on one page.
    """
    root = ET.fromstring(_run_graphviz(dot))  # noqa: S314 - Graphviz wrote it, not the user
    for item in root.iter():
        _adapt(item)
    for group in root.iter("g"):
        _annotate(group, elements)
    width = root.attrib.pop("width")
    root.attrib.pop("height")
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "role": "img",
        "aria-label": description,
        "font-family": "Helvetica,Arial,sans-serif",
        "style": f"display:block;width:100%;max-width:{width};height:auto;margin:0 auto",
    }
    return ET.tostring(root, encoding="unicode")


def _run_graphviz(dot: str) -> str:
    pygraphviz = import_optional("pygraphviz", "draw")
    graph = pygraphviz.AGraph(string=dot)
    try:
        return str(graph.draw(format="svg", prog="dot"), "utf-8")
    finally:
        graph.close()


def _adapt(item: ET.Element) -> None:
    """Remove namespaces, inherit the colour and the font."""
    item.tag = re.sub(r"^{.*}", "", item.tag)
    for name in ("fill", "stroke"):
        if item.get(name) == "black":
            item.set(name, "currentColor")
    if item.tag == "text":
        item.attrib = {k: v for k, v in item.attrib.items() if k in _KEPT_ON_TEXT}
        item.set("fill", "currentColor")


def _annotate(group: ET.Element, elements: Mapping[str, Element]) -> None:
    """Replace the title that Graphviz wrote by the tooltip, the identifier by the role."""
    element = elements.get(group.attrib.pop("id", ""))
    title = group.find("title")
    if element is None:
        group.attrib.pop("class", None)
    else:
        group.set("class", f"ortmeter-{element.kind}")
    if title is not None:
        if element is None:
            group.remove(title)
        else:
            title.text = element.tooltip
