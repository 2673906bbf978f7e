"""A drawing of a graph: laid out, shown by a page or a notebook, saved to a file."""

import dataclasses
import functools
import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from ortmeter.errors import MissingDependencyError
from ortmeter.optional import import_optional

_KEPT_ON_TEXT = {"x", "y", "text-anchor", "font-size", "font-weight"}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Drawing of a graph.

    Parameters
    ----------
    title : str
        Title of the drawing.
    dot : str
        The graph in the DOT language.
    elements : dict of Element
        Roles and tooltips, by ``id`` in *dot*.
    description : str
        What the picture shows, in words.

    Notes
    -----
    A notebook or a page shows the picture in a box: drag to move it, Ctrl + wheel or the buttons to
    zoom, and a tooltip for every node and edge. Without scripts the picture is static. Nothing is
    downloaded.
    """

    title: str
    dot: str = dataclasses.field(repr=False)
    elements: Mapping[str, "Element"] = dataclasses.field(repr=False, compare=False)
    description: str = dataclasses.field(repr=False)

    @functools.cached_property
    def svg(self) -> str:
        """The picture, to insert in a page or to write into a file.

        It uses the text colour of the page and shrinks to the width of its container. Graphviz
        lays it out when it is read first: a MissingDependencyError says that there is none. It has
        no ``id``: several of them live on one page.
        """
        root = ET.fromstring(_run_graphviz(self.dot))  # noqa: S314 - Graphviz wrote it
        for item in root.iter():
            _adapt(item)
        for group in root.iter("g"):
            _annotate(group, self.elements)
        width = root.attrib.pop("width")
        root.attrib.pop("height")
        root.attrib |= {
            "xmlns": "http://www.w3.org/2000/svg",
            "role": "img",
            "aria-label": self.description,
            "font-family": "Helvetica,Arial,sans-serif",
            "style": f"display:block;width:100%;max-width:{width};height:auto;margin:0 auto",
        }
        return ET.tostring(root, encoding="unicode")

    def _repr_html_(self) -> str:
        import jinja2

        try:
            svg = self.svg
        except MissingDependencyError as error:  # a page keeps what it measured
            return f"<p>{html.escape(f'{self.title}: not drawn. {error}')}</p>"
        frame, script = (
            Path(__file__).with_name(name).read_text(encoding="utf-8")
            for name in ("drawing.html", "pan_zoom.js")
        )
        template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(frame)
        return template.render(title=self.title, svg=svg, script=script)


@dataclasses.dataclass(frozen=True)
class Element:
    """Role (node, edge, input, output, initializer or body) and tooltip of one element."""

    kind: str
    tooltip: str


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
    group.attrib.pop("class", None)
    if element is not None:
        group.set("class", f"ortmeter-{element.kind}")
    for title in group.findall("title"):
        if element is None:
            group.remove(title)
        else:
            title.text = element.tooltip
