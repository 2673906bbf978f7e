"""Finish the downloads: notebooks that install what they need, zips that hold the wheel."""

import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from sphinx.application import Sphinx

from _ext.api import write_if_changed
from _ext.notebook import make_notebook
from _ext.wheel import published_wheel

_SETTING = re.compile(r'setting="(\w+\.\w+)"')
_TITLE_OF_LABEL = re.compile(r"^\.\. _([\w-]+):\n\s*\n(.+)\n[=\-~^]{3,}$", flags=re.MULTILINE)


def finish_downloads(app: Sphinx) -> None:
    """Rewrite the notebooks and the zips that differ from what this build publishes."""
    conf, wheel = app.config.sphinx_gallery_conf, published_wheel(app)
    examples, gallery = (Path(app.srcdir, conf[f"{x}_dirs"][0]) for x in ("examples", "gallery"))
    sources = sorted(examples.rglob("plot_*.py"))
    titles = page_titles(sources)
    members: dict[str, list[Path]] = {"python": [], "jupyter": []}
    for source in sources:
        script = gallery / source.relative_to(examples)
        built, file = script.with_suffix(".rst"), script.with_suffix(".ipynb")
        notebook = make_notebook(source, wheel.name, app.config.html_baseurl, titles, built)
        write_if_changed(file, json.dumps(notebook, indent=1) + "\n")
        settings = copy_settings(source, script.parent)
        write_zip(script.with_suffix(".zip"), [script, file, *settings, wheel], script.parent)
        members["python"] += [script, *settings]
        members["jupyter"] += [file, *settings]
    for kind, files in members.items():
        write_zip(gallery / f"{gallery.name}_{kind}.zip", [*files, wheel], gallery)


def copy_settings(page: Path, folder: Path) -> list[Path]:
    """Put the settings that a page shows beside its script, where the script looks for them."""
    copied = []
    for name in _SETTING.findall(page.read_text(encoding="utf-8")):
        file = folder / "settings" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((page.parent / "settings" / name).read_bytes())
        copied.append(file)
    return copied


def page_titles(sources: Iterable[Path]) -> dict[str, str]:
    """Map the labels that stand above a title to this title."""
    texts = (source.read_text(encoding="utf-8") for source in sources)
    return {label: title for text in texts for label, title in _TITLE_OF_LABEL.findall(text)}


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
