"""Internal links of a built site: the page, the file and the anchor that each one names exist.

``python _doc/_ext/links.py dist/html`` needs Python only; ``ORTMETER_BASEURL`` is the address that
the site was built for.
"""

import os
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ADDRESSES = {"href", "xlink:href", "src", "poster", "action"}
_ANCHORS = {"id", "name"}
# Every browser knows these two: the top of the page.
_TOP = {"", "top"}


@dataclass(frozen=True)
class BrokenLink:
    """A link that leads nowhere.

    Parameters
    ----------
    page : str
        Page that has it, relative to the site.
    link : str
        The link as it is written.
    reason : str
        What is missing.
    """

    page: str
    link: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}: {self.link}: {self.reason}"


@dataclass
class Site:
    """A built site, whose pages are read once.

    Parameters
    ----------
    folder : Path
        Where ``index.html`` is.
    root : str
        Path of the site on its host, for the links that begin with ``/``.
    """

    folder: Path
    root: str = "/"
    _pages: dict[Path, "_Page"] = field(default_factory=dict, repr=False)

    def broken_links(self) -> list[BrokenLink]:
        """List the links that lead nowhere, by page."""
        return [
            BrokenLink(page.relative_to(self.folder).as_posix(), link, reason)
            for page in self.pages()
            for link in self.read(page).links
            if (reason := self.why_broken(page, link))
        ]

    def pages(self) -> list[Path]:
        """List the pages, sorted."""
        return sorted(self.folder.rglob("*.html"))

    def read(self, page: Path) -> "_Page":
        """Read the links and the anchors of a page."""
        if page not in self._pages:
            self._pages[page] = _Page(page.read_text(encoding="utf-8"))
        return self._pages[page]

    def why_broken(self, page: Path, link: str) -> str:
        """Tell why a link is broken, nothing when it works or leads to another site."""
        url = urlsplit(link)
        if url.scheme or url.netloc:
            return ""
        if url.path.startswith("/") and not url.path.startswith(self.root):
            return f"not below {self.root}"
        target = self._target(page, unquote(url.path))
        if not target.is_relative_to(self.folder.resolve()):
            return "outside the site"
        if not target.is_file():
            return "no such file"
        anchor = unquote(url.fragment)
        if target.suffix == ".html" and anchor not in self.read(target).anchors | _TOP:
            return f"no anchor {anchor}"
        return ""

    def _target(self, page: Path, path: str) -> Path:
        start = self.folder if path.startswith("/") else page.parent
        target = (start / path.removeprefix(self.root)).resolve() if path else page.resolve()
        return target / "index.html" if target.is_dir() else target


class _Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read one tag."""
        for name, value in attrs:
            if name in _ADDRESSES or (tag, name) == ("object", "data"):
                self.links.append((value or "").strip())
            elif name == "srcset":
                self.links += [part.split()[0] for part in (value or "").split(",") if part.strip()]
            elif name in _ANCHORS and value:
                self.anchors.add(value)


def root_of(base: str) -> str:
    """Path of a site on its host, from its address; ``/`` when the address is not known."""
    return f"{urlsplit(base).path.rstrip('/')}/"


def main(folder: str) -> int:
    """Print the broken links of a site; return how many there are, at most 1."""
    site = Site(Path(folder), root_of(os.environ.get("ORTMETER_BASEURL", "")))
    broken = site.broken_links()
    for link in broken:
        print(link)
    total = sum(len(site.read(page).links) for page in site.pages())
    print(f"{len(site.pages())} pages, {total} links, {len(broken)} broken")
    return 1 if broken or not total else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
