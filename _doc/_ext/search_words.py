"""Words that people type to search, and the page that answers each: entries of the index."""

import csv
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

TABLE = Path(__file__).with_suffix(".csv")


class AddWords(SphinxTransform):
    """Add to a page the words of its row, which the search of Sphinx puts first."""

    default_priority = 800  # before entries are collected, at 850

    def apply(self, **_: object) -> None:
        """Put the entries at the top of the first section."""
        self.env.note_dependency(str(TABLE))
        with TABLE.open(encoding="utf-8") as file:
            pages = {row["page"]: row["words"] for row in csv.DictReader(file)}
        words = pages.get(self.env.docname, "").split("; ")
        section = next(iter(self.document.findall(nodes.section)), None)
        if section is not None and any(words):
            anchor = section["ids"][0]
            entries = [("single", word, anchor, "main", None) for word in words]
            section.insert(1, addnodes.index(entries=entries))
