"""Remove what sphinx-gallery writes for nothing."""

from docutils import nodes
from sphinx.application import Sphinx


def drop_empty_cells(_app: Sphinx, doctree: nodes.document) -> None:
    """Remove empty blocks of code: what is left of a cell that only had settings of the page."""
    for block in list(doctree.findall(nodes.literal_block)):
        if not block.astext().strip():
            block.parent.remove(block)
