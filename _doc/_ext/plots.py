"""Plots keep their size: on a phone, they scroll inside a box of their own."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx_gallery.directives import imgsgnode

#: Class of the box, see `ortmeter.css` and `accessibility.js`.
BOX = "ortmeter-plot"


def box_plots(_app: Sphinx, doctree: nodes.document) -> None:
    """Put each plot of a page into a box."""
    for plot in list(doctree.findall(imgsgnode)):
        box = nodes.compound("", classes=[BOX])
        plot.replace_self(box)
        box += plot
