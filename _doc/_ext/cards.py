"""Cards of the pages: question, answer and verdict, without a script and without an image.

The front page has them; the index of the gallery lists the questions.
"""

import html
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from _ext.answers import (
    Answers,
    emphasize,
    is_cuda,
    page_files,
    place,
    read_answers,
)
from _ext.gallery import SECTIONS

_WON = {"faster", "yes", "right", "negligible", "holds"}
_LOST = {"slower", "no", "wrong", "fails"}
_HERE = "this build"
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
    """Cards of all pages, with a choice of the machine and of the tag."""

    def run(self) -> list[nodes.Node]:
        """Write the cards."""
        source = Path(self.env.srcdir)
        for file in [*page_files(source).values(), *source.glob("results/*/*.json")]:
            self.env.note_dependency(str(file))
        root = "../" * self.env.docname.count("/")
        written = cards(list(read_answers(source).values()), root)
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


def cards(found: Sequence[Answers], root: str) -> str:
    """Write cards as HTML.

    Parameters
    ----------
    found : sequence of Answers
        The pages.
    root : str
        Path from the page that shows the cards to the root of the site.

    Returns
    -------
    str
        HTML that needs no script: the choices are radio buttons and rules of style.
    """
    sources = list(dict.fromkeys(_source(answer) for page in found for answer in page.all))
    here = {_source(page.here) for page in found if page.here}
    written = "".join(_card(page, root, sources, here) for page in found)
    form = _choices(found, sources, here)
    grid = f'<div class="card-grid">{written}</div>'
    return f'<div class="cards">{_style(len(sources))}{form}{grid}</div>'


def _source(answer: dict[str, Any]) -> str:
    return f"{answer['machine']}, {str(answer['provider']).upper()}"


def _choices(found: Sequence[Answers], sources: Sequence[str], here: Collection[str]) -> str:
    labels = (f"{text} ({_HERE if text in here else 'recorded'})" for text in sources)
    machines = "".join(
        _radio("machine", f"m{i}", text, checked=i == 0) for i, text in enumerate(labels)
    )
    if not any(page.on_cuda for page in found):
        machines += '<span class="choice-none">CUDA: not recorded yet</span>'
    used = {"all"}.union(*map(_classes, found))
    tags = "".join(
        _radio("tag", f"t-{tag}", tag, checked=tag == "all", disabled=tag not in used)
        for tag in ("all", *_FILTERS)
    )
    return (
        f'<fieldset class="choices"><legend>Machine</legend>{machines}</fieldset>'
        f'<fieldset class="choices"><legend>Show</legend>{tags}</fieldset>'
    )


def _radio(name: str, identifier: str, text: str, *, checked: bool, disabled: bool = False) -> str:
    state = " checked" if checked else " disabled" if disabled else ""
    return (
        f'<label><input type="radio" name="{name}" id="{identifier}"{state}>'
        f"{html.escape(text)}</label>"
    )


def _style(sources: int) -> str:
    rules = [
        f".cards:has(#m{i}:checked) .from:not(.from-m{i}){{display:none}}" for i in range(sources)
    ]
    rules += [
        f".cards:has(#t-{tag}:checked) .card:not(.is-{tag}){{display:none}}" for tag in _FILTERS
    ]
    return f"<style>{''.join(rules)}</style>"


def _classes(page: Answers) -> list[str]:
    """Filters that keep the card of a page."""
    providers = {"cuda" if is_cuda(answer) else "cpu" for answer in page.all}
    return [tag for tag in page.tags if tag in {"speed", "accuracy"}] + sorted(providers)


def _card(page: Answers, root: str, sources: Sequence[str], here: Collection[str]) -> str:
    classes = " ".join(f"is-{tag}" for tag in _classes(page))
    by_source = {_source(answer): answer for answer in reversed(page.all)}
    if page.recorded and not page.here:  # a build has no time for what it shows
        by_source = dict.fromkeys(here, page.recorded[0]) | by_source
    shown = [by_source.get(source) for source in sources]
    verdicts = "".join(_verdict(answer, i) for i, answer in enumerate(shown))
    answers = "".join(
        f'<div class="from from-m{i}">{_answer(answer)}</div>' for i, answer in enumerate(shown)
    )
    tags = "".join(f"<span>{html.escape(tag)}</span>" for tag in page.tags)
    link = f'<a href="{root}{page.docname}.html">{html.escape(page.title)}</a>'
    return (
        f'<article class="card {classes}"><p class="card-title">{verdicts}{link}</p>{answers}'
        f'<p class="card-tags">{tags}</p></article>'
    )


def _verdict(answer: dict[str, Any] | None, source: int) -> str:
    """Write the verdict of a source, in the corner of the card."""
    verdict = str(answer["verdict"]) if answer else ""
    classes = f"verdict {kind(verdict)} from from-m{source}"
    return f'<span class="{classes}">{html.escape(verdict)}</span> ' if verdict else ""


def _answer(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return '<p class="card-answer">Not recorded on this machine.</p>'
    text = f'<p class="card-answer">{emphasize(answer["answer"])}</p>'
    return text + f'<p class="card-source">{html.escape(place(answer))}</p>'


def kind(verdict: str) -> str:
    """Class of a verdict: it decides the colour."""
    return "won" if verdict in _WON else "lost" if verdict in _LOST else "even"
