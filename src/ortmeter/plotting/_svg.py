"""Lay out a DOT text and make the SVG fit for a page."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from ortmeter.optional import import_optional
from ortmeter.plotting._dot import Element

__all__ = ["lay_out"]

_KEPT_ON_TEXT = {"x", "y", "text-anchor", "font-size", "font-weight"}


def lay_out(dot: str, elements: Mapping[str, Element], description: str) -> str:
    """Lay out a graph.

    Parameters
    ----------
    dot : str
        Graph in DOT; its elements have an attribute ``id``.
    elements : dict
        Role and tooltip of the elements, by ``id``.
    description : str
        What the picture shows, for a reader who does not see it.

    Returns
    -------
    str
        SVG to put inside a page. It takes the text colour of the page, the width of its container
        up to its own, and has no ``id``: several of them live on one page.

    Raises
    ------
    MissingDependencyError
        pygraphviz is not installed.
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
