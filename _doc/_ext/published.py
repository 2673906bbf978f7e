"""Checks on the HTML of the site: it asks nothing of other sites, it shows no path of a machine."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# A browser follows these by itself, it follows a link when the reader clicks.
_LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
_NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author", "license"}
_EXTERNAL = re.compile(r"(?:^|[\s,])((?:https?:)?//[^\s,]+)")
_EXTERNAL_CSS = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\s\"')]+)")
_SHORTEST = 2


def external_requests(html: str) -> list[str]:
    """List the addresses on other sites that a browser would load with a page."""
    collector = _Collector()
    collector.feed(html)
    return collector.addresses + _EXTERNAL_CSS.findall(html)


def machine_paths(html: str, paths: list[str]) -> list[str]:
    """List those of *paths* that a page shows."""
    return [path for path in paths if path in html]


def check_site(app: Sphinx, exception: Exception | None) -> None:
    """Warn of each page that loads something external or shows a path of this machine."""
    if exception is not None or app.builder.format != "html":
        return
    folders = (Path(app.config.ortmeter_root), Path(sys.prefix), Path.home())
    # A home such as / or /root would be found in any text.
    paths = [str(folder) for folder in folders if len(folder.parts) > _SHORTEST]
    for page in sorted(Path(app.outdir).rglob("*.html")):
        name, html = page.relative_to(app.outdir), page.read_text(encoding="utf-8")
        for address in external_requests(html):
            logger.warning("%s loads %s from another site", name, address, type="ortmeter")
        for path in machine_paths(html, paths):
            logger.warning("%s shows the path %s of this machine", name, path, type="ortmeter")
    for sheet in sorted(Path(app.outdir).rglob("*.css")):
        for address in _EXTERNAL_CSS.findall(sheet.read_text(encoding="utf-8")):
            name = sheet.relative_to(app.outdir)
            logger.warning("%s loads %s from another site", name, address, type="ortmeter")


class _Collector(HTMLParser):
    """Collect the addresses that the tags of a page load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read one tag."""
        values = dict(attrs)
        if tag == "link" and set((values.get("rel") or "").split()) <= _NOT_LOADED:
            return
        for name in _LOADED.get(tag, ()):
            self.addresses += _EXTERNAL.findall(values.get(name) or "")
