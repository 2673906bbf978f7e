"""Put a built site among the other versions of the published one: `make publish`.

The versions are folders, ``dev`` for the main branch. ``switcher.json`` lists them for the menu of
the theme; the root redirects to the latest release.
"""

import json
import re
import shutil
import sys
from pathlib import Path

DEV = "dev"
_REDIRECT = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ortmeter</title>
<meta http-equiv="refresh" content="0; url={name}/index.html"></head>
<body><a href="{name}/index.html">ortmeter {name}</a></body></html>
"""
_RELEASE = re.compile(r"\d+(\.\d+)*")
_CANONICAL = re.compile(r'<link rel="canonical" href="([^"]+)/index\.html"')


def publish(built: Path, site: Path, name: str) -> None:
    """Replace a version of the published site.

    Parameters
    ----------
    built : Path
        Site that Sphinx built, with its address (``ORTMETER_BASEURL``).
    site : Path
        Folder of the published site, which has a folder for each version.
    name : str
        ``dev`` or a version, ``0.2.0``.

    Raises
    ------
    ValueError
        The name is neither, or the site was not built for the address of this version.
    """
    if name != DEV and not _RELEASE.fullmatch(name):
        raise ValueError(f"version {name!r} is not known. Accepted: {DEV}, or 0.2.0")
    found = _CANONICAL.search((built / "index.html").read_text(encoding="utf-8"))
    if found is None or not found[1].endswith(f"/{name}"):
        raise ValueError(
            f"{built} was built for {found[1] if found else 'no address'}. Accepted: "
            f"ORTMETER_BASEURL=https://.../{name}"
        )
    root = found[1].removesuffix(f"/{name}")
    shutil.rmtree(site / name, ignore_errors=True)
    shutil.copytree(built, site / name)
    folders = {path.parent.name for path in site.glob("*/index.html")}
    releases = sorted(folders - {DEV}, key=_number, reverse=True)
    first = (releases or [DEV])[0]
    listed = [
        {
            "name": f"{one} (stable)" if one == first != DEV else one,
            "version": one,
            "url": f"{root}/{one}/",
            "preferred": one == first,
        }
        for one in [*(folders & {DEV}), *releases]
    ]
    (site / "switcher.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    (site / "index.html").write_text(_REDIRECT.format(name=first), encoding="utf-8")
    shutil.copy(site / first / "404.html", site / "404.html")
    (site / ".nojekyll").touch()  # else the hosting hides _static


def _number(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
