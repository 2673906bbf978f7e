"""Helpers of the configuration of the site, one by one."""

import ast
import importlib
import re
import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _ext import (
    api,
    bundle,
    gallery,
    mathml,
    notebook,
    provider,
    resetting,
    wheel,
)
from docutils.utils.math import MathError
from processes import run_python
from sphinx.errors import ConfigError, ExtensionError

import ortmeter
from ortmeter.errors import ProviderUnavailableError
from ortmeter.machine.environment import Environment, Gpu
from ortmeter.runtime.providers import Provider

DOC = Path(__file__).resolve().parents[1] / "_doc"


WHEEL = "ortmeter-0.1.0-py3-none-any.whl"


# mathml


@pytest.mark.parametrize(
    ("latex", "block", "parts"),
    [
        ("2MNK", False, ['alttext="2MNK"', "<mn>2</mn>"]),
        ("a < b", False, ['alttext="a &lt; b"', "<mo>&lt;</mo>"]),
        (r"\frac{1}{2}", True, ['display="block"', "<mfrac>"]),
        (r"K u |A||B|", False, ["<mi>K</mi>", "<mi>A</mi>"]),
        (
            "a &= b \\\\\n c &= d",
            True,
            ['class="ams-align"', r'alttext="a &amp;= b \\ c &amp;= d"'],
        ),
        ("a = b\n\nc = d", True, ['class="ams-align"']),
    ],
)
def test_formula_is_converted(latex, block, parts):
    converted = mathml.latex_to_mathml(latex, block=block)
    assert [part for part in parts if part not in converted] == []


def test_formula_that_is_not_latex_is_refused():
    with pytest.raises(MathError):
        mathml.latex_to_mathml(r"\nosuchcommand{x}")


# provider


def test_provider_that_does_not_work_stops_the_build_with_its_reason(monkeypatch):
    def refuse(name):
        raise ProviderUnavailableError(f"{name} does not work: no driver")

    monkeypatch.setenv("ORTMETER_PROVIDER", "cuda:1")
    monkeypatch.setattr(provider, "resolve_provider", refuse)
    with pytest.raises(ExtensionError, match="cuda:1 does not work: no driver"):
        provider.chosen_provider()


def test_footer_names_the_devices_and_the_versions():
    machine = Environment(
        system="Linux",
        cpu="Some CPU",
        cores=4,
        threads={},
        python="3.12",
        packages={"numpy": "2.4", "onnxruntime-gpu": "1.31 (commit 1234)", "ortmeter": "0.1.0"},
        providers={},
        gpus=(Gpu("Some GPU", 1024, "1.0"),),
        precision={},
        commit=None,
    )
    assert provider.built_on(Provider("cuda", 1), machine) == (
        "Measured on Some GPU, Some (generation unknown), 4 cores, provider CUDA:1: "
        "onnxruntime-gpu 1.31, numpy 2.4."
    )


# wheel


def test_wheel_that_cannot_be_built_stops_the_build(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    with pytest.raises(ExtensionError, match="the wheel was not built"):
        wheel.build_wheel(tmp_path, tmp_path / "out")


def test_wheel_replaces_the_older_ones(tmp_path):
    (tmp_path / "ortmeter-0.0.1-py3-none-any.whl").touch()
    built = wheel.build_wheel(DOC.parent, tmp_path)
    assert list(tmp_path.glob("*.whl")) == [built]
    assert "ortmeter/errors.py" in zipfile.ZipFile(built).namelist()


# notebook


SITE = "http://127.0.0.1:8000/_static/wheel/"


@pytest.mark.parametrize(
    ("base", "site"),
    [("", ""), ("http://127.0.0.1:8000", SITE), ("http://127.0.0.1:8000/", SITE)],
)
def test_first_cell_is_code_that_names_the_wheel_and_where_the_site_is(base, site):
    cell = notebook.first_cell(WHEEL, base)
    ast.parse(cell)
    assert f'WHEEL = "{WHEEL}"' in cell
    assert f'SITE = "{site}"' in cell


@pytest.mark.parametrize(
    ("line", "extras"),
    [
        ("import torch", "pages,torch"),
        ("    from torch import nn", "pages,torch"),
        ("from ortmeter.backend import OrtBackend", "pages,torch"),
        ("from ortmeter.evaluator import Evaluator", "pages,torch"),
        ("from ortmeter.observatory.networks import NETWORKS", "pages,torch"),
        ("from sklearn.cluster import KMeans", "pages,learn"),
        ("import lightgbm", "pages,learn"),
        ("from ortmeter.sweep import run_sweep", "pages"),
        ("from transformers import LlamaConfig\nimport torch", "pages,torch,transformers"),
        ("import torchless", "pages"),
        ("# torch is not needed", "pages"),
    ],
)
def test_first_cell_installs_what_the_page_uses(line, extras):
    assert notebook.extras_of(f"import numpy as np\n{line}\n") == extras
    assert f"ortmeter[{{runtime}},{extras}]" in notebook.first_cell(WHEEL, extras=extras)


def test_make_asks_for_the_extras_of_a_page(tmp_path):
    page = tmp_path / "plot_x.py"
    page.write_text("import lightgbm\n")
    script = Path(notebook.__file__).with_name("extras.py")
    # As make does, before anything is installed.
    done = run_python("-I", "-S", script, page, check=True)
    assert done.stdout == "pages,learn\n"


@pytest.fixture
def wheel_here(monkeypatch, tmp_path):
    """Patches, in a folder that has the wheel."""
    (tmp_path / WHEEL).touch()
    monkeypatch.chdir(tmp_path)
    return monkeypatch


class FakeMachine:
    """Runs the first cell with its commands recorded instead of run."""

    def __init__(self, monkeypatch, gpus="", installed=(), returncode=0):
        self.commands = []
        done = SimpleNamespace(returncode=returncode, stderr="pip is sorry")
        packages = [SimpleNamespace(name=name) for name in installed]

        def run(command, **_):
            self.commands.append(command[3:-2])
            return done

        monkeypatch.setattr("subprocess.run", run)
        monkeypatch.setattr("subprocess.getoutput", lambda _: gpus)
        monkeypatch.setattr("importlib.metadata.distributions", lambda: packages)

    def run(self, base=""):
        """Execute the cell, return the commands given to pip."""
        exec(compile(notebook.first_cell(WHEEL, base), "cell", "exec"), {})  # noqa: S102
        return self.commands


@pytest.mark.parametrize("folder", [".", "performance", None])
def test_first_cell_installs_the_wheel_beside_the_notebook(monkeypatch, tmp_path, folder):
    """That of the site is taken otherwise; without any, it says where to put one."""
    source = f"https://example.org/_static/wheel/{WHEEL}"
    if folder:
        (tmp_path / WHEEL).touch()
        (tmp_path / folder).mkdir(exist_ok=True)
        source = (tmp_path / WHEEL).as_uri()
    monkeypatch.chdir(tmp_path / (folder or "."))
    assert FakeMachine(monkeypatch).run("https://example.org") == [
        ["install", f"ortmeter[cpu,pages] @ {source}"],
        ["install", "--force-reinstall", "--no-deps", "--no-cache-dir", f"ortmeter @ {source}"],
    ]
    if not folder:
        with pytest.raises(FileNotFoundError, match=f"Put {WHEEL} beside this notebook"):
            FakeMachine(monkeypatch).run()


@pytest.mark.parametrize(
    ("gpus", "installed", "first"),
    [
        ("", ["onnxruntime"], ["install", "ortmeter[cpu,pages]"]),
        ("", ["onnxruntime-gpu"], ["uninstall", "--yes"]),
        ("GPU 0: Some GPU (UUID: x)", ["onnxruntime-gpu"], ["install", "ortmeter[gpu,pages]"]),
        ("GPU 0: Some GPU (UUID: x)", ["onnxruntime"], ["uninstall", "--yes"]),
        ("sh: 1: nvidia-smi: not found", [], ["install", "ortmeter[cpu,pages]"]),
    ],
)
def test_first_cell_never_leaves_two_runtimes(wheel_here, capsys, gpus, installed, first):
    command = FakeMachine(wheel_here, gpus, installed).run()[0]
    assert [command[0], command[1].partition(" @ ")[0]] == first
    said = f"{installed[0]} is uninstalled: " if first[0] == "uninstall" else ""
    assert capsys.readouterr().out.startswith(said)


def test_first_cell_shows_why_pip_failed(wheel_here):
    with pytest.raises(RuntimeError, match="pip is sorry"):
        FakeMachine(wheel_here, returncode=1).run()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # roles that name code
        (":func:`numpy.sum` and :class:`~a.b.C`", "`numpy.sum` and `C`"),
        (":py:mod:`!timeit`", "`timeit`"),
        # roles that name prose
        (":term:`latency`, :doc:`/methodology`", "latency, methodology"),
        (":ref:`a title <label>`", "a title"),
        (":class:`a class <a.b.C>`", "a class"),
        (":ref:`l-plot-x` and ``l-plot-x``", "*The title of x?* and `l-plot-x`"),
        # mathematics, a link, a table
        (":math:`a_1 < b`", "$a_1 < b$"),
        ("`text <https://x.org>`_ and `text <https://x.org>`__", "[text](https://x.org) and " * 2),
        (
            "===  ===\na    b\n===  ===\n1    2\n===  ===",
            "| a   | b   |\n|-----|-----|\n| 1   | 2   |",
        ),
    ],
)
def test_restructuredtext_becomes_markdown(text, expected):
    (found,) = notebook.to_markdown([text], {"l-plot-x": "The title of x?"})
    assert found == expected.removesuffix(" and ")


def test_the_texts_of_a_page_share_levels_links_and_citations():
    texts = [
        "Is it?\n======\n\nSee [1]_.",
        "Why?\n----\n\nA site_.",
        ".. [1] Us.\n.. _site: http://x",
    ]
    assert list(notebook.to_markdown(texts, {})) == [
        "# Is it?\n\nSee[1].",
        "## Why?\n\nA [site](http://x).",
        "[1] Us.",
    ]


def test_a_notebook_says_what_it_needs_then_has_the_cells_of_the_page(tmp_path):
    page = tmp_path / "plot_x.py"
    title = '"""\n.. _l-plot-x:\n\nIs it?\n======\n"""\n'
    code = '# sphinx_gallery_tags = ["speed"]\nimport numpy as np\n'
    claims = 'def claims(data):\n    """Do it [a].\n\n    Otherwise:\n\n    Wait.\n    """'
    why = f"# %%\n# Why?\n# ----\n\nx = ':term:`x`'\n\n\n{claims}\n"
    page.write_text(f"{title}\n{code}\n{why}", encoding="utf-8")
    assert bundle.page_titles([page]) == {"l-plot-x": "Is it?"}
    made = notebook.make_notebook(page, WHEEL, "https://x.org/")
    note, install, *cells = made["cells"]
    assert f"`{WHEEL}`" in note["source"][0]
    assert f"at https://x.org/_static/wheel/{WHEEL}" in note["source"][0]
    assert install["source"] == [notebook.first_cell(WHEEL, "https://x.org/").strip()]
    found = [(cell["cell_type"], *cell["source"]) for cell in cells]
    assert found == [
        ("markdown", "**Do it.**\n\nOtherwise: Wait."),
        ("markdown", "# Is it?"),
        ("code", "import numpy as np"),
        ("markdown", "## Why?"),
        ("code", f"x = ':term:`x`'\n\n\n{claims}"),
    ]


# bundle


def test_archive_changes_with_its_members_only(tmp_path):
    member, outside = tmp_path / "a" / "x.py", tmp_path / "w.whl"
    member.parent.mkdir()
    member.write_text("1", encoding="utf-8")
    outside.write_text("2", encoding="utf-8")
    archive = tmp_path / "a.zip"
    bundle.write_zip(archive, [member, outside], tmp_path / "a")
    first, stamp = archive.read_bytes(), archive.stat().st_mtime_ns
    assert zipfile.ZipFile(archive).namelist() == ["x.py", "w.whl"]
    bundle.write_zip(archive, [member, outside], tmp_path / "a")
    assert archive.stat().st_mtime_ns == stamp
    outside.write_text("3", encoding="utf-8")
    bundle.write_zip(archive, [member, outside], tmp_path / "a")
    assert archive.read_bytes() != first


# gallery


def test_pages_are_sorted_by_section_then_by_place():
    expected = [
        "examples/faster_runs/plot_profiling.py",
        "plot_op_gemm2_cuda.py",
        "examples/language_models/plot_decoding.py",
        "examples/faster_runs/plot_unknown.py",
        "examples/unknown/plot_x.py",
    ]
    assert sorted(sorted(expected), key=gallery.page_rank) == expected


def test_pattern_selects_one_page_or_all(tmp_path):
    for name in ("plot_x.py", "plot_x_y.py"):
        (tmp_path / name).touch()
    one, everything = gallery.page_pattern("plot_x", tmp_path), gallery.page_pattern("", tmp_path)
    assert [bool(re.search(one, str(p))) for p in sorted(tmp_path.iterdir())] == [True, False]
    assert all(re.search(everything, str(p)) for p in tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"plot_z.* is not a page. Accepted: plot_x, plot_x_y"):
        gallery.page_pattern("plot_z", tmp_path)


# resetting


def test_reset_gives_a_page_its_own_warnings_and_numbers(monkeypatch):
    logged = []
    monkeypatch.setattr(resetting.logger, "warning", lambda *args, **_: logged.append(args[1:]))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    filters, formatter = list(warnings.filters), warnings.formatwarning
    resetting.reset({}, "plot_x.py", when="before")
    warnings.simplefilter("ignore")
    assert warnings.formatwarning("text", UserWarning, "/a/path.py", 1) == ""
    first = np.random.random()  # noqa: NPY002
    resetting.reset({}, "plot_x.py", when="after")
    assert warnings.filters == filters
    assert warnings.formatwarning is formatter
    assert np.random.random() == first  # noqa: NPY002
    assert logged == [("UserWarning", "text")]


def test_reset_restores_torch():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(resetting._default_torch_threads() + 1)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")
        resetting.reset({}, "plot_x.py", when="after")
        assert torch.is_grad_enabled()
        assert torch.get_num_threads() == resetting._default_torch_threads()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_num_threads(before)


# api


def test_public_names_are_documented_in_one_module():
    modules = [name for names in api.public_modules().values() for name in names]
    names = {
        name: [m for m in modules if name in api.public_names(__import__(m, fromlist=["x"]))]
        for name in ortmeter.__all__
        if not name.startswith("__")
    }
    assert {name: owners for name, owners in names.items() if len(owners) != 1} == {}


@pytest.mark.parametrize("kind", ["str", "tuple", "dict", "UnionType"])
def test_a_constant_has_the_comment_of_its_module(kind):
    """Whatever the docstring of its type is."""
    described = 0
    for module in (m for modules in api.public_modules().values() for m in modules):
        for name in api.public_names(importlib.import_module(module)):
            value = getattr(importlib.import_module(module), name)
            if type(value).__name__ != kind:
                continue
            lines = [str(type(value).__doc__)]
            api.describe_data(None, "data", f"{module}.{name}", value, None, lines)
            assert lines != [str(type(value).__doc__)], name
            described += 1
    assert described > 0


def test_the_names_are_listed_under_what_one_wants_to_do(tmp_path):
    app = SimpleNamespace(srcdir=str(tmp_path), config=SimpleNamespace())
    api.list_names(app)
    text = (tmp_path / "api" / "generated" / "names.rst").read_text(encoding="utf-8")
    first = text.partition("Know the machine\n----------------\n")[0]
    assert ".. automodule:: ortmeter.runtime.providers\n   :no-members:" in first
    assert ".. currentmodule:: ortmeter.runtime.providers\n" in first
    assert "\n   Provider\n" in first
    assert "make_session" in app.config.autosummary_context["root"]
    assert "LEVELS" not in app.config.autosummary_context["root"]
    # Two names that differ by capitals are two files everywhere.
    renamed = app.config.autosummary_filename_map
    assert renamed["ortmeter.study.records.Record"].endswith("Record-class")
    assert "ortmeter.study.records.record" not in renamed
