"""Finish the downloads: notebooks that install what they need, zips that hold the wheel."""

import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from sphinx.application import Sphinx

from _ext.notebook import extras_of, first_cell, tidy_notebook
from _ext.staleness import gallery_pages
from _ext.wheel import published_wheel

_TITLE_OF_LABEL = re.compile(r"^\.\. _([\w-]+):\n\s*\n(.+)\n[=\-~^]{3,}$", flags=re.MULTILINE)


def finish_downloads(app: Sphinx) -> None:
    """Rewrite the notebooks and the zips that differ from what this build publishes."""
    gallery = Path(app.srcdir, app.config.sphinx_gallery_conf["gallery_dirs"][0])
    wheel = published_wheel(app)
    pages = gallery_pages(app)
    titles = page_titles(page.source for page in pages)
    for page in pages:
        extras = extras_of(page.source.read_text(encoding="utf-8"))
        cell = first_cell(wheel.name, app.config.html_baseurl, extras)
        finish_notebook(page.target.with_suffix(".ipynb"), cell, titles)
        members = [page.target, page.target.with_suffix(".ipynb"), wheel]
        write_zip(page.target.with_suffix(".zip"), members, page.target.parent)
    scripts = [page.target for page in pages]
    notebooks = [page.target.with_suffix(".ipynb") for page in pages]
    write_zip(gallery / f"{gallery.name}_python.zip", [*scripts, wheel], gallery)
    write_zip(gallery / f"{gallery.name}_jupyter.zip", [*notebooks, wheel], gallery)


def page_titles(sources: Iterable[Path]) -> dict[str, str]:
    """Map the labels that stand above a title to this title."""
    texts = (source.read_text(encoding="utf-8") for source in sources)
    return {label: title for text in texts for label, title in _TITLE_OF_LABEL.findall(text)}


def finish_notebook(file: Path, cell: str, titles: dict[str, str]) -> None:
    """Make a notebook of sphinx-gallery install its wheel and read well, in place."""
    before = file.read_text(encoding="utf-8")
    after = json.dumps(tidy_notebook(json.loads(before), cell, titles), indent=1) + "\n"
    if after != before:
        file.write_text(after, encoding="utf-8")


def write_zip(file: Path, members: Iterable[Path], folder: Path) -> None:
    """Write an archive that depends on its members only; one outside *folder* goes to the top."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            inside = member.is_relative_to(folder)
            name = member.relative_to(folder).as_posix() if inside else member.name
            # A constant date: the same members make the same bytes.
            archive.writestr(zipfile.ZipInfo(name), member.read_bytes())
    if not file.exists() or file.read_bytes() != content.getvalue():
        file.write_bytes(content.getvalue())
