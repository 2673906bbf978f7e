"""A figure to explore, where what shows it knows plotly.js; a picture elsewhere."""

import base64
import dataclasses
import html
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["InteractiveFigure"]

_PLOTLY = "application/vnd.plotly.v1+json"
# Nothing in the JSON can end the element that holds it.
_HTML = """<div class="ortmeter-figure">
<img src="data:image/png;base64,{picture}" alt="{alt}" style="width:{width}px;max-width:100%">
<script type="application/json">{figure}</script>
</div>"""


@dataclasses.dataclass(frozen=True)
class InteractiveFigure:
    """A figure in the format of plotly, with a picture of it.

    Parameters
    ----------
    title : str
        Title of the figure.
    alt : str
        What the figure shows, for a reader who does not see it.
    figure : dict
        ``data`` and ``layout`` of plotly, made of what JSON knows.
    picture : bytes
        The same as a PNG image, at two pixels per unit of length of a page.

    Notes
    -----
    JupyterLab shows the interactive figure once ``plotly`` is installed beside it, VS Code as it
    is, and the published gallery with the script of its site. Elsewhere the picture is shown.
    Nothing is loaded from another site.
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
