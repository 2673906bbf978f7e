"""Finish the downloads: notebooks that install what they need, zips that hold the wheel."""

import io
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from _ext.notebook import make_notebook
from _ext.wheel import published_wheel

_SETTING = re.compile(r'setting="(\w+\.\w+)"')
_TITLE_OF_LABEL = re.compile(r"^\.\. _([\w-]+):\n\s*\n(.+)\n[=\-~^]{3,}$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """The script of a page, and the copy of sphinx-gallery, beside what it generates."""

    source: Path
    target: Path


def finish_downloads(app: Sphinx) -> None:
    """Rewrite the notebooks and the zips that differ from what this build publishes."""
    conf = app.config.sphinx_gallery_conf
    examples, gallery = (Path(app.srcdir, conf[f"{x}_dirs"][0]) for x in ("examples", "gallery"))
    sources = sorted(examples.rglob("plot_*.py"))
    pages = [Page(source, gallery / source.relative_to(examples)) for source in sources]
    wheel = published_wheel(app)
    titles = page_titles(page.source for page in pages)
    for page in pages:
        built = page.target.with_suffix(".rst")
        notebook = make_notebook(page.source, wheel.name, app.config.html_baseurl, titles, built)
        write_notebook(page.target.with_suffix(".ipynb"), notebook)
        members = [page.target, page.target.with_suffix(".ipynb"), *copy_settings(page), wheel]
        write_zip(page.target.with_suffix(".zip"), members, page.target.parent)
    settings = [file for page in pages for file in copy_settings(page)]
    scripts = [*(page.target for page in pages), *settings]
    notebooks = [*(page.target.with_suffix(".ipynb") for page in pages), *settings]
    write_zip(gallery / f"{gallery.name}_python.zip", [*scripts, wheel], gallery)
    write_zip(gallery / f"{gallery.name}_jupyter.zip", [*notebooks, wheel], gallery)


def copy_settings(page: Page) -> list[Path]:
    """Put the settings that a page shows beside its script, where the script looks for them."""
    copied = []
    for name in _SETTING.findall(page.source.read_text(encoding="utf-8")):
        file = page.target.parent / "settings" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((page.source.parent / "settings" / name).read_bytes())
        copied.append(file)
    return copied


def page_titles(sources: Iterable[Path]) -> dict[str, str]:
    """Map the labels that stand above a title to this title."""
    texts = (source.read_text(encoding="utf-8") for source in sources)
    return {label: title for text in texts for label, title in _TITLE_OF_LABEL.findall(text)}


def write_notebook(file: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook, unless the file has it."""
    text = json.dumps(notebook, indent=1) + "\n"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


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
