import json
import os
import stat
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.version import Version

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.releases import environments as releases
from ortmeter.releases.environments import (
    list_releases,
    parse_release,
    prepare,
)

NUMPY = f"numpy=={np.__version__}"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runtimes"


@pytest.fixture
def uv(monkeypatch, tmp_path):
    """Put a program named uv first on the path; return how to write what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(code):
        log = tmp_path / "calls"
        text = (
            f"#!{sys.executable}\nimport sys, time\n"
            f"open({str(log)!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n{code}\n"
        )
        file = folder / "uv"
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return log

    return write


def wheel(path, content="x"):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("onnxruntime/__init__.py", content)
    return path


@pytest.mark.parametrize(
    ("text", "provider", "requirements"),
    [
        # versions
        ("1.24.1", "cpu", ("onnxruntime==1.24.1", NUMPY)),
        ("1.31.0rc1", "cpu", ("onnxruntime==1.31.0rc1", NUMPY)),
        ("1.31.1", "cuda", ("onnxruntime-gpu[cuda,cudnn]==1.31.1", NUMPY)),
        # built for NumPy 1
        ("1.17.3", "cpu", ("onnxruntime==1.17.3", "numpy<2")),
        # the libraries of CUDA were not in wheels
        ("1.20.1", "cuda", ("onnxruntime-gpu==1.20.1", NUMPY)),
        # distributions
        ("onnxruntime-gpu==1.30.0", "cpu", ("onnxruntime-gpu==1.30.0", NUMPY)),
        ("onnxruntime-gpu==1.30.0", "cuda", ("onnxruntime-gpu[cuda,cudnn]==1.30.0", NUMPY)),
        ("onnxruntime-openvino", "cpu", ("onnxruntime-openvino", NUMPY)),
        ("installed", "cpu", ()),
    ],
)
def test_what_names_a_release(text, provider, requirements):
    found = parse_release(text, provider)
    assert (found.name, found.requirements) == (text.replace("==", " "), requirements)


@pytest.mark.parametrize(
    "text",
    [
        # options of the installer, addresses
        "--index-url=http://example.com",
        "onnxruntime @ https://example.com/onnxruntime-1.0-py3-none-any.whl",
        "git+https://example.com/x.git",
        # other packages, other forms
        "requests==2.0",
        "onnxruntime>=1.20",
        "onnxruntime==1.*",
        "onnxruntime[x]==1.20",
        "onnxruntime==1.20; python_version > '3'",
        "onnxruntime==1.20 --pre",
        "; rm -rf /",
        "nightly",
        "",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="Accepted: a version"):
        parse_release(text)


def test_an_environment_with_the_libraries_of_cuda_is_another_one(uv):
    calls = uv("")
    release = prepare(parse_release("1.31.1", "cuda"))
    assert "--no-deps" not in calls.read_text()
    assert release.key != parse_release("onnxruntime-gpu==1.31.1", "cpu").key


def test_a_wheel_is_known_by_its_content(tmp_path):
    file = wheel(tmp_path / "onnxruntime-1.20.1-py3-none-any.whl")
    before = parse_release(str(file))
    assert before.requirements == (str(file), NUMPY)
    assert before.name.startswith("onnxruntime 1.20.1 (wheel ")
    wheel(file, "y")
    assert parse_release(str(file)).key != before.key


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.whl", "is not the name of a wheel"),
        ("requests-1.0-py3-none-any.whl", "is a wheel of requests"),
        ("onnxruntime-1.0-py3-none-any.whl", "is not a file"),
    ],
)
def test_a_wheel_that_is_refused(name, message, tmp_path):
    with pytest.raises(InvalidArgumentError, match=message):
        parse_release(str(tmp_path / name))


def test_an_environment_is_made_once_and_told(uv, cache):
    calls, told = uv("print('Resolved 2 packages')"), []
    release = prepare(parse_release("1.24.1"), told.append)
    assert release.python.exists()
    assert release.folder.parent == cache
    assert str(release.folder) in told[0]
    assert "MiB" in told[1]
    (command,) = map(eval, calls.read_text().splitlines())
    assert command[:2] == ["pip", "install"]
    assert {"--only-binary=:all:", "--no-deps"} <= {*command}
    assert command[-2:] == ["onnxruntime==1.24.1", NUMPY]
    prepare(release, told.append)
    assert len(calls.read_text().splitlines()) == 1
    assert list(cache.iterdir()) == [release.folder]


def test_an_installer_that_fails_says_why_and_leaves_nothing(uv, cache):
    uv("print('error: there is no version 1.99')\nprint('hint: try')\nsys.exit(1)")
    with pytest.raises(OrtMeterError, match="1.99: onnxruntime==1.99 and .* no version 1.99 hint"):
        prepare(parse_release("1.99"))
    assert list(cache.iterdir()) == []


def test_a_registry_that_does_not_answer_is_given_up(uv, cache, monkeypatch):
    monkeypatch.setattr(releases, "_ANSWER_S", 0.3)
    uv("time.sleep(10)")
    with pytest.raises(OrtMeterError, match="no registry of packages answered within 0.3 s"):
        prepare(parse_release("1.24.1"))
    assert list(cache.iterdir()) == []


def test_a_registry_that_answered_has_more_time(uv, monkeypatch, tmp_path):
    """Its time stops as soon as it answers: the installer goes on then only."""
    stopped = tmp_path / "stopped"
    timer = SimpleNamespace(start=lambda: None, cancel=stopped.touch)
    monkeypatch.setattr(releases, "threading", SimpleNamespace(Timer=lambda *_: timer))
    uv(f"""import os
print('Resolved 2 packages', flush=True)
for _ in range(1000):
    if os.path.exists({str(stopped)!r}): sys.exit()
    time.sleep(0.01)
sys.exit('it is still counted')""")
    assert prepare(parse_release("1.24.1")).python.exists()


def test_an_interruption_leaves_nothing_that_looks_complete(cache, monkeypatch):
    def interrupted(release, folder):
        (folder / "bin").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(releases, "_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(parse_release("1.24.1"))
    assert list(cache.iterdir()) == []


def test_another_process_may_make_it_at_the_same_time(uv, cache, monkeypatch):
    release = parse_release("1.24.1")

    def install(_release, folder):
        for made in (folder, release.folder):
            made.mkdir()
            (made / "release.json").write_text(json.dumps({"name": "1.24.1"}))

    monkeypatch.setattr(releases, "_install", install)
    assert prepare(release) == release
    assert list(cache.iterdir()) == [release.folder]


@pytest.fixture
def listed(uv, monkeypatch):
    """Let a registry have these versions; return the calls."""
    monkeypatch.setattr(releases.importlib.util, "find_spec", lambda _name: None)
    return uv(
        "print('Resolved 1 package')\nprint('Available versions: 1.32.0, 1.31.1, 1.30.0, 1.9.0')"
    )


def test_the_releases_of_a_range_are_listed_oldest_first(listed):
    found = list_releases("1.9", "1.32.0")
    assert [release.name for release in found] == ["1.9.0", "1.30.0", "1.31.1", "1.32.0"]
    assert found[-1] == parse_release("1.32.0")
    (command,) = map(eval, listed.read_text().splitlines())
    assert command[:5] == ["tool", "run", "--python", sys.executable, "pip"]
    assert command[5:8] == ["index", "versions", "onnxruntime"]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (("1.31.0", "1.32.0"), "1.31.0..1.32.0. Accepted: two releases of onnxruntime for Pyt"),
        (("1.32.0", "1.31.1"), "the older first, among 1.9.0, 1.30.0, 1.31.1, 1.32.0"),
        (("1.32.0", "1.32.0"), "Accepted: two releases"),
    ],
)
def test_a_range_that_cannot_be_listed(ends, message, listed):
    with pytest.raises(InvalidArgumentError, match=message):
        list_releases(*ends)


def test_releases_that_cannot_be_listed_say_why(uv, monkeypatch):
    monkeypatch.setattr(releases.importlib.util, "find_spec", lambda _name: None)
    uv("print('ERROR: there is no onnxruntime-gpu')\nsys.exit(1)")
    told = "onnxruntime-gpu: its releases cannot be listed for Python .*: ERROR: there is no"
    with pytest.raises(OrtMeterError, match=told):
        list_releases("1.31.1", "1.32.0", "cuda")
    uv("print('nothing that is known')")
    with pytest.raises(OrtMeterError, match="cannot be listed: pip names none"):
        list_releases("1.31.1", "1.32.0", "cuda")


def test_the_answer_of_the_pip_that_is_installed_is_read(tmp_path, cache, monkeypatch):
    """Its pages may say anything: the reason of a yanked release is no answer."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(releases, "_ANSWER_S", 60.0)
    page = tmp_path / "simple" / "onnxruntime" / "index.html"
    page.parent.mkdir(parents=True)
    names = [f"onnxruntime-1.99.{patch}-py3-none-any.whl" for patch in (0, 1)]
    yanked = 'data-yanked="\nAvailable versions: 7.7\nERROR: spoiled"'
    page.write_text(f"<a href={names[0]}>{names[0]}</a><a href={names[1]} {yanked}>{names[1]}</a>")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert releases._listed("onnxruntime") == [Version("1.99.0")]
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple/")
    with pytest.raises(OrtMeterError, match=r"Python .*: .*\*\*\*@127.0.0.1:9") as caught:
        releases._listed("onnxruntime")
    assert "secret" not in str(caught.value)


def test_the_environment_of_this_process_needs_nothing(cache):
    assert prepare(parse_release("installed")).python == Path(sys.executable)
    assert not cache.exists()


@pytest.mark.slow
def test_the_real_registry():
    try:
        found = list_releases("1.26.0", "1.31.1")
    except OrtMeterError as error:
        pytest.skip(f"there is no registry of packages: {error}")
    assert {"1.26.0", "1.27.0", "1.31.1"} <= {release.name for release in found}


@pytest.mark.slow
def test_a_real_release():
    try:
        release = prepare(parse_release("1.24.1"))
    except OrtMeterError as error:
        pytest.skip(f"there is no registry of packages: {error}")
    assert release.python.exists()
    assert any(release.folder.glob("**/onnxruntime-1.24.1.dist-info"))
