"""Formulas as native MathML: no JavaScript, no request to another site."""

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def register(app: Sphinx) -> None:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(_visit_inline, None),
        block_renderers=(_visit_block, None),
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


def _visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_convert(node, block=False) + "</span>")
    raise nodes.SkipNode


def _visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(_convert(node, block=True) + "</div>\n")
    raise nodes.SkipNode


def _convert(node: nodes.math | nodes.math_block, *, block: bool) -> str:
    try:
        return latex_to_mathml(node.astext(), block=block)
    except MathError as error:
        logger.warning("formula not understood: %s", error, location=node, type="ortmeter")
        return f"<code>{escape(node.astext())}</code>"
