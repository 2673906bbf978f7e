"""Draw the SVG of a graph with matplotlib, which brings its own font.

Graphviz writes PNG as well, with squares for letters on a machine that has no font.
"""

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from numpy.typing import NDArray

__all__ = ["draw_svg", "svg_size"]

_SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# DejaVu Sans, the font of matplotlib, is wider than the fonts that the layout reckons with.
_TEXT_SCALE = 0.88
_ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}


def svg_size(svg: str) -> tuple[float, float]:
    """Return the width and the height of a drawing, in points."""
    _, _, width, height = _numbers(_parse(svg).attrib["viewBox"])
    return float(width), float(height)


def draw_svg(svg: str, ax: "Axes", color: str) -> None:
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
    width, height = svg_size(svg)
    ax.set(xlim=(-x, width - x), ylim=(height - y, -y), aspect="equal")
    ax.set_axis_off()


def _parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - written by this package


def _numbers(text: str) -> "NDArray[np.float64]":
    return np.array([float(number) for number in _NUMBER.findall(text)])


def _paths(root: ET.Element) -> Iterator[tuple[ET.Element, "Path"]]:
    from matplotlib.path import Path

    for item in root.iter():
        tag = item.tag.removeprefix(_SVG)
        if tag == "text":
            yield item, _text_path(item)
        elif tag in {"path", "polygon"}:
            points = _numbers(item.get("d") or item.attrib["points"]).reshape(-1, 2)
            step = Path.CURVE4 if tag == "path" else Path.LINETO
            yield item, Path(points, [Path.MOVETO] + [step] * (len(points) - 1))


def _text_path(item: ET.Element) -> "Path":
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
