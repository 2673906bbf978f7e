"""The answer of each page, under its title and elsewhere.

A page that runs writes what it concludes to a file of the build, see :meth:`ortmeter.study.Study`.
"""

import html
import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from _ext.gallery import page_rank
from ortmeter.study.records import load_records

#: Folder of the pages that sphinx-gallery writes, below the folder of the sources.
GALLERY = "auto_examples"
#: Folder of what the pages conclude, below it.
CONCLUSIONS = "conclusions"

_TITLE = re.compile(r"^(.+)\n=+$", flags=re.MULTILINE)
_TAGS = re.compile(r"^\s*🏷 Tags: (.+)$", flags=re.MULTILINE)
_DESCRIPTION = 300  # characters, more are not shown by search engines


@dataclass(frozen=True)
class Answer:
    """What a page answers.

    Parameters
    ----------
    page, title, docname : str
        Name of the page, its title, and its name for Sphinx.
    tags : tuple of str
        Tags of the page.
    found : mapping
        What it concludes; empty where it neither ran nor has a record.
    """

    page: str
    title: str
    docname: str
    tags: tuple[str, ...]
    found: dict[str, Any]


def page_files(source: Path) -> dict[str, Path]:
    """Return the file of each page that sphinx-gallery wrote, in the order of the site."""
    files = Path(source, GALLERY).glob("*/plot_*.rst")
    return {file.stem: file for file in sorted(files, key=lambda file: page_rank(str(file)))}


def read_page(file: Path) -> Answer:
    """Read what a page concludes; its newest record stands in for a page that did not run."""
    text, folder = file.read_text(encoding="utf-8"), file.parents[1]
    kept, tags = folder / CONCLUSIONS / f"{file.stem}.json", _TAGS.search(text)
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    records = load_records(file.stem, folder.parent / "results")
    if not found and records:
        found = _recorded(max(records, key=lambda record: record.date))
    return Answer(
        page=file.stem,
        title=_TITLE.findall(text)[0],
        docname=f"{GALLERY}/{file.parent.name}/{file.stem}",
        tags=tuple(tags[1].split(", ")) if tags else (),
        found=found,
    )


def _recorded(record: Any) -> dict[str, Any]:
    answer, origin = str(record.answer or ""), record.origin
    standing = f"{origin['machine']}, {origin['provider'].upper()}, {origin['date']}"
    texts = f'<p>{html.escape(answer)}</p><p class="answer-source">{html.escape(standing)}</p>'
    return {
        "answer": answer,
        "verdict": record.answer.verdict if record.answer else "",
        "standing": standing,
        "providers": [origin["provider"].partition(":")[0]],
        "predictions": [],
        "predicted": "",
        "box": f'<div class="answer">{texts}</div>',
    }


def add_answers(app: Sphinx, doctree: nodes.document) -> None:
    """Put the answer of a page in a box under its title, and its verdicts below its prediction."""
    found = _read_document(app, app.env.docname)
    if not found:
        return
    for raw in [*doctree.findall(nodes.raw)]:  # what stands above is not said again
        text = raw.astext().replace(found["box"], "").replace(found["predicted"], "")
        raw.replace_self(nodes.raw("", text, format="html"))
    section = next(iter(doctree.findall(nodes.section)))
    section.insert(1, nodes.raw("", found["box"], format="html"))
    start = next((p for p in doctree.findall(nodes.paragraph) if _predicts(p)), None)
    if start is None or not found["predictions"]:
        return
    items = "".join(
        f'<li><span class="verdict {verdict}">{verdict}</span> {html.escape(text)}</li>'
        for verdict, text in found["predictions"]
    )
    # The text ends where the code of the page begins.
    texts = section.children[section.index(start) :]
    length = next((i for i, node in enumerate(texts) if isinstance(node, _CODE)), len(texts))
    raw = nodes.raw("", f'<ul class="predictions">{items}</ul>', format="html")
    section.insert(section.index(start) + length, raw)


_CODE = nodes.comment | nodes.raw | nodes.literal_block | nodes.section


def add_description(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: nodes.document
) -> None:
    """Make the answer of a page its description, which search engines and messages show."""
    if found := _read_document(app, pagename):
        text = html.escape(textwrap.shorten(found["answer"], _DESCRIPTION, placeholder=" ..."))
        context["metatags"] += f'\n<meta name="description" content="{text}" />'


def _read_document(app: Sphinx, docname: str) -> dict[str, Any]:
    is_page = docname.startswith(f"{GALLERY}/") and docname.rpartition("/")[2].startswith("plot_")
    return read_page(Path(app.env.doc2path(docname))).found if is_page else {}


def _predicts(paragraph: nodes.paragraph) -> bool:
    first = paragraph.children[0] if paragraph.children else None
    return isinstance(first, nodes.strong) and first.astext() == "Prediction."
