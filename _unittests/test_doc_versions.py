"""The versions of the published site, in a folder."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_doc"))

from _ext.versions import publish

ROOT = "https://a.org/docs"


@pytest.fixture
def put(tmp_path):
    """Publish a small site as a version; return the folder of the published site."""

    def put(name, *, address=None, page="index"):
        built = tmp_path / "built"
        built.mkdir(exist_ok=True)
        for old in built.iterdir():
            old.unlink()
        link = f'<link rel="canonical" href="{address or f"{ROOT}/{name}"}/index.html" />'
        (built / "index.html").write_text(link, encoding="utf-8")
        (built / f"{page}.html").touch()
        (built / "404.html").write_text(name, encoding="utf-8")
        publish(built, tmp_path / "site", name)
        return tmp_path / "site"

    return put


def listed(site):
    return json.loads((site / "switcher.json").read_text(encoding="utf-8"))


def test_versions_are_listed_the_latest_first(put):
    for name in ("0.9.0", "0.10.0", "dev", "0.2.0"):
        site = put(name)
    found = listed(site)
    assert [one["version"] for one in found] == ["dev", "0.10.0", "0.9.0", "0.2.0"]
    assert [one["name"] for one in found][:2] == ["dev", "0.10.0 (stable)"]
    assert [one["version"] for one in found if one["preferred"]] == ["0.10.0"]
    assert found[0]["url"] == f"{ROOT}/dev/"


def test_the_root_leads_to_the_latest_release_or_to_the_main_branch(put):
    site = put("dev")
    assert 'url=dev/index.html"' in (site / "index.html").read_text(encoding="utf-8")
    site = put("0.2.0")
    assert 'url=0.2.0/index.html"' in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "404.html").read_text(encoding="utf-8") == "0.2.0"


def test_a_version_replaces_what_it_was_and_nothing_else(put):
    put("0.2.0", page="old")
    put("dev")
    site = put("0.2.0", page="new")
    assert (site / "0.2.0" / "new.html").exists()
    assert not (site / "0.2.0" / "old.html").exists()
    assert (site / "dev" / "index.html").exists()


@pytest.mark.parametrize("name", ["latest", "..", ""])
def test_a_name_that_is_no_version_is_refused(put, name, tmp_path):
    with pytest.raises(ValueError, match=f"'{name}'"):
        put(name)
    assert not (tmp_path / "site").exists()


def test_a_site_built_for_another_address_is_refused(put, tmp_path):
    with pytest.raises(
        ValueError, match=r"was built for https://a.org/docs/dev. Accepted: .*/0.2.0"
    ):
        put("0.2.0", address=f"{ROOT}/dev")
    assert not (tmp_path / "site").exists()
