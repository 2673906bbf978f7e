"""Formulas as native MathML: no JavaScript, no request to another site."""

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def register(app: Sphinx) -> None:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_visit, None), block_renderers=(_visit, None)
    )


def latex_to_mathml(latex: str, *, block: bool = False) -> str:
    r"""Convert a formula.

    Parameters
    ----------
    latex : str
        Formula, without dollars. Blank lines separate the rows of a block.
    block : bool
        Displayed on its own rather than in a line of text.

    Returns
    -------
    str
        A ``<math>`` element whose ``alttext`` is the LaTeX source.

    Raises
    ------
    docutils.utils.math.MathError
        The formula is not understood.

    Examples
    --------
    >>> print(latex_to_mathml("n"))
    <math alttext="n" xmlns="http://www.w3.org/1998/Math/MathML">
      <mi>n</mi>
    </math>
    """
    rows = [row.strip() for row in latex.split("\n\n") if row.strip()]
    converted: str = tex2mathml(r" \\ ".join(rows), as_block=block)
    alttext = escape(" ".join(latex.split()), quote=True)
    return converted.replace("<math ", f'<math alttext="{alttext}" ', 1)


def _visit(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    block = isinstance(node, nodes.math_block)
    try:
        formula = latex_to_mathml(node.astext(), block=block)
    except MathError as error:
        logger.warning("formula not understood: %s", error, location=node, type="ortmeter")
        formula = f"<code>{escape(node.astext())}</code>"
    tag = "div" if block else "span"
    self.body.append(self.starttag(node, tag, "", CLASS="math notranslate nohighlight"))
    self.body.append(f"{formula}</{tag}>")
    raise nodes.SkipNode
