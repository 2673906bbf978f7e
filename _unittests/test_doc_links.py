"""Links of a built site, on small sites where one thing is broken."""

import subprocess
import sys
from pathlib import Path

import pytest

DOC = Path(__file__).resolve().parents[1] / "_doc"
sys.path.insert(0, str(DOC))

from _ext.links import Site  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """Site of two pages, an image and a folder with an index."""
    site = tmp_path / "html"
    (site / "deep" / "er").mkdir(parents=True)
    (site / "index.html").write_text("<h1 id='top-of-it'>x</h1><a name=old>y</a>", encoding="utf-8")
    (site / "deep" / "er" / "index.html").write_text("<p id='a b'>x</p>", encoding="utf-8")
    (site / "deep" / "plot.png").touch()
    (tmp_path / "secret.html").touch()
    return site


def broken(folder, html, root="/"):
    (folder / "deep" / "page.html").write_text(html, encoding="utf-8")
    return [(link.page, link.link, link.reason) for link in Site(folder, root).broken_links()]


@pytest.mark.parametrize(
    "html",
    [
        # pages and anchors
        '<a href="../index.html">',
        '<a href="../index.html#top-of-it">',
        '<a href="../index.html#old">',
        '<a href="../index.html?q=1#">',
        '<a href="er/#a%20b">',
        '<a href="#here"><p id="here">',
        '<a href="#top"><a href="">',
        '<a href="/deep/plot.png">',
        # files
        '<img src="plot.png" srcset="plot.png, plot.png 2.00x">',
        '<svg><use xlink:href="#gradient"/><g id="gradient"/></svg>',
        # other sites, and what is no address
        '<a href="https://a.org/x#y"><a href="//a.org"><a href="mailto:me@a.org">',
        '<img src="data:image/png;base64,AA//BB">',
        "<script>const text = '<a href=\"missing.html\">';</script>",
    ],
)
def test_links_that_work(folder, html):
    assert broken(folder, html) == []


@pytest.mark.parametrize(
    ("html", "link", "reason"),
    [
        ('<a href="missing.html">', "missing.html", "no such file"),
        ('<a href="er/missing/">', "er/missing/", "no such file"),
        ('<img src="missing.png">', "missing.png", "no such file"),
        ('<img src="plot.png" srcset="2x.png 2x">', "2x.png", "no such file"),
        ('<link href="x.css?v=1">', "x.css?v=1", "no such file"),
        ('<script src="x.js">', "x.js", "no such file"),
        ('<a href="#here">', "#here", "no anchor here"),
        ('<a href="../index.html#a%20b">', "../index.html#a%20b", "no anchor a b"),
        ('<a href="../../secret.html">', "../../secret.html", "outside the site"),
        ('<a href="/missing.html">', "/missing.html", "no such file"),
    ],
)
def test_links_that_are_broken(folder, html, link, reason):
    assert broken(folder, html) == [("deep/page.html", link, reason)]


def test_absolute_links_are_below_the_path_of_the_site(folder):
    html = '<a href="/docs/deep/plot.png"><a href="/deep/plot.png">'
    expected = [("deep/page.html", "/deep/plot.png", "not below /docs/")]
    assert broken(folder, html, "/docs/") == expected


def check(folder, base=""):
    """Run the program as `make publish-check` does, with the standard library alone."""
    program = [sys.executable, "-I", str(DOC / "_ext" / "links.py"), str(folder)]
    done = subprocess.run(
        program, env={"ORTMETER_BASEURL": base}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_program_tells_what_is_broken(folder):
    broken(folder, '<a href="../index.html"><a href="missing.html">')
    assert check(folder) == (
        1,
        ["deep/page.html: missing.html: no such file", "3 pages, 2 links, 1 broken"],
    )
    broken(folder, '<a href="/docs/index.html">')
    assert check(folder, "https://a.org/docs/") == (0, ["3 pages, 1 links, 0 broken"])


def test_a_site_without_any_link_is_not_a_site(tmp_path):
    assert check(tmp_path) == (1, ["0 pages, 0 links, 0 broken"])
