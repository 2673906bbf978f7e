"""Run the pages as their readers do, in fast mode: as a script and as a notebook."""

import ast
import functools
import importlib
import itertools
import math
import os
import re
import runpy
import sys

import fake_cuda
import onnx
import page_code
import pytest
from _ext.api import public_modules
from _ext.notebook import make_notebook, said_by
from markdown_it import MarkdownIt
from page_runner import EXAMPLES
from processes import run_python
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

PAGES = sorted(EXAMPLES.rglob("plot_*.py"))
GEMM = EXAMPLES / "faster_runs" / "plot_op_gemm2_cuda.py"
PROFILING = EXAMPLES / "faster_runs" / "plot_profiling.py"
SWEEP = EXAMPLES / "measuring" / "plot_sweep.py"  # the script that it sweeps is on the page

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    monkeypatch.setenv("ORTMETER_PROVIDER", "cpu")


def temporary_folder(folder):
    return folder.with_name(f"{folder.name}-temporary")


def run_script(page, folder, *arguments, flags=("-W", "error"), **environment):
    temporary = temporary_folder(folder)
    temporary.mkdir(exist_ok=True)
    # What torch compiles is kept for all tests, or beside what a page may leave.
    kept = {"TORCHINDUCTOR_CACHE_DIR": f"{temporary}-inductor", **os.environ}
    own = {**kept, "MPLBACKEND": "agg", "TMPDIR": str(temporary), **environment}
    return run_python(*flags, page, *arguments, cwd=folder, env=own)


def told(stderr):
    """Lines of the standard error, but for those of the fonts of the machine and of the bars."""
    lines = re.split(r"[\r\n]+", stderr)
    return [line for line in lines if line.strip() and not re.match(r"Fontconfig |.+\d+%\|", line)]


def check_run(done, folder):
    """Check that a page ended well, without a warning, and left nothing where it ran."""
    assert done.returncode == 0, done.stderr
    assert told(done.stderr) == []
    assert "Measured on" in done.stdout
    assert str(folder) not in done.stdout
    assert [*folder.iterdir(), *temporary_folder(folder).iterdir()] == []


# A warning of any page fails its test against its record; the tests of the built site run the
# notebooks, in the environment of a reader. A sweep starts scripts, whose warnings are theirs.
@pytest.mark.slow
def test_the_script_of_a_sweep_runs_without_a_warning(fast, tmp_path):
    check_run(run_script(SWEEP, tmp_path), tmp_path)


@functools.cache
def notebook_of(page):
    return make_notebook(page, "no.whl")["cells"]


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A model that no page has seen, in the current folder."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2, 3, 20, 20] X)
        => (float[2, 3, 20, 20] Y) { Z = Sigmoid(X)  Y = Mul(X, Z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "swish of mine.onnx")
    monkeypatch.chdir(tmp_path)
    return "swish of mine.onnx"


@each_page
def test_a_notebook_begins_with_the_model_of_the_reader(page):
    _, _, *cells = notebook_of(page)
    command, answer = said_by(page)
    if "model.onnx" in command:
        model, run, *cells = cells
        assert "".join(model["source"]).startswith('MODEL = ""')
        assert repr(command) in "".join(run["source"])
    assert "".join(cells[0]["source"]) == answer
    assert "Otherwise: " in answer


def test_the_first_cells_of_a_notebook_measure_it(own_model, capsys):
    _, _, model, run, *_ = notebook_of(PROFILING)
    names = {}
    exec("".join(model["source"]), names)  # noqa: S102 - our own cell
    exec("".join(run["source"]), names)  # noqa: S102
    assert capsys.readouterr().out == ""  # without a model, the page is next
    exec("".join(run["source"]), {"MODEL": own_model})  # noqa: S102
    assert "Conclusion" in capsys.readouterr().out


def test_the_script_of_a_page_measures_it(own_model, tmp_path, monkeypatch):
    done = run_script(PROFILING, tmp_path, "--model", own_model, flags=(), ORTMETER_FAST="1")
    assert done.returncode == 0, done.stderr
    assert "2x3x20x20" in done.stdout
    assert "Conclusion" in done.stdout
    missing = run_script(PROFILING, tmp_path, "--model", "no.onnx", flags=())
    assert missing.returncode == 2
    assert "no.onnx" in missing.stderr


MARKUP = re.compile(r"`_|:[a-z]+:`|^\s*\.\. |={4}|\]_|\$`|\^\[|\||<!--", flags=re.MULTILINE)


@each_page
def test_a_notebook_has_no_restructuredtext_left(page):
    cells = notebook_of(page)
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    parsed = [MarkdownIt("commonmark").enable("table").parse(text) for text in texts]
    prose = [
        "".join(part.content if part.type == "text" else " " for part in token.children)
        for token in itertools.chain.from_iterable(parsed)
        if token.type == "inline"
    ]
    left = [text for text in prose if MARKUP.search(re.sub(r"\$[^$]+\$", "", text))]
    left += [text for text in prose if text.count("$") % 2]
    assert left == []
    titles = [text.count("\n# ") + text.startswith("# ") for text in texts]
    assert sum(titles) == 1
    tables = sum(token.type == "table_open" for token in itertools.chain.from_iterable(parsed))
    first_edges = re.findall(r"\n#?\n(?:# )?=+(?:  +=+)+\n", page.read_text(encoding="utf-8"))
    assert tables == len(first_edges)


@each_page
def test_a_page_imports_the_package_before_onnxruntime(page):
    """The package stops the telemetry, which starts with the import of onnxruntime."""
    lines = {}
    for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]:
                lines.setdefault((name or "").partition(".")[0], []).append(node.lineno)
    assert min(lines["ortmeter"]) < min(lines.get("onnxruntime", [math.inf]))


def code_cells(page):
    """Lines of code of each cell: without docstrings, comments and imports."""
    _, blocks = split_code_and_text_blocks(str(page))
    for kind, content, *_ in blocks:
        if kind == "code":
            tree, lines = ast.parse(content), content.splitlines()
            imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
            left = {line for n in imports for line in range(n.lineno, n.end_lineno + 1)}
            yield [lines[n - 1] for n in sorted(page_code.code_lines(tree, content) - left)]


@each_page
def test_the_page_keeps_the_promises_of_its_checklist(page):
    text = page.read_text(encoding="utf-8")
    title = re.search(r"^(.+)\n=+$", text, flags=re.MULTILINE)[1]
    assert title.endswith("?")
    promises = ("\n**Prediction.**", "assert ")
    assert re.search(r"default_rng\(|seed=0|manual_seed\(0\)", text)
    options = ("study = Study(", "study.conclude(", "study.appendix(")
    sections = ("\n# How this was computed\n", "\n# What this page does not cover\n")
    for promise in (*promises, *options, *sections):
        assert promise in text, promise
    assert "tqdm" not in text
    assert "# fold:" not in text
    assert re.search(r'sphinx_gallery_tags = \["(?:speed|accuracy)"', text)


@each_page
def test_the_code_of_a_page_stays_short(page):
    counted = page_code.count(page)
    assert counted["code"] <= 180
    assert counted["sentences"] <= 0.1 * counted["code"]
    for lines in code_cells(page):
        declares = any("Study(" in line for line in lines)
        assert len(lines) <= (40 if declares else 25), lines[0]


@each_page
def test_a_page_imports_what_the_reference_lists(page):
    public = {"ortmeter", "ortmeter.study", *itertools.chain(*public_modules().values())}
    for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ortmeter"):
            for name in (alias.name for alias in node.names):
                module = f"{node.module}.{name}" in public
                listed = node.module in public
                listed = listed and name in importlib.import_module(node.module).__all__
                assert module or listed, f"{node.module}.{name}"


def test_lines_of_code_are_counted(tmp_path):
    text = ['"""', "Title?", "======", '"""', "import ast", "", "# %%", "# Prose.", ""]
    text += ["def f():", '    """Docstring', '    of two lines."""', "    # a comment"]
    text += ["    return 1  # and one", "", 'h(setting="s.py")']
    page = tmp_path / "plot_x.py"
    page.write_text("\n".join(text), encoding="utf-8")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "s.py").write_text('"""A setting."""\n\nimport onnx\n', "utf-8")
    assert page_code.count(page) == {"code": 5, "beside": 1, "sentences": 0}


def test_a_page_never_runs_on_another_provider_than_asked(fast, tmp_path):
    from ortmeter.runtime.providers import usable_providers

    if "cuda" in usable_providers():
        pytest.skip("CUDA works on this machine")
    done = run_script(GEMM, tmp_path, "--provider", "cuda", flags=())
    assert done.returncode != 0
    assert "ProviderUnavailableError" in done.stderr
    assert "Measured on" not in done.stdout


def test_every_page_measures_but_those_that_need_other_environments():
    recalling = {page.stem for page in PAGES if "study.recall(" in page.read_text(encoding="utf-8")}
    assert recalling == {"plot_broken", "plot_providers"}


# The stand-in has neither the memory of a device nor, in the profile of a child, its nodes.
NOT_ON_STAND_IN = {"plot_memory", "plot_providers"}


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem not in NOT_ON_STAND_IN], ids=lambda page: page.stem
)
def test_a_page_measures_on_the_stand_in_of_cuda(page, tmp_path):
    stand_in = fake_cuda.environment(tmp_path, tmp_path / "log")
    stand_in |= {"ORTMETER_FAST": "1", "ORTMETER_RESULTS": str(EXAMPLES.parent / "results")}
    done = run_script(page, tmp_path, "--provider", "cuda", flags=(), **stand_in)
    assert done.returncode == 0, done.stderr
    assert "(this build)" in done.stdout


#: A GPU wheel whose CUDA does not start, in every process that reads it.
BROKEN = """import sys; sys.path.append({here!r}); import fake_cuda
hook = fake_cuda._Hook()
hook._patches = {{"ortmeter.runtime.providers": lambda module: setattr(
    module, "probe_providers", lambda: {{"cpu": "", "cuda": "libcublas is lost"}})}}
sys.meta_path.insert(0, hook)
"""


LISTS_A_GPU = '[ "$1" = -L ] && echo "GPU 0: Some GPU (UUID: 0)" || echo "Some GPU, 81559, 580.95"'


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    """An nvidia-smi that lists a GPU, and no provider asked for; a folder with nothing else."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(f"#!/bin/sh\n{LISTS_A_GPU}\n", encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(driver.parent), os.environ["PATH"]]))
    monkeypatch.delenv("ORTMETER_PROVIDER", raising=False)
    return driver.parent


@pytest.mark.parametrize("recording", [{}, {"ORTMETER_RECORD": "1"}], ids=["alone", "record"])
def test_a_page_never_runs_on_the_cpu_of_a_machine_whose_gpu_fails(with_gpu, tmp_path, recording):
    here = str(EXAMPLES.parent.parent / "_unittests")
    (tmp_path / "sitecustomize.py").write_text(BROKEN.format(here=here), encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = run_script(GEMM, tmp_path, flags=(), PYTHONPATH=paths, **recording)
    assert done.returncode != 0
    assert "libcublas is lost" in done.stderr
    assert "make PROVIDER=cpu, --provider cpu" in done.stderr
    assert not done.stdout


@pytest.mark.slow
def test_a_page_runs_on_the_cpu_with_the_cpu_wheel_and_one_warning(with_gpu, tmp_path):
    from ortmeter.runtime.providers import NO_CUDA, probe_providers

    if probe_providers()["cuda"] != NO_CUDA:
        pytest.skip("the GPU wheel is installed")
    done = run_script(GEMM, tmp_path, flags=(), ORTMETER_FAST="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning: ") == 1
    assert "lists a GPU, but the onnxruntime installed is the CPU wheel" in done.stderr
    assert "float32 on CPU" in done.stdout


def test_a_type_without_kernel_is_an_error_when_it_is_the_one_to_measure(fast, tmp_path):
    done = run_script(GEMM, tmp_path, "--itype", "16", flags=())
    assert done.returncode != 0
    assert "Could not find an implementation for Gemm" in done.stderr


def test_a_page_shows_what_it_recorded(tmp_path_factory, monkeypatch, capsys):
    folder, results = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("results")
    options = ["--provider", "cpu", "--itype", "10", "--config", "8,12", "--repeat", "5"]
    few = ["--processes", "1", "--budget", "0.5", "--record"]
    done = run_script(GEMM, folder, *options, *few, ORTMETER_RESULTS=str(results))
    check_run(done, folder)
    assert "float16 on CPU, threads=1" in done.stdout
    assert "size 12" in done.stdout
    (file,) = results.rglob("*.json")
    assert file.name.startswith("plot_op_gemm2_cuda--cpu--")
    assert "recorded on 2" not in done.stdout  # it is the build itself
    rates = done.stdout.partition("size candidate")[2].partition("\n12 ")[0]
    assert "\n8 " in rates
    monkeypatch.setenv("ORTMETER_RESULTS", str(results))
    monkeypatch.setattr(sys, "argv", [str(GEMM), *options[:-2], *few[:-1]])
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)  # as a script
    runpy.run_path(str(GEMM), run_name="__main__")
    assert rates in capsys.readouterr().out.partition("recorded on 2")[2]


RUNS = [
    pytest.param(page, options, id=" ".join((page.stem, *options)))
    for page in PAGES
    for options in (
        [("--itype", itype) for itype in ("1", "10", "16")]
        if "itype=" in page.read_text(encoding="utf-8")
        else [()]
    )
]


@pytest.mark.cuda
@pytest.mark.parametrize(("page", "options"), RUNS)
def test_the_same_lines_run_on_cuda(fast, tmp_path, page, options):
    done = run_script(page, tmp_path, "--provider", "cuda", *options, flags=())
    assert done.returncode == 0, done.stderr
    assert "CUDA" in done.stdout
