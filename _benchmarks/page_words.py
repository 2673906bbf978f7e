"""Count the words of prose that a page shows: outside code, tables, plots and closed folds.

``python _benchmarks/page_words.py [--site dist/html] [PAGE ...]`` counts them on rendered pages;
``--source`` estimates them from the text of the scripts, without what is computed.
"""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import command
import html5lib
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "_doc" / "examples").glob("*/plot_*.py"))
HIDDEN = {"pre", "table", "details", "script", "style", "svg", "math", "figure", "img", "nav"}
# The links to download a page, its tags, the thumbnails of pages that use the same functions.
APART = re.compile(r"sphx-glr-(footer|download|example-tags|timing|thumb)|headerlink|prev-next")
_TABLE = re.compile(r"^(=+ +=.*\n(?:.+\n)+?=+ +=.*\n(?:(?:.+\n)+?=+ +=.*\n)?)", re.MULTILINE)


def words(element: ET.Element) -> int:
    """Count the words of an element and of what it holds, but for what is hidden or apart."""
    tag = element.tag.rpartition("}")[2]  # that of a drawing has a namespace
    if tag in HIDDEN or APART.search(element.get("class", "")):
        return 0
    inside = len((element.text or "").split())
    return inside + sum(words(child) + len((child.tail or "").split()) for child in element)


def rendered(page: Path, site: Path) -> int:
    """Count the words of a page of the site."""
    file = site / "auto_examples" / page.parent.name / f"{page.stem}.html"
    document = html5lib.parse(file.read_text(encoding="utf-8"), namespaceHTMLElements=False)
    return words(document.find(".//article"))


def written(page: Path, _site: Path) -> int:
    """Count the words of the text of a script."""
    blocks = split_code_and_text_blocks(str(page))[1]
    texts = (text for kind, text, *_ in blocks if kind == "text")
    return sum(len(_TABLE.sub("", text).split()) for text in texts)


if __name__ == "__main__":
    asked = command.options(__doc__, "pages", site=ROOT / "dist" / "html", source=False)
    for file in (file for file in PAGES if not asked.pages or file.stem in asked.pages):
        count = (written if asked.source else rendered)(file, asked.site)
        print(f"{file.stem:40s} {count:6d}")
