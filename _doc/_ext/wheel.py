"""The wheel of this tree: what a downloaded notebook installs."""

import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of the package, without network.

    Parameters
    ----------
    root : Path
        Root of the repository.
    folder : Path
        Where to write it. Other wheels in this folder are removed.

    Returns
    -------
    Path
        The wheel.

    Raises
    ------
    ExtensionError
        The build failed; the message has its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(  # noqa: S603 - fixed command, no shell
        command, cwd=root, capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ExtensionError(f"the wheel was not built: {done.stderr or done.stdout}")
    return wheels[0]


def publish_wheel(app: Sphinx) -> None:
    """Build the wheel that the site publishes and that the archives of the pages contain."""
    build_wheel(Path(app.config.ortmeter_root), wheel_folder(app))


def published_wheel(app: Sphinx) -> Path:
    """Return the wheel built by :func:`publish_wheel`."""
    (wheel,) = wheel_folder(app).glob("*.whl")
    return wheel


class InstallDirective(SphinxDirective):
    """Tell how to install the wheel of the site."""

    def run(self) -> list[nodes.Node]:
        """Write a link to the wheel, and the command; it names the site if this has an address."""
        wheel, base = published_wheel(self.env.app).name, self.config.html_baseurl.rstrip("/")
        path, up = f"_static/wheel/{wheel}", "../" * self.env.docname.count("/")
        named = f"ortmeter[cpu,draw] @ {base}/{path}" if base else f"./{wheel}[cpu,draw]"
        return self.parse_text_to_nodes(
            f"Install the `wheel <{up}{path}>`__, with ``gpu`` instead of ``cpu`` on a GPU machine:"
            f'\n\n.. code-block:: bash\n\n   pip install "{named}"\n'
        )


def wheel_folder(app: Sphinx) -> Path:
    """Return the folder of the wheel, part of the site."""
    return Path(app.outdir, "_static", "wheel")
