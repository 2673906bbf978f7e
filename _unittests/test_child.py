"""Hostile files beside a model: a child process runs none of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from ortmeter.child import child_command, run_child, set_variables
from ortmeter.runtime import providers

SHADOWED = (
    "json", "numpy", "random", "typing", "pathlib", "sitecustomize", "usercustomize", "onnxruntime",
    "onnx", "pandas", "ortmeter", "importlib", "subprocess",
)  # fmt: skip
TELL = """import json, random, sys, warnings
import numpy
import onnxruntime
import ortmeter.errors
def main(*arguments):
    told = {"arguments": arguments, "package": ortmeter.__file__, "argv": sys.argv[1:],
            "filters": sys.warnoptions, "dev": sys.flags.dev_mode, "path": sys.path}
    print(json.dumps(told))
"""
MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y) { Y = Abs(X) }"""
SCRIPT = """import sys
from pathlib import Path
import ortmeter.cli, onnx, onnxruntime, pandas, random, subprocess
ortmeter.cli.main(["env", "--json"])
here = Path(__file__).parent
for name in sys.argv[1].split(","):  # after the imports of this process, which is not the victim
    (here / f"{name}.py").write_text((here / "hostile.txt").read_text())
sys.exit(ortmeter.cli.main([
    *("bench", "model.onnx", "--provider", "cpu", "--budget", "0.1", "--processes", "2")
]))
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a model and files that leave a trace when they run."""
    folder = tmp_path / "beside a model"
    folder.mkdir()
    hostile = f"open({str(tmp_path / 'executed')!r}, 'a').write(__name__ + ' ')\n"
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(hostile)
    (folder / "hostile.txt").write_text(hostile)
    onnx.save(onnx.parser.parse_model(MODEL), folder / "model.onnx")
    return folder


def executed(folder):
    trace = folder.parent / "executed"
    return trace.read_text().split() if trace.exists() else []


def run(command, folder, **variables):
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.skipif(
    any(name.startswith("COVERAGE_PROCESS") for name in os.environ),
    reason="coverage imports json before the folder is in the path",
)
def test_the_hostile_files_are_executed_by_a_python_that_is_not_isolated(folder):
    run([sys.executable, "-c", "import json"], folder)
    assert "json" in executed(folder)


def test_a_child_executes_nothing_of_the_folders_around_it(folder, tmp_path, monkeypatch):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "tell.py").write_text(TELL)
    for path in (modules, folder, "relative", ""):
        monkeypatch.syspath_prepend(path)
    command = child_command("tell", "an argument", Path("other"), "-W", "")
    done = run(command, folder, PYTHONPATH=str(folder), PYTHONWARNINGS="error", PYTHONDEVMODE="1")
    told = json.loads(done.stdout)
    assert executed(folder) == []
    assert told["arguments"] == told["argv"] == ["an argument", "other", "-W", ""]
    assert told["filters"] == []
    assert told["dev"] is False
    assert {"", "relative"}.isdisjoint(told["path"])
    assert told["path"].index(str(folder)) > told["path"].index(str(Path(json.__file__).parents[1]))


def test_a_child_has_the_variables_that_are_given_beside_those_of_its_parent(tmp_path, monkeypatch):
    lines = ["import os", "def main(*names):", "    print(*map(os.environ.get, names))"]
    (tmp_path / "variables.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OF_THE_PARENT", "kept")
    monkeypatch.setenv("OF_BOTH", "replaced")
    given = {"OF_BOTH": "given"}
    done = run_child("variables", "OF_THE_PARENT", "OF_BOTH", environment=given)
    assert done.stdout.split() == ["kept", "given"]


def test_variables_are_set_for_a_while(monkeypatch):
    monkeypatch.setenv("BEFORE", "kept")
    monkeypatch.delenv("NEW", raising=False)
    with set_variables({"BEFORE": "changed", "NEW": "1"}):
        assert (os.environ["BEFORE"], os.environ["NEW"]) == ("changed", "1")
    assert os.environ["BEFORE"] == "kept"
    assert "NEW" not in os.environ


def test_a_child_takes_the_package_of_its_parent(tmp_path, monkeypatch):
    (tmp_path / "tell.py").write_text(TELL)
    monkeypatch.syspath_prepend(tmp_path)
    import ortmeter

    done = run(child_command("tell"), tmp_path)
    assert Path(json.loads(done.stdout)["package"]).samefile(ortmeter.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["current folder", "folder of the script"])
def test_a_bench_executes_nothing_that_is_beside_the_model(folder, place):
    if place == "current folder":
        command = Path(sys.executable).with_name("ortmeter")
        options = ["bench", "model.onnx", "--provider", "cpu", "--budget", "0.1"]
        options += ["--processes", "2"]
        done = run([command, *options], folder)
    else:
        for name in SHADOWED:
            (folder / f"{name}.py").unlink()
        (folder / "script.py").write_text(SCRIPT)
        done = run([sys.executable, "script.py", ",".join(SHADOWED)], folder)
    assert done.returncode == 0, done.stderr
    assert "Memory of a fresh process" in done.stdout
    assert executed(folder) == []


def test_no_child_executes_what_is_around_it(folder, monkeypatch):
    from ortmeter.sweep.tasks import Script, check_page

    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}")
    monkeypatch.syspath_prepend("")
    assert not providers._probe_cuda().startswith("the probe died")
    page = Script("plot_x.py", "import ortmeter\nortmeter.get_parsed_args('plot_x', record=False)")
    assert check_page(page, [{}]) == "plot_x"
    assert executed(folder) == []
