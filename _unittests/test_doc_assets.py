"""Scripts of other projects: what is pinned, what is refused, what a site without them is."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.errors import ExtensionError

DOC = Path(__file__).resolve().parents[1] / "_doc"
sys.path.insert(0, str(DOC))

from _ext import assets  # noqa: E402

posix = pytest.mark.skipif(os.name == "nt", reason="the fake npm is a script with a shebang")

NPM = """#!{python}
import json, pathlib, shutil, sys
assert "--ignore-scripts" in sys.argv
assert pathlib.Path("package-lock.json").exists()
with pathlib.Path({calls!r}).open("a") as file:
    file.write("called\\n")
answer = json.loads(pathlib.Path({answer!r}).read_text())
for path, text in answer["files"].items():
    file = pathlib.Path("node_modules", path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
sys.stderr.write(answer["stderr"])
sys.exit(answer["code"])
"""
# sha384 of "one" and of "two", by openssl.
ONE = "sha384-Xby+2wDRMaKeBZP5dvK0N5QpOSORmtQnZt6Bf+yCSmJieZ/sjQTLmxfEjo6ukSZY"
TWO = "sha384-C1oQxwcbMT0v7unjhkFV6r/FSU0YgqMoTaEBWvDLZI7zfHnIOdn8sxIP0G4Aanvp"


@pytest.fixture
def site(tmp_path):
    """Folder of a manifest that pins two files of two packages."""
    folder = tmp_path / "assets"
    folder.mkdir()
    published = {"a.js": ["one/dist/a.min.js", ONE], "b.js": ["two/b.js", TWO]}
    (folder / "package.json").write_text(json.dumps({"published": published}), encoding="utf-8")
    for name in ("package-lock.json", ".npmrc"):
        (folder / name).touch()
    return folder


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a npm on the path that answers as told; return how to tell and its calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls, answer = tmp_path / "calls.txt", tmp_path / "answer.json"
    script = NPM.format(python=sys.executable, calls=str(calls), answer=str(answer))
    (programs / "npm").write_text(script, encoding="utf-8")
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))

    def brings(a="one", b="two", code=0, stderr=""):
        files = {"one/dist/a.min.js": a, "two/b.js": b}
        text = json.dumps({"files": files, "code": code, "stderr": stderr})
        answer.write_text(text, encoding="utf-8")

    brings()
    return SimpleNamespace(
        brings=brings, calls=lambda: len(calls.read_text().split()) if calls.exists() else 0
    )


# What is committed


def test_every_package_is_locked_by_its_hash_and_by_no_host():
    lock = (DOC / "assets" / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r"resolved|://", lock)
    packages = {k: v for k, v in json.loads(lock)["packages"].items() if k}
    assert packages
    assert all(re.fullmatch(r"sha512-[\w+/]{86}==", p["integrity"]) for p in packages.values())
    wanted = json.loads((DOC / "assets" / "package.json").read_text(encoding="utf-8"))
    locked = {name: packages[f"node_modules/{name}"]["version"] for name in wanted["dependencies"]}
    assert locked == wanted["dependencies"]


def test_every_script_of_the_pages_is_ours_or_pinned():
    pins = {f"lib/{pin.name}": pin for pin in assets.read_pins(DOC / "assets")}
    assert all(re.fullmatch(r"sha384-[\w+/]{64}", pin.integrity) for pin in pins.values())
    for library, *ours in assets.SCRIPTS.values():
        assert library in pins
        assert all((DOC / "_static" / script).exists() for script in ours)


# What npm brings


@posix
def test_files_are_fetched_once(site, npm, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "lib"
    assert assets.fetch_assets(site, folder) == ["a.js", "b.js"]
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "a.js": "one",
        "b.js": "two",
    }
    monkeypatch.setenv("PATH", "")
    assert assets.fetch_assets(site, folder) == ["a.js", "b.js"]
    assert npm.calls() == 1


@posix
def test_an_altered_copy_is_fetched_again(site, npm, tmp_path):
    assets.fetch_assets(site, tmp_path / "lib")
    (tmp_path / "lib" / "a.js").write_text("altered", encoding="utf-8")
    (tmp_path / "lib" / "old.js").touch()
    assets.fetch_assets(site, tmp_path / "lib")
    assert (tmp_path / "lib" / "a.js").read_text() == "one"
    assert not (tmp_path / "lib" / "old.js").exists()
    assert npm.calls() == 2


@posix
def test_a_file_that_is_not_the_pinned_one_is_refused(site, npm, tmp_path):
    npm.brings(b="tampered")
    with pytest.raises(ExtensionError, match=rf"two/b.js is not the file .*{re.escape(TWO)}"):
        assets.fetch_assets(site, tmp_path / "lib")
    assert list((tmp_path / "lib").iterdir()) == []


@posix
def test_a_package_that_is_not_the_locked_one_is_refused(site, npm, tmp_path):
    npm.brings(code=1, stderr="npm error code EINTEGRITY\n")
    with pytest.raises(ExtensionError, match="not the one that was locked"):
        assets.fetch_assets(site, tmp_path / "lib")


@posix
def test_no_network_is_told_in_one_line(site, npm, tmp_path):
    npm.brings(code=1, stderr="npm warn x\nnpm error code ENOTFOUND\nnpm error network\n")
    with pytest.raises(assets.UnavailableError) as caught:
        assets.fetch_assets(site, tmp_path / "lib")
    assert str(caught.value) == "npm failed (code ENOTFOUND, network)"


# The pages


def build(site, monkeypatch):
    """Configure a build; return its configuration and what it told."""
    told = []
    monkeypatch.setattr(
        assets.logger, "info", lambda *message: told.append(message[0] % message[1:])
    )
    monkeypatch.setattr(assets.logger, "warning", pytest.fail)
    config = SimpleNamespace(
        ortmeter_root=str(site.parent), html_static_path=["_static"], ortmeter_scripts=[]
    )
    assets.publish_assets(SimpleNamespace(confdir=site.parent), config)
    return config, told


@posix
def test_scripts_are_static_files_of_the_site(site, npm, monkeypatch):
    config, told = build(site, monkeypatch)
    assert told == []
    assert config.ortmeter_scripts == ["lib/a.js", "lib/b.js"]
    own, added = config.html_static_path
    assert own == "_static"
    assert (Path(added) / "lib" / "a.js").read_text() == "one"


def test_without_npm_the_site_is_static_and_says_so_once(site, monkeypatch):
    monkeypatch.setenv("PATH", "")
    config, told = build(site, monkeypatch)
    assert config.html_static_path == ["_static"]
    assert config.ortmeter_scripts == []
    assert len(told) == 1
    assert told[0].startswith("tables are static: npm was not found")


@pytest.mark.parametrize(
    ("body", "published", "scripts"),
    [
        ("<p>text</p>", ["lib/simple-datatables.js", "lib/other.js"], []),
        (
            '<table border="1" class="dataframe">',
            ["lib/simple-datatables.js", "lib/other.js"],
            ["lib/simple-datatables.js", "tables.js", "sorting.js"],
        ),
        ('<table class="dataframe table">', [], ["tables.js", "sorting.js"]),
    ],
)
def test_a_page_loads_the_scripts_it_needs_in_order(body, published, scripts):
    loaded = []
    app = SimpleNamespace(
        config=SimpleNamespace(ortmeter_scripts=published),
        add_js_file=lambda name, **options: loaded.append((name, options)),
    )
    assets.add_scripts(app, "page", "page.html", {"body": body}, None)
    assert loaded == [(name, {"loading_method": "defer"}) for name in scripts]
