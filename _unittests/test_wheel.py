"""Use the wheel, not the tree, as a reader does: the command line, then a page and its notebook.

The environment has its own copy of ortmeter only. The dependencies are those of the tests: nothing
is downloaded.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import nbformat
import onnx
import pytest
from _ext.bundle import write_zip
from _ext.notebook import INSTALLING, make_notebook
from _ext.wheel import build_wheel
from notebook_runner import run_notebook
from page_runner import EXAMPLES

import ortmeter
from ortmeter.runtime.models import sample_cnn

ROOT = Path(__file__).resolve().parents[1]

PAGE = EXAMPLES / "faster_runs" / "plot_op_gemm2_cuda.py"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def reader(wheel, tmp_path_factory):
    """Folder of the programs of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("reader") / "env"
    venv.create(folder, symlinks=os.name != "nt")
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    # The folder, without what its own .pth files add: the tree, when it is installed there.
    others = Path(paths["purelib"], "dependencies.pth")
    others.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    programs = Path(paths["scripts"])
    pip = [sys.executable, "-I", "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--ignore-installed", wheel], check=True)
    return programs


@pytest.fixture
def run(reader, tmp_path, monkeypatch):
    """Run a program of the environment in an empty folder, return what it prints."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("ORTMETER_FAST", "1")
    monkeypatch.setenv("ORTMETER_PROVIDER", "cpu")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "error")

    def run(program, *arguments):
        command = [reader / program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_files_of_data_are_there(wheel):
    source = ROOT / "src"
    files = [file for end in ("toml", "txt") for file in source.rglob(f"*.{end}")]
    with zipfile.ZipFile(wheel) as archive:
        assert {file.relative_to(source).as_posix() for file in files} <= {*archive.namelist()}
    assert len(files) >= 3


def test_the_command_line_works(run, reader, tmp_path):
    onnx.save(sample_cnn(), tmp_path / "model.onnx")
    where = Path(run("python", "-c", "import ortmeter; print(ortmeter.__file__)").strip())
    assert where.is_relative_to(reader.parent)
    assert not where.is_relative_to(ROOT)
    assert run("ortmeter", "--version").strip() == f"ortmeter {ortmeter.__version__}"
    short = ("model.onnx", "--repeat", "20", "--processes", "1")
    assert "optimization=all" in run("ortmeter", "bench", *short, "--optimization", "none,all")
    assert "Conv" in run("ortmeter", "profile", "model.onnx", "--html", "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Conclusion" in run("ortmeter", "diff", "model.onnx", "--against", "unoptimized")


def test_the_archive_of_a_page_is_all_that_a_reader_needs(
    wheel, run, reader, tmp_path, monkeypatch
):
    notebook = make_notebook(PAGE, wheel.name)
    written = tmp_path / f"{PAGE.stem}.ipynb"
    nbformat.write(nbformat.from_dict(notebook), written)
    archive = tmp_path / "page.zip"
    write_zip(archive, [PAGE, written, wheel], PAGE.parent)
    folder = tmp_path / "page"
    zipfile.ZipFile(archive).extractall(folder)
    there = set(folder.iterdir())

    assert "Measured on" in run("python", folder / PAGE.name)
    read = nbformat.read(folder / written.name, as_version=4)
    where = "import ortmeter; print(ortmeter.__file__)"
    read.cells.append(nbformat.v4.new_code_cell(where))
    monkeypatch.delenv("MPLBACKEND")  # a kernel chooses its own
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run_notebook(read, reader / "python", folder, monkeypatch)
    outputs = [output.get("data", {}) for cell in read.cells for output in cell.get("outputs", ())]
    assert any("image/png" in shown for shown in outputs)
    assert any("<svg" in shown.get("text/html", "") for shown in outputs)
    assert list(temporary.iterdir()) == []
    assert read.cells[INSTALLING].outputs == []
    assert Path(read.cells[-1].outputs[0].text.strip()).is_relative_to(reader.parent)
    assert set(folder.iterdir()) == there
