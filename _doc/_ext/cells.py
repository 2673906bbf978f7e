"""Remove what sphinx-gallery writes and a page has no use for."""

from docutils import nodes
from sphinx.application import Sphinx

_TAG_LIST = "id='sg-tag-list'"


def drop_empty_cells(_app: Sphinx, doctree: nodes.document) -> None:
    """Remove empty blocks of code: what is left of a cell that only had settings of the page."""
    for block in list(doctree.findall(nodes.literal_block)):
        if not block.astext().strip():
            block.parent.remove(block)


def drop_repeated_tag_lists(_app: Sphinx, doctree: nodes.document) -> None:
    """Keep one list of tags: each section of the gallery brings one, with the same identifier."""
    raws = [raw for raw in doctree.findall(nodes.raw) if _TAG_LIST in raw.astext()]
    for raw in raws[1:]:
        raw.parent.remove(raw)
