"""Fold the code that prepares or concludes, remove what sphinx-gallery writes for nothing."""

import html
import re

from docutils import nodes
from sphinx.application import Sphinx

#: First line of a cell that a page folds: ``# fold: What the code does``.
FOLD = re.compile(r"# fold: (?P<title>.+)\n*")


def fold_cells(_app: Sphinx, doctree: nodes.document) -> None:
    """Put the cells that begin with ``# fold: title`` behind this title."""
    for block in list(doctree.findall(nodes.literal_block)):
        found = FOLD.match(block.rawsource)
        if found is None:
            continue
        code = block.rawsource[found.end() :]
        folded = nodes.literal_block(code, code, language=block.get("language", "python"))
        folded["classes"] = block["classes"]
        title = html.escape(found["title"])
        opened = f'<details class="ortmeter-fold"><summary>{title}</summary>'
        parts = [nodes.raw("", opened, format="html"), nodes.raw("", "</details>", format="html")]
        block.parent.replace(block, [parts[0], folded, parts[1]])


def drop_empty_cells(_app: Sphinx, doctree: nodes.document) -> None:
    """Remove empty blocks of code: what is left of a cell that only had settings of the page."""
    for block in list(doctree.findall(nodes.literal_block)):
        if not block.astext().strip():
            block.parent.remove(block)
