"""Interactive figures for viewers with plotly.js, pictures elsewhere."""

import base64
import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ortmeter.plotting.axes import GREY

_PLOTLY = "application/vnd.plotly.v1+json"
# Nothing in the JSON can end the element that holds it.
_HTML = """<div class="ortmeter-figure">
<img src="data:image/png;base64,{picture}" alt="{alt}" style="width:{width}px;max-width:100%">
<script type="application/json">{figure}</script>
</div>"""
_CLEAR = "rgba(0,0,0,0)"


@dataclasses.dataclass(frozen=True)
class InteractiveFigure:
    """A figure in the format of plotly, with a picture of it.

    Parameters
    ----------
    title : str
        Title of the figure.
    alt : str
        Description of the figure for screen readers.
    figure : dict
        ``data`` and ``layout`` of plotly, as JSON values.
    picture : bytes
        The same as a PNG image, at two pixels per unit of length of a page.

    Notes
    -----
    VS Code and the published gallery show the interactive figure, and so does JupyterLab if
    ``plotly`` is installed. Other viewers show the picture. Nothing is downloaded from another
    site.
    """

    title: str
    alt: str = dataclasses.field(repr=False)
    figure: Mapping[str, Any] = dataclasses.field(repr=False)
    picture: bytes = dataclasses.field(repr=False)

    def _repr_html_(self) -> str:
        # The header of a PNG holds its width at bytes 16 to 20.
        return _HTML.format(
            picture=base64.b64encode(self.picture).decode(),
            alt=html.escape(self.alt),
            width=int.from_bytes(self.picture[16:20], "big") // 2,
            figure=json.dumps(self.figure).replace("<", r"\u003c"),
        )

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002 - the signature that IPython asks for
        exclude: object = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        return {
            _PLOTLY: self.figure,
            "text/html": self._repr_html_(),
            "text/plain": repr(self),
        }


def escape(text: str) -> str:
    """Escape a text for plotly, which reads some tags."""
    return html.escape(text, quote=False)


def layout(
    title: str, caption: str, *, rows: Sequence[str], xlabel: str, ylabel: str
) -> dict[str, Any]:
    """Lay out rows of bars, the first one at the top, readable on a light and on a dark page."""
    return {
        "title": {"text": escape(title), "subtitle": {"text": escape(caption)}, "x": 0},
        "height": 190 + 22 * len(rows),
        "margin": {"l": 10, "r": 10, "t": 70, "b": 10},
        "barmode": "overlay",
        "font": {"color": GREY},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "modebar": {"bgcolor": _CLEAR, "color": GREY, "activecolor": GREY},
        "hoverlabel": {"align": "left"},
        "xaxis": {"title": {"text": xlabel}, "gridcolor": f"{GREY}4d", "automargin": True},
        "yaxis": {
            "title": {"text": ylabel},
            "tickvals": list(range(len(rows))),
            "ticktext": [escape(label) for label in rows],
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
            "automargin": True,
        },
    }
