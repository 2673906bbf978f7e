"""The page of missing addresses."""

from types import SimpleNamespace

import pytest
from _ext import hosting

PAGE = """<html data-content_root="./"><head>
<link rel="canonical" href="https://a.org/docs/404.html" />
<link href="_static/x.css?v=1" /></head><body><a href="#main">skip</a>
<form action="search.html"></form><a href="api/index.html#top">API</a><a href="#">here</a>
<img src="data:image/png;base64,AA" /><a href="mailto:me@a.org">write</a></body></html>"""


def finish(folder, base="", exception=None):
    builder, config = SimpleNamespace(format="html"), SimpleNamespace(html_baseurl=base)
    app = SimpleNamespace(outdir=str(folder), builder=builder, config=config)
    hosting.prepare_hosting(app, exception)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "webpack-macros.html").touch()
    (tmp_path / "404.html").write_text(PAGE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("base", "root"),
    [("", "/"), ("https://a.org", "/"), ("https://a.org/docs", "/docs/")],
)
def test_the_page_of_missing_addresses_works_at_any_depth(site, base, root):
    finish(site, base)
    html = (site / "404.html").read_text(encoding="utf-8")
    for address in ("_static/x.css?v=1", "search.html", "api/index.html#top"):
        assert f'="{root}{address}"' in html
    assert f'data-content_root="{root}"' in html
    for kept in ('"https://a.org/docs/404.html"', '"#main"', '"#"', '"data:', '"mailto:'):
        assert f"={kept}" in html
    finish(site, base)
    assert (site / "404.html").read_text(encoding="utf-8") == html
    assert not list((site / "_static").iterdir())  # a template of the theme


def test_a_build_that_failed_is_left_alone(site):
    finish(site, "https://a.org/", exception=RuntimeError())
    assert (site / "404.html").read_text(encoding="utf-8") == PAGE
