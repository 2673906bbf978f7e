"""A drawing of a graph: laid out, shown by a page or a notebook, saved to a file.

Its PNG is drawn by matplotlib, which brings its own font: Graphviz writes squares for letters on a
machine that has none.
"""

import dataclasses
import html
import importlib.resources
import io
import os
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.files import write_atomically
from ortmeter.optional import import_optional

if TYPE_CHECKING:
    from matplotlib import path as mpath
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

MAX_PIXELS = 8000
_KEPT_ON_TEXT = {"x", "y", "text-anchor", "font-size", "font-weight"}
_SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# DejaVu Sans, the font of matplotlib, is wider than the fonts that the layout reckons with.
_TEXT_SCALE = 0.88
_ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}

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
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
</head>
<body style="font-family:sans-serif">
{body}
</body>
</html>
"""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A graph, laid out.

    Parameters
    ----------
    title : str
        What is drawn.
    dot : str
        The graph in the DOT language.
    svg : str
        The picture, to put inside a page: it takes the text colour of the page and the width of its
        container, up to its own.

    Notes
    -----
    A notebook or a page shows the picture in a box: drag to move it, Ctrl + wheel or the buttons to
    zoom, a tooltip for every node and edge. Without scripts the picture is static. Nothing is
    loaded from elsewhere.
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

    def plot(self, ax: "Axes | None" = None, *, color: str = "black") -> "Axes":
        """Draw with matplotlib, for instance for the thumbnail of a page.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw, a new figure by default.
        color : str
            Colour of the texts and of the lines.

        Returns
        -------
        matplotlib.axes.Axes
            The axes, in points of the drawing.
        """
        if ax is None:
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        _draw_svg(self.svg, ax, color)
        return ax

    def png(self, *, dpi: float = 144) -> bytes:
        """Draw on white, as a PNG image.

        Parameters
        ----------
        dpi : float
            Pixels per inch (72 points), lowered for a graph so large that a side of the image would
            exceed 8000 pixels.

        Returns
        -------
        bytes
            The content of a PNG file.

        Raises
        ------
        InvalidArgumentError
            *dpi* is not positive.
        """
        from matplotlib.figure import Figure

        if not dpi > 0:
            raise InvalidArgumentError(f"dpi is a positive number, it cannot be {dpi!r}")
        width, height = _svg_size(self.svg)
        figure = Figure(figsize=(width / 72, height / 72), facecolor="white")
        self.plot(figure.add_axes((0, 0, 1, 1)))
        buffer = io.BytesIO()
        dpi = min(dpi, MAX_PIXELS * 72 / max(width, height))
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a file: the suffix chooses the format.

        Parameters
        ----------
        path : path
            File to write: ``.svg`` and ``.png`` are on white, ``.html`` is a page that can be
            zoomed, ``.dot`` is the graph without its layout. An existing file is replaced once the
            new one is complete.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        InvalidArgumentError
            The suffix is another one.
        """
        path = Path(path)
        writers = self._writers()
        if path.suffix not in writers:
            raise InvalidArgumentError(
                f"A drawing is saved as {', '.join(writers)}, {path.name!r} is none of them"
            )
        write_atomically(path, writers[path.suffix]())
        return path

    def _writers(self) -> Mapping[str, Callable[[], bytes]]:
        return {
            ".svg": lambda: self.svg.replace(
                'style="', 'style="background:#fff;color:#000;', 1
            ).encode(),
            ".png": self.png,
            ".dot": self.dot.encode,
            ".html": lambda: _PAGE.format(
                title=html.escape(self.title), body=self._repr_html_()
            ).encode(),
        }


def _svg_size(svg: str) -> tuple[float, float]:
    """Width and height of a drawing, in points."""
    _, _, width, height = _numbers(_parse(svg).attrib["viewBox"])
    return float(width), float(height)


def _draw_svg(svg: str, ax: "Axes", color: str) -> None:
    """Draw the shapes and the texts of a drawing, *color* instead of ``currentColor``."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba

    root = _parse(svg)
    x, y = _numbers(root[0].attrib["transform"])[-2:]

    def colors(name: str) -> list[tuple[float, float, float, float]]:
        values = [item.get(name, "none").replace("currentColor", color) for item in items]
        alphas = [float(item.get(f"{name}-opacity", "1")) for item in items]
        return [to_rgba(v, 0 if v == "none" else a) for v, a in zip(values, alphas, strict=True)]

    items, paths = zip(*_paths(root), strict=True)
    shapes = PathCollection(
        paths, facecolors=colors("fill"), edgecolors=colors("stroke"), linewidths=0.7
    )
    ax.add_collection(shapes, autolim=False)
    width, height = _svg_size(svg)
    ax.set(xlim=(-x, width - x), ylim=(height - y, -y), aspect="equal")
    ax.set_axis_off()


def _parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - written by this package


def _numbers(text: str) -> "NDArray[np.float64]":
    return np.array([float(number) for number in _NUMBER.findall(text)])


def _paths(root: ET.Element) -> Iterator[tuple[ET.Element, "mpath.Path"]]:
    from matplotlib.path import Path

    for item in root.iter():
        tag = item.tag.removeprefix(_SVG)
        if tag == "text":
            yield item, _text_path(item)
        elif tag in {"path", "polygon"}:
            points = _numbers(item.get("d") or item.attrib["points"]).reshape(-1, 2)
            step = Path.CURVE4 if tag == "path" else Path.LINETO
            yield item, Path(points, [Path.MOVETO] + [step] * (len(points) - 1))


def _text_path(item: ET.Element) -> "mpath.Path":
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

    text = (item.text or "").replace("$", r"\$")
    font = FontProperties(family="DejaVu Sans", weight=item.get("font-weight", "normal"))
    size = float(item.attrib["font-size"]) * _TEXT_SCALE
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a square
        warnings.simplefilter("ignore", UserWarning)
        path = TextPath((0, 0), text, size=size, prop=font)
    width = path.vertices[:, 0].max(initial=0)  # get_extents solves every curve, 4 ms a text
    anchor = _ANCHORS[item.get("text-anchor", "start")]
    origin = np.array([float(item.attrib["x"]) - anchor * width, float(item.attrib["y"])])
    return Path(origin + path.vertices * (1, -1), path.codes)


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
