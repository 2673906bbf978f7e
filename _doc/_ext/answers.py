"""The answer of each page: read from what the page shows, put under its title and elsewhere."""

import html
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from _ext.gallery import page_rank
from ortmeter.study.records import load_records

#: Folder of the pages that sphinx-gallery writes, below the folder of the sources.
GALLERY = "auto_examples"

_SHOWN = re.compile(r'data-conclusion="([^"]*)"')
_BOX = re.compile(r'(?<=">)<div class="answer">.*?</div>', flags=re.DOTALL)
_TITLE = re.compile(r"^(.+)\n=+$", flags=re.MULTILINE)
_TAGS = re.compile(r"^\s*🏷 Tags: (.+)$", flags=re.MULTILINE)
_TIMES = re.compile(r"\d[\d.]* times (?:faster|slower|longer)")
#: What a line must not break: an interval, an exponent, a date.
WHOLE = re.compile(
    r"\[-?[\d.]+(?:e[-+]\d+)?, -?[\d.]+(?:e[-+]\d+)?\]|\d[\d.]*e[-+]\d+|\d{4}-\d\d-\d\d"
)
_DESCRIPTION = 300  # characters, more are not shown by search engines


@dataclass(frozen=True)
class Answers:
    """What a page says, in this build and from the records of other machines.

    Parameters
    ----------
    page : str
        Name of the page.
    title, docname : str
        Its title, and its name for Sphinx.
    tags : tuple of str
        Tags of the page.
    here : mapping or None
        Conclusion of this build, None when the page did not run.
    recorded : tuple of mapping
        Conclusions from the records.
    """

    page: str
    title: str
    docname: str
    tags: tuple[str, ...]
    here: dict[str, Any] | None
    recorded: tuple[dict[str, Any], ...]

    @property
    def all(self) -> list[dict[str, Any]]:
        """The conclusions, that of this build first."""
        return [found for found in (self.here, *self.recorded) if found is not None]

    @property
    def on_cuda(self) -> bool:
        """Whether one of them was measured on CUDA."""
        return any(is_cuda(found) for found in self.all)


def is_cuda(found: Mapping[str, Any]) -> bool:
    """Whether a conclusion, or the configuration of a record, is that of CUDA."""
    return str(found["provider"]).startswith("cuda")


def page_files(source: Path) -> dict[str, Path]:
    """Return the file of each page that sphinx-gallery wrote, in the order of the site."""
    files = Path(source, GALLERY).glob("*/plot_*.rst")
    return {file.stem: file for file in sorted(files, key=lambda file: page_rank(str(file)))}


def read_answers(source: Path) -> dict[str, Answers]:
    """Read what each page says.

    Parameters
    ----------
    source : Path
        Folder of the sources of the site; the records are in its folder ``results``.

    Returns
    -------
    dict of str to Answers
        By name of page, in the order of the site.
    """
    return {page: read_page(file, source / "results") for page, file in page_files(source).items()}


def read_page(file: Path, results: Path) -> Answers:
    """Read the conclusions of a page; those of the records stand in where it measured nothing."""
    page = file.stem
    text = file.read_text(encoding="utf-8")
    shown = [json.loads(html.unescape(found)) for found in _SHOWN.findall(text)]
    mine = [found for found in shown if found.get("page") == page]
    tags = _TAGS.search(text)
    here, *recorded = mine or [None]
    if here:  # a page judges the records itself
        recorded = here["machines"]
        mine = [here, *recorded]
    if here and here.get("recorded"):  # too long for a build: the page shows a record
        here, recorded = None, mine
    elif not here:
        recorded = [record.summary for record in load_records(page, results)]
    return Answers(
        page=page,
        title=_TITLE.findall(text)[0],
        docname=f"{GALLERY}/{file.parent.name}/{page}",
        tags=tuple(tags[1].split(", ")) if tags else (),
        here=here,
        recorded=tuple(recorded),
    )


def add_answers(app: Sphinx, doctree: nodes.document) -> None:
    """Put the answer of a page in a box under its title, the judged predictions beside them."""
    if not is_page(app.env.docname):
        return
    found = read_document(app, app.env.docname)
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is None or not found.all:
        return
    section = title.parent
    section.insert(section.index(title) + 1, nodes.raw("", box(found), format="html"))
    judged = found.all[0]["predictions"] if _judge(doctree, found) else ()
    _say_once(doctree, [text for _, text in judged])


def _say_once(doctree: nodes.document, judged: Sequence[str]) -> None:
    """Leave out of the first conclusion what the box and the predictions above say."""
    shown = (raw for raw in doctree.findall(nodes.raw) if _SHOWN.search(raw.astext()))
    for raw in itertools.islice(shown, 1):
        text = _BOX.sub("", raw.astext(), count=1)
        for said in judged:
            text = text.replace(f"<li>{html.escape(said)}</li>", "", 1)
        raw.replace_self(nodes.raw("", text, format="html"))


def is_page(docname: str) -> bool:
    """Whether a document is a page that sphinx-gallery wrote."""
    return docname.startswith(f"{GALLERY}/") and docname.rpartition("/")[2].startswith("plot_")


def read_document(app: Sphinx, docname: str) -> Answers:
    """Read the conclusions of a page, given by the name of its document."""
    return read_page(Path(app.env.doc2path(docname)), Path(app.srcdir, "results"))


def box(found: Answers) -> str:
    """Write the box under the title of a page: its own, or what a record says of it."""
    first = found.all[0]
    if "box" in first:
        return str(first["box"])
    where = keep_whole(html.escape(place(first)))
    return (
        f'<div class="answer"><p>{emphasize(first["answer"])}</p>'
        f'<p class="answer-source">{where}</p></div>'
    )


def place(found: dict[str, Any]) -> str:
    """Name where and when a conclusion was measured."""
    return f"{found['machine']}, {str(found['provider']).upper()}, {found['date']}"


def emphasize(answer: str) -> str:
    """Write an answer as HTML, the ratios in bold."""
    return keep_whole(_TIMES.sub(lambda match: f"<b>{match[0]}</b>", html.escape(answer)))


def keep_whole(text: str) -> str:
    """Keep intervals, exponents and dates of a HTML text on one line."""
    return WHOLE.sub(lambda match: f'<span class="whole">{match[0]}</span>', text)


def add_description(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: nodes.document
) -> None:
    """Make the answer of a page its description, which search engines and messages show."""
    found = read_document(app, pagename).all if is_page(pagename) else []
    if found:
        text = html.escape(shorten(found[0]["answer"], _DESCRIPTION), quote=True)
        context["metatags"] += f'\n<meta name="description" content="{text}" />'


def shorten(text: str, longest: int) -> str:
    """Cut a text between two words."""
    if len(text) <= longest:
        return text
    return text[: text.rfind(" ", 0, longest)] + " ..."


def _judge(doctree: nodes.document, found: Answers) -> bool:
    """Write the verdicts on the predictions at the end of the text that makes them, if any."""
    predictions = found.all[0]["predictions"]
    start = next((p for p in doctree.findall(nodes.paragraph) if _predicts(p)), None)
    if start is None or not predictions:
        return False
    items = "".join(
        f'<li><span class="verdict {verdict}">{verdict}</span> '
        f"{html.escape(text.partition(': ')[2])}</li>"
        for verdict, text in predictions
    )
    where = start.parent.index(start) + 1
    # The text ends where the code of the page begins.
    while where < len(start.parent) and not isinstance(
        start.parent[where], nodes.comment | nodes.raw | nodes.literal_block | nodes.section
    ):
        where += 1
    raw = nodes.raw("", f'<ul class="predictions">{items}</ul>', format="html")
    start.parent.insert(where, raw)
    return True


def _predicts(paragraph: nodes.paragraph) -> bool:
    first = paragraph.children[0] if paragraph.children else None
    return isinstance(first, nodes.strong) and first.astext() == "Prediction."
