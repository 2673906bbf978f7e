"""Cards of the pages: question, answer and verdict, without a script and without an image.

The front page has them; the index of the gallery lists the questions.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext.answers import Answer, page_files, read_page
from _ext.gallery import SECTIONS

_CLASSES = {"holds": "won", "fails": "lost"}
_FILTERS = ("speed", "accuracy", "cpu", "cuda")
# A list of thumbnails, as sphinx-gallery writes it in the index of the gallery.
_THUMBNAILS = re.compile(
    r'^\.\. raw:: html\n\n {4}<div class="sphx-glr-thumbnails">.*?'
    r"^\.\. thumbnail-parent-div-close\n\n\.\. raw:: html\n\n {4}</div>\n",
    flags=re.MULTILINE | re.DOTALL,
)
_TAG_LIST = re.compile(r"^\.\. raw:: html\n\n +<div id='sg-tag-list'.*?</div>\n", re.MULTILINE)
_PAGE = re.compile(r":doc:`(/auto_examples/\w+/plot_\w+)`")
_LISTED = re.compile(r"^   (/auto_examples/(\w+)/(plot_\w+))$", re.MULTILINE)


def register(app: Sphinx) -> None:
    """Add the directive ``ortmeter-cards``."""
    app.add_directive("ortmeter-cards", CardsDirective)
    app.connect("source-read", replace_thumbnails)


class CardsDirective(SphinxDirective):
    """Cards of all pages, with a choice of the tag."""

    def run(self) -> list[nodes.Node]:
        """Write the cards."""
        files = page_files(Path(self.env.srcdir)).values()
        for file in [*files, *Path(self.env.srcdir).glob("results/*/*.json")]:
            self.env.note_dependency(str(file))
        written = cards([*map(read_page, files)], "../" * self.env.docname.count("/"))
        return [nodes.raw("", written, format="html")]


def replace_thumbnails(_app: Sphinx, docname: str, content: list[str]) -> None:
    """List the questions in place of the thumbnails; the sidebar has the short titles."""
    if not (docname.startswith("auto_examples/") and docname.endswith("/index")):
        return
    text = _TAG_LIST.sub("", content[0])
    content[0] = _LISTED.sub(_short_title, _THUMBNAILS.sub(_directive, text))


def _short_title(listed: re.Match[str]) -> str:
    title = SECTIONS.get(listed[2], {}).get(listed[3])
    return f"   {title} <{listed[1]}>" if title else listed[0]


def _directive(thumbnails: re.Match[str]) -> str:
    return "".join(f"* :doc:`{page}`\n" for page in _PAGE.findall(thumbnails[0]))


def cards(pages: Sequence[Answer], root: str) -> str:
    """Write cards as HTML that needs no script: choices are radio buttons and rules of style.

    Parameters
    ----------
    pages : sequence of Answer
        The pages.
    root : str
        Path from the page that shows the cards to the root of the site.
    """
    used = {"all"}.union(*map(_filters, pages))
    choices = "".join(
        f'<label><input type="radio" name="tag" id="t-{tag}"'
        f"{' checked' if tag == 'all' else '' if tag in used else ' disabled'}>{tag}</label>"
        for tag in ("all", *_FILTERS)
    )
    rules = "".join(
        f".cards:has(#t-{tag}:checked) .card:not(.is-{tag}){{display:none}}" for tag in _FILTERS
    )
    written = "".join(_card(page, root) for page in pages)
    return (
        f'<div class="cards"><style>{rules}</style>'
        f'<fieldset class="choices"><legend>Show</legend>{choices}</fieldset>'
        f'<div class="card-grid">{written}</div></div>'
    )


def _filters(page: Answer) -> list[str]:
    """Filters that keep the card of a page."""
    kept = {*page.tags, *page.found.get("providers", ())}
    return [tag for tag in _FILTERS if tag in kept]


def _card(page: Answer, root: str) -> str:
    classes = " ".join(f"is-{tag}" for tag in _filters(page))
    link = f'<a href="{root}{page.docname}.html">{html.escape(page.title)}</a>'
    verdict = text = ""
    if found := page.found:
        kind = _CLASSES.get(found["verdict"], "even")
        verdict = f'<span class="verdict {kind}">{html.escape(found["verdict"])}</span> '
        text = f'<p class="card-answer">{html.escape(found["answer"])}</p>'
        text += f'<p class="card-source">{html.escape(found["standing"])}</p>'
    tags = "".join(f"<span>{html.escape(tag)}</span>" for tag in page.tags)
    return (
        f'<article class="card {classes}"><p class="card-title">{verdict}{link}</p>{text}'
        f'<p class="card-tags">{tags}</p></article>'
    )
