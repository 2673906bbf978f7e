"""Scripts of other projects: locked by hash, fetched by npm, published with the site.

``assets/package.json`` names them. Without npm, or without network the first time, tables of the
site are static.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: What a page with a table loads: the script of another project, then ours.
LIBRARY, OURS = "lib/simple-datatables.js", ("tables.js", "sorting.js")
_LOCK = "package-lock.json"
_NPM_OPTIONS = ("--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


class UnavailableError(Exception):
    """The scripts cannot be fetched here; the message says why."""


def publish_assets(app: Sphinx, config: Config) -> None:
    """Add the scripts to the static files of the site, or say why the site is static."""
    cache = Path(config.ortmeter_root, "build", "assets")
    try:
        names = fetch_assets(Path(app.confdir, "assets"), cache / "lib")
    except UnavailableError as error:
        logger.info("tables are static: %s", error)
        return
    config.html_static_path.append(str(cache))
    config.ortmeter_scripts = [f"lib/{name}" for name in names]


def add_scripts(
    app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Make a page with a table load the scripts that it needs, and no other page."""
    if 'class="dataframe' in context.get("body", ""):
        for script in (*{LIBRARY}.intersection(app.config.ortmeter_scripts), *OURS):
            app.add_js_file(script, loading_method="defer")


def fetch_assets(source: Path, folder: Path) -> list[str]:
    """Put the files that ``package.json`` publishes into a folder, unless it has those of its lock.

    npm compares each package with the hash of the lock; no script of a package runs.

    Parameters
    ----------
    source : Path
        Folder of ``package.json`` and of its lock.
    folder : Path
        Where the files are kept from one build to the next, and nothing else.

    Returns
    -------
    list of str
        Names of the files.

    Raises
    ------
    UnavailableError
        There is no npm, or it failed, for instance without network.
    """
    manifest, kept = source / "package.json", folder / _LOCK
    if not manifest.exists():
        raise UnavailableError(f"there is no {manifest}")
    published = json.loads(manifest.read_text(encoding="utf-8"))["published"]
    if not kept.exists() or kept.read_bytes() != Path(source, _LOCK).read_bytes():
        if (npm := shutil.which("npm")) is None:
            raise UnavailableError("npm was not found, install Node.js to have them interactive")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            for name in (manifest.name, _LOCK, ".npmrc"):
                shutil.copy(source / name, temporary)
            command = [npm, "ci", "--ignore-scripts", *_NPM_OPTIONS]
            done = subprocess.run(  # noqa: S603 - fixed command, no shell
                command, cwd=temporary, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise UnavailableError(f"npm failed: {done.stderr}")
            for name, path in published.items():  # whole at once: another process may be reading
                Path(temporary, "node_modules", path).replace(folder / name)
        shutil.copy(source / _LOCK, kept)
    return [*published]
