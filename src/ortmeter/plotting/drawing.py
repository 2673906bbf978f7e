"""A drawing of a graph: shown by a page or a notebook, saved to a file."""

import dataclasses
import html
import importlib.resources
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.files import write_atomically
from ortmeter.plotting._matplotlib import draw_svg, svg_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Drawing"]

MAX_PIXELS = 8000

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
        draw_svg(self.svg, ax, color)
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
        width, height = svg_size(self.svg)
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
