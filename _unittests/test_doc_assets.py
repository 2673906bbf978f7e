"""Scripts of other projects: what is locked, what npm brings, what a site without them is."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from _ext import assets

DOC = Path(__file__).resolve().parents[1] / "_doc"

NPM = """#!{python}
import pathlib, sys
assert "--ignore-scripts" in sys.argv
text = pathlib.Path("package-lock.json").read_text()
for path in ("one/dist/a.min.js", "two/b.js"):
    file = pathlib.Path("node_modules", path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
sys.exit("code EINTEGRITY" if text == "altered" else 0)
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Folder of a manifest that publishes two files, and an npm that writes its lock into them."""
    folder = tmp_path / "assets"
    folder.mkdir()
    published = {"a.js": "one/dist/a.min.js", "b.js": "two/b.js"}
    (folder / "package.json").write_text(json.dumps({"published": published}), encoding="utf-8")
    for name in ("package-lock.json", ".npmrc"):
        (folder / name).touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "npm").write_text(NPM.format(python=sys.executable), encoding="utf-8")
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return folder


@pytest.mark.parametrize("folder", [DOC / "assets", DOC.parent / "_unittests" / "browser_assets"])
def test_every_package_is_locked_by_its_hash_and_by_no_host(folder):
    lock = (folder / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r"resolved|://", lock)
    packages = {k: v for k, v in json.loads(lock)["packages"].items() if k}
    assert packages
    assert all(re.fullmatch(r"sha512-[\w+/]{86}==", p["integrity"]) for p in packages.values())
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    locked = {name: packages[f"node_modules/{name}"]["version"] for name in wanted["dependencies"]}
    assert locked == wanted["dependencies"]


def test_every_script_of_the_pages_is_ours_or_locked():
    manifest = json.loads((DOC / "assets" / "package.json").read_text(encoding="utf-8"))
    assert assets.LIBRARY.removeprefix("lib/") in manifest["published"]
    assert all((DOC / "_static" / script).exists() for script in assets.OURS)


def test_files_are_fetched_once_for_each_lock(site, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "lib"
    assert assets.fetch_assets(site, folder) == ["a.js", "b.js"]
    (site / "package-lock.json").write_text("newer", encoding="utf-8")
    assets.fetch_assets(site, folder)
    assert [(folder / name).read_text() for name in ("a.js", "b.js")] == ["newer", "newer"]
    monkeypatch.setenv("PATH", "")
    assert assets.fetch_assets(site, folder) == ["a.js", "b.js"]


def test_what_npm_refuses_is_not_kept(site, tmp_path, monkeypatch):
    (site / "package-lock.json").write_text("altered", encoding="utf-8")
    with pytest.raises(assets.UnavailableError, match="EINTEGRITY"):
        assets.fetch_assets(site, tmp_path / "lib")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(assets.UnavailableError, match=r"install Node\.js"):
        assets.fetch_assets(site, tmp_path / "lib")
    assert not any((tmp_path / "lib").iterdir())


@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_page_loads_the_scripts_that_it_needs(site, tmp_path, has_scripts):
    if not has_scripts:
        (site / "package.json").unlink()
    config = SimpleNamespace(
        ortmeter_root=str(tmp_path), html_static_path=["_static"], ortmeter_scripts=[]
    )
    loaded = []
    app = SimpleNamespace(
        confdir=str(tmp_path), config=config, add_js_file=lambda name, **_: loaded.append(name)
    )
    assets.publish_assets(app, config)
    assert config.ortmeter_scripts == (["lib/a.js", "lib/b.js"] if has_scripts else [])
    assert len(config.html_static_path) == 1 + has_scripts
    config.ortmeter_scripts += [assets.LIBRARY] * has_scripts
    assets.add_scripts(app, "", "", {"body": "<p>no table</p>"}, None)
    assert loaded == []
    assets.add_scripts(app, "", "", {"body": '<table class="dataframe">'}, None)
    library = [assets.LIBRARY] * has_scripts
    assert loaded == [*library, "tables.js", "sorting.js"]
