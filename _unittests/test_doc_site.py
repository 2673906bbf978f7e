"""A site of two pages, built by Sphinx with the real configuration and a package of one file."""

import base64
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import nbformat
import pytest
from processes import run_python

import ortmeter

REPOSITORY = Path(__file__).resolve().parents[1]
DOC = REPOSITORY / "_doc"

PYPROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ortmeter"
version = "{ortmeter.__version__}"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["src/ortmeter"]
"""
WHEEL = f"ortmeter-{ortmeter.__version__}-py3-none-any.whl"

INDEX = """
Site
====

.. minigallery::

   examples/*/plot_*.py

.. toctree::

   auto_examples/index
"""

# The file of the runs tells which pages ran. Outputs are in upper case: the source of a page is
# published too.
PAGE = r'''
r"""
.. _l-{name}:

Is {name} a page?
=================

The cost is :math:`2N^2`, and

.. math::

   \sum_{{i=1}}^{{n}} i = \frac{{n (n + 1)}}{{2}}
"""

# %%
# Results
# -------

# sphinx_gallery_tags = ["tag of {name}"]

import os
from pathlib import Path

with Path(os.environ["RUNS"]).open("a") as file:
    file.write("{name}\n")
print("fast mode: " + (os.environ.get("ORTMETER_FAST") or "0"))
{code}
print("results of {name}".upper())
'''


# A figure and a table, then another cell.
SHOWN = """
from matplotlib import pyplot as plt
from pandas import DataFrame

plt.plot([1, 2], label="a line")
DataFrame({"ratio": [1.25]})

# %%
# A last cell.

del DataFrame"""


class Site:
    """A repository in miniature."""

    def __init__(self, root):
        self.root = root
        self.doc = root / "_doc"
        self.out = root / "dist" / "html"
        self.gallery = self.doc / "auto_examples" / "faster_runs"
        self.log = ""

    def write(self, name, code=""):
        """Write a page."""
        page = self.doc / "examples" / "faster_runs" / f"{name}.py"
        page.write_text(PAGE.format(name=name, code=code).lstrip(), encoding="utf-8")

    def build(self, **variables):
        """Build the site, return the exit code and the names of the pages that ran."""
        runs = self.root / "runs.txt"
        runs.write_text("", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if "ORTMETER" not in name}
        own = kept | {"RUNS": str(runs), "ORTMETER_PROVIDER": "cpu"} | variables
        options = ["-nW", "-d", self.root / "doctrees", self.doc, self.out]
        done = run_python("-m", "sphinx", *options, env=own)
        self.log = done.stdout + done.stderr
        return done.returncode, runs.read_text(encoding="utf-8").split()

    def html(self, name):
        """Return the published page."""
        return (self.out / f"auto_examples/faster_runs/{name}.html").read_text(encoding="utf-8")

    def recorded(self):
        """Return the names of the pages whose results are known to be current."""
        return sorted(path.name.removesuffix(".py.md5") for path in self.gallery.glob("*.md5"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Site that was built once; tests copy it."""
    site = Site(tmp_path_factory.mktemp("site"))
    (site.root / "src" / "ortmeter").mkdir(parents=True)
    (site.root / "src" / "ortmeter" / "__init__.py").touch()
    (site.root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (site.root / "LICENSE").touch()
    (site.doc / "examples" / "faster_runs").mkdir(parents=True)
    for folder in ("_ext", "_static", "_templates"):
        shutil.copytree(DOC / folder, site.doc / folder)
    for header in ("GALLERY_HEADER.rst", "faster_runs/GALLERY_HEADER.rst"):
        shutil.copy(DOC / "examples" / header, site.doc / "examples" / header)
    conf = (DOC / "conf.py").read_text(encoding="utf-8")
    # The API of the real package is the business of the real site.
    conf += "\nextensions = ['sphinx_gallery.gen_gallery', '_ext']\n"
    (site.doc / "conf.py").write_text(conf, encoding="utf-8")
    (site.doc / "index.rst").write_text(INDEX, encoding="utf-8")
    for name, title in (("methodology", "Method"), ("404", "Nothing here")):
        text = f":orphan:\n\n{title}\n============\n"
        (site.doc / f"{name}.rst").write_text(text, encoding="utf-8")
    site.write("plot_a")
    site.write("plot_b")
    code, ran = site.build(ORTMETER_BASEURL="https://example.org/site/")
    assert code == 0, site.log
    assert ran == ["plot_a", "plot_b"]
    return site


@pytest.fixture
def site(built, tmp_path):
    """Copy of the built site."""
    shutil.copytree(built.root, tmp_path / "site", symlinks=True)
    return Site(tmp_path / "site")


@pytest.fixture(scope="module")
def edited(built, tmp_path_factory):
    """Copy in which a page was edited, and what its build returned."""
    site = Site(tmp_path_factory.mktemp("edited") / "site")
    shutil.copytree(built.root, site.root, symlinks=True)
    loop = "with progress_bar('sessions', total=400) as bar:\n    bar.update(120)"
    code = f"from ortmeter.progress import progress_bar\n{loop}\nprint('second edition'.upper())"
    site.write("plot_b", f"{code}\n{SHOWN}")
    return site, site.build()


def test_page_publishes_its_results_its_machine_and_its_address(built):
    html = built.html("plot_a")
    assert "RESULTS OF PLOT_A" in html
    machine = re.search(r'<p class="built-on">(.*)</p>', html)[1]
    assert machine.startswith(f"ortmeter {ortmeter.__version__}. Measured on ")
    assert "provider CPU" in machine
    address = "https://example.org/site/auto_examples/faster_runs/plot_a.html"
    assert f'<link rel="canonical" href="{address}" />' in html


def test_page_of_missing_addresses_depends_on_no_folder(built):
    html = (built.out / "404.html").read_text(encoding="utf-8")
    addresses = re.findall(r'\s(?:href|src|action|data-content_root)="([^"#][^"]*)"', html)
    inside = [address for address in addresses if "://" not in address]
    assert {"/site/", "/site/index.html"} <= set(inside)
    assert all(address.startswith("/site/") for address in inside)


@pytest.mark.slow
def test_site_without_address_is_at_the_root_of_its_host(site):
    assert site.build() == (0, [])
    assert 'href="/index.html"' in (site.out / "404.html").read_text(encoding="utf-8")


def test_settings_of_a_page_are_a_tag(built):
    html = built.html("plot_a")
    assert "Tags: tag of plot_a" in html
    assert "sphinx_gallery_tags" not in html
    assert html.count('<div class="highlight"><pre>') == 2  # the code and its output


def test_formulas_are_mathml_without_script(built):
    html = built.html("plot_a")
    assert '<math alttext="2N^2"' in html
    assert r'<math alttext="\sum_{i=1}^{n} i = \frac{n (n + 1)}{2}"' in html
    assert "<mfrac>" in html
    assert "mathjax" not in html.lower()


@pytest.mark.parametrize(
    ("archive", "members"),
    [
        ("faster_runs/plot_a.zip", {"plot_a.py", "plot_a.ipynb"}),
        ("auto_examples_python.zip", {"faster_runs/plot_a.py", "faster_runs/plot_b.py"}),
        ("auto_examples_jupyter.zip", {"faster_runs/plot_a.ipynb", "faster_runs/plot_b.ipynb"}),
    ],
    ids=["page", "scripts", "notebooks"],  # no name of a page: they share the site of this file
)
def test_archive_holds_the_page_and_the_wheel_together(built, archive, members):
    (published,) = built.out.glob(f"_downloads/*/{Path(archive).name}")
    with zipfile.ZipFile(published) as opened:
        assert set(opened.namelist()) == members | {WHEEL}
        wheel = opened.read(WHEEL)
    (expected,) = built.out.rglob("*.whl")
    assert wheel == expected.read_bytes()


def test_notebook_begins_with_the_wheel_of_the_site(built):
    (published,) = built.out.glob("_downloads/*/plot_a.ipynb")
    notebook = json.loads(published.read_text(encoding="utf-8"))
    _, first, *others = ("".join(cell["source"]) for cell in notebook["cells"])
    assert 'SITE = "https://example.org/site/_static/wheel/"' in first
    assert f'WHEEL = "{WHEEL}"' in first
    assert not any("pip" in cell for cell in others)


@pytest.mark.slow
def test_edited_page_runs_alone(edited):
    site, built = edited
    assert built == (0, ["plot_b"]), site.log
    assert "SECOND EDITION" in site.html("plot_b")
    assert "RESULTS OF PLOT_A" in site.html("plot_a")


@pytest.mark.slow
def test_notebook_has_what_each_cell_showed_in_the_build(edited):
    site, _ = edited
    (published,) = site.out.glob("_downloads/*/plot_b.ipynb")
    notebook = nbformat.read(published, as_version=4)
    nbformat.validate(notebook)
    *_, shown, last = (cell for cell in notebook.cells if cell.cell_type == "code")
    picture, printed, table = shown.outputs
    (image,) = site.gallery.glob("images/sphx_glr_plot_b_001.png")
    assert base64.b64decode(picture.data["image/png"]) == image.read_bytes()
    assert (printed.name, printed.text) == ("stdout", "fast mode: 0\nSECOND EDITION")
    assert "<td>1.25</td>" in table.data["text/html"]
    assert [output.text for output in last.outputs] == ["RESULTS OF PLOT_B"]


@pytest.mark.slow
def test_change_of_the_package_runs_every_page(site):
    (site.root / "src" / "ortmeter" / "__init__.py").write_text("x = 1\n", encoding="utf-8")
    assert site.build() == (0, ["plot_a", "plot_b"])


@pytest.mark.slow
def test_failing_page_fails_the_build_and_runs_again(site):
    site.write("plot_a", "raise RuntimeError('no luck')")
    code, ran = site.build()
    assert code != 0
    assert ran == ["plot_a"]
    assert "no luck" in site.log
    assert site.recorded() == ["plot_b"]
    # Back to a text that ran before: sphinx-gallery alone would publish the failure.
    site.write("plot_a")
    assert site.build() == (0, ["plot_a"])
    assert "no luck" not in site.html("plot_a")


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "expected"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 2)", 2)])
def test_interrupted_build_keeps_what_was_finished(site, ends, expected):
    site.write("plot_a", "print('second edition'.upper())")
    site.write("plot_b", ends)
    code, ran = site.build()
    assert (code, ran) == (expected, ["plot_a", "plot_b"])
    assert "Traceback" not in site.log
    assert ("Interrupted!" in site.log) is (expected == 2)
    site.write("plot_b")
    assert site.build() == (0, ["plot_b"])
    assert "SECOND EDITION" in site.html("plot_a")


@pytest.mark.slow
def test_build_in_fast_mode_is_another_build(site):
    assert site.build(ORTMETER_FAST="1") == (0, ["plot_a", "plot_b"])
    assert "fast mode: 1" in site.html("plot_a")
    assert site.build(ORTMETER_FAST="1") == (0, [])
    assert site.build() == (0, ["plot_a", "plot_b"])


@pytest.mark.slow
def test_copy_built_without_plot_shows_the_text_of_today(site):
    copy = Site(site.root)
    copy.doc, copy.out = site.root / "build" / "noplot", site.root / "dist" / "html-noplot"
    site.write("plot_a", "print('second edition'.upper())")
    shutil.copytree(site.doc, copy.doc, ignore=shutil.ignore_patterns("auto_examples"))
    assert copy.build(ORTMETER_PLOT="0") == (0, [])
    assert "second edition" in copy.html("plot_a")
    assert "RESULTS OF PLOT_B" in site.html("plot_b")
    assert site.build() == (0, ["plot_a"])


@pytest.mark.slow
def test_build_of_one_page_runs_it_and_keeps_the_others(site):
    assert site.build(ORTMETER_PAGE="plot_b") == (0, ["plot_b"])
    assert "RESULTS OF PLOT_A" in site.html("plot_a")
    record = site.doc / "results" / "machine" / "plot_a--cpu.json"
    record.parent.mkdir(parents=True)
    record.touch()
    assert site.build() == (2, ["plot_a"])  # which is no record


@pytest.mark.slow
def test_page_that_is_gone_leaves_nothing(site):
    (site.doc / "examples" / "faster_runs" / "plot_a.py").unlink()
    assert site.build() == (0, [])
    assert not list(site.gallery.rglob("*plot_a*"))


@pytest.mark.slow
def test_warning_of_a_page_fails_the_build_and_is_not_published(site):
    site.write("plot_a", "import warnings\nwarnings.warn('too small', stacklevel=1)")
    code, _ = site.build()
    assert code != 0
    assert "UserWarning raised by a page: too small" in site.log
    assert "too small" not in (site.gallery / "plot_a.rst").read_text().partition("Out")[2]
    assert "examples/faster_runs/plot_a.py:" not in site.html("plot_a")


PLACES = (1, "plot_a"), (2, "plot_b")


@pytest.mark.slow
def test_progress_of_the_build_is_in_the_log_and_not_published(built, edited):
    site, _ = edited
    line = r"^1 of 1, less than 1 min left: plot_b, 120 of 400 sessions, \d+ s$"
    assert re.search(line, site.log, re.MULTILINE), site.log
    started = re.findall(r"^\d of 2, .*: plot_., started, 0 s$", built.log, re.MULTILINE)
    assert started == [f"{n} of 2, less than 1 min left: {p}, started, 0 s" for n, p in PLACES]
    assert "120 of 400" not in (site.gallery / "plot_b.rst").read_text() + site.html("plot_b")


@pytest.mark.slow
def test_a_provider_that_is_not_known_stops_the_build(site):
    code, ran = site.build(ORTMETER_PROVIDER="tpu")
    assert code != 0
    assert ran == []
    assert "ORTMETER_PROVIDER: provider='tpu' is not known" in site.log
