"""Which pages run: those whose recorded results come from something else than this build.

sphinx-gallery writes the hash of the source of a page into a file ``.md5`` once it ran without
error, and skips the page while the hash is right. The results also depend on the package, on the
versions and on the machine: where the recorded fingerprint of a page is not today's, that file is
removed and the new fingerprint recorded, before the page runs. A page that failed or was
interrupted has no such file and runs again; those that were finished do not.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx_gallery.utils import get_md5sum

from _ext.fingerprint import build_context, page_fingerprint
from _ext.provider import chosen_provider

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """A page of the gallery.

    Parameters
    ----------
    key : str
        Path below the folder of the pages, for example ``performance/plot_x.py``.
    source : Path
        Script written by hand.
    target : Path
        Copy made by sphinx-gallery, beside what it generates.
    """

    key: str
    source: Path
    target: Path

    @property
    def md5_file(self) -> Path:
        """Where sphinx-gallery keeps the hash of the source that it ran last."""
        return self.target.with_name(f"{self.target.name}.md5")

    @property
    def ran(self) -> bool:
        """Whether the page ran without error and its text was generated."""
        return self.md5_file.exists() and self.target.with_suffix(".rst").exists()


def gallery_pages(app: Sphinx) -> list[Page]:
    """List the pages, sorted by path."""
    examples, gallery = _folders(app)
    keys = (path.relative_to(examples) for path in sorted(examples.rglob("plot_*.py")))
    return [Page(key.as_posix(), examples / key, gallery / key) for key in keys]


def choose_pages(app: Sphinx) -> None:
    """Arrange the files that make sphinx-gallery run the pages that must run, and no other."""
    conf = app.config.sphinx_gallery_conf
    pages = gallery_pages(app)
    remove_orphans(_folders(app)[1], {page.key for page in pages})
    context = _context(app)
    records = read_records(app)
    for page in pages:
        runs = conf["plot_gallery"] and re.search(conf["filename_pattern"], str(page.source))
        if runs:
            fingerprint = _fingerprint(app, page, context)
            current = records.get(page.key) == fingerprint and page.ran
            if not current or conf["run_stale_examples"]:
                records[page.key] = fingerprint
                page.md5_file.unlink(missing_ok=True)
                page.target.with_suffix(".rst").unlink(missing_ok=True)
        elif page.key in records and page.ran:
            # sphinx-gallery would replace the results of an edited page by a page without any.
            page.md5_file.write_text(get_md5sum(page.source, mode="t"), encoding="utf-8")
    write_records(app, records)


def remove_orphans(gallery: Path, keys: set[str]) -> None:
    """Remove what was generated for pages that do not exist any more."""
    for copy in sorted(gallery.rglob("plot_*.py")):
        if copy.relative_to(gallery).as_posix() in keys:
            continue
        logger.info("removing the results of %s, which is gone", copy.name)
        images = copy.parent.glob(f"images/**/sphx_glr_{copy.stem}_*")
        for file in [*copy.parent.glob(f"{copy.stem}.*"), *images]:
            file.unlink()


def read_records(app: Sphinx) -> dict[str, Any]:
    """Read the recorded fingerprints, none when the file is missing or damaged."""
    try:
        records = json.loads(_records_file(app).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def write_records(app: Sphinx, records: dict[str, Any]) -> None:
    """Write the recorded fingerprints."""
    file = _records_file(app)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _fingerprint(app: Sphinx, page: Page, context: dict[str, str]) -> str:
    return page_fingerprint(page.source, context, Path(app.srcdir, "results"))


def _records_file(app: Sphinx) -> Path:
    return _folders(app)[1] / "fingerprints.json"


def _folders(app: Sphinx) -> tuple[Path, Path]:
    conf = app.config.sphinx_gallery_conf
    return Path(app.srcdir, conf["examples_dirs"][0]), Path(app.srcdir, conf["gallery_dirs"][0])


def _context(app: Sphinx) -> dict[str, str]:
    return build_context(Path(app.config.ortmeter_root), str(chosen_provider()))
