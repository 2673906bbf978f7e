"""Scripts of other projects: fetched by npm, pinned by their hashes, published with the site.

``assets/package.json`` names them. Without npm, or without network the first time, tables of the
site are static.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: What a page loads when it holds a text: the script of another project, then ours.
SCRIPTS = {
    'class="dataframe': ("lib/simple-datatables.js", "tables.js", "sorting.js"),
}
_MANIFEST = ("package.json", "package-lock.json", ".npmrc")
_NPM_OPTIONS = ("--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
_TIMEOUT_S = 300


class UnavailableError(Exception):
    """The scripts cannot be fetched here; the message says why."""


@dataclass(frozen=True)
class Pin:
    """A file that the site publishes.

    Parameters
    ----------
    name : str
        Name on the site.
    path : str
        Path below ``node_modules``.
    integrity : str
        Hash, as browsers write it: ``sha384-`` and the digest in base 64.
    """

    name: str
    path: str
    integrity: str

    def check(self, file: Path) -> None:
        """Refuse a file that is not the one that was pinned.

        Raises
        ------
        ExtensionError
            Its hash is another one.
        """
        got = file_integrity(file)
        if got != self.integrity:
            raise ExtensionError(
                f"{self.path} is not the file that assets/package.json pins: its hash is {got}, "
                f"expected {self.integrity}"
            )

    def is_intact(self, file: Path) -> bool:
        """Tell whether a file is there and is the one that was pinned."""
        return file.exists() and file_integrity(file) == self.integrity


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
    """Make a page load the scripts that it needs, and no other page."""
    for text, (library, *ours) in SCRIPTS.items():
        if text in context.get("body", ""):
            libraries = {library}.intersection(app.config.ortmeter_scripts)
            for script in (*libraries, *ours):
                app.add_js_file(script, loading_method="defer")


def fetch_assets(source: Path, folder: Path) -> list[str]:
    """Put the pinned files into a folder; npm runs when one of them is missing or altered.

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
    ExtensionError
        What npm brought is not what was pinned.
    """
    pins = read_pins(source)
    if not all(pin.is_intact(folder / pin.name) for pin in pins):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            modules = install_packages(source, Path(temporary))
            for pin in pins:
                pin.check(modules / pin.path)
            for pin in pins:  # whole at once: another process may be reading
                beside = folder.with_name(f"{pin.name}.{os.getpid()}")
                shutil.copyfile(modules / pin.path, beside)
                beside.replace(folder / pin.name)
    names = [pin.name for pin in pins]
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink()
    return names


def read_pins(source: Path) -> list[Pin]:
    """Read which files are published."""
    try:
        manifest = json.loads((source / "package.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnavailableError(f"there is no {error.filename}") from error
    return [Pin(name, *entry) for name, entry in manifest["published"].items()]


def install_packages(source: Path, folder: Path) -> Path:
    """Install the locked packages into a folder and return their parent; no script of theirs runs.

    Raises
    ------
    UnavailableError
        There is no npm, or it failed.
    ExtensionError
        A package is not the one that was locked.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm was not found, install Node.js to have them interactive")
    for name in _MANIFEST:
        shutil.copy(source / name, folder)
    command = [npm, "ci", "--ignore-scripts", *_NPM_OPTIONS]
    try:
        done = subprocess.run(  # noqa: S603 - fixed command, no shell
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm did not end within {_TIMEOUT_S} s") from error
    if "EINTEGRITY" in done.stderr:
        raise ExtensionError(f"a package is not the one that was locked: {done.stderr}")
    if done.returncode:
        reasons = re.findall(r"^npm error (.+)", done.stderr, flags=re.MULTILINE)
        raise UnavailableError(f"npm failed ({', '.join(reasons[:3]) or 'it does not say why'})")
    return folder / "node_modules"


def file_integrity(file: Path) -> str:
    """Hash a file."""
    digest = hashlib.sha384(file.read_bytes()).digest()
    return f"sha384-{base64.b64encode(digest).decode()}"
