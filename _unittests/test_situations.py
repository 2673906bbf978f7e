"""One situation, one page: the table of the front page."""

import csv
import re
from pathlib import Path

DOC = Path(__file__).parent.parent / "_doc"
FILE = DOC / "situations.csv"


def rows():
    with FILE.open(encoding="utf-8", newline="") as stream:
        _, *found = csv.reader(stream)
    return found


def labels():
    """Return the label of each page."""
    texts = (file.read_text(encoding="utf-8") for file in (DOC / "examples").rglob("plot_*.py"))
    return [re.search(r"^\.\. _(l-[a-z0-9-]+):$", text, re.MULTILINE)[1] for text in texts]


def test_each_situation_has_one_page_and_each_page_one_situation():
    situations, pages = zip(*rows(), strict=True)
    assert sorted(pages) == sorted(f":ref:`{label}`" for label in labels())
    assert len({text.casefold() for text in situations}) == len(situations)
    assert all(2 <= len(text.split()) <= 9 for text in situations)


def test_the_front_page_shows_the_table():
    front = (DOC / "index.rst").read_text(encoding="utf-8")
    assert f":file: {FILE.name}" in front
    assert not re.search(r":ref:`l-plot-", front)  # no page beside the table
