"""Child processes answer or say why not, and run no hostile file that lies beside a model."""

import ast
import fractions
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from processes import run_python

import ortmeter
from ortmeter import child as children
from ortmeter.child import Child, ChildError, call, child_command, script_command
from ortmeter.einsum.parse import EinsumError
from ortmeter.errors import ModelError
from ortmeter.runtime import providers
from ortmeter.runtime.placement import PlacementWarning
from ortmeter.timing.measurement import Measurement

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
FUNCTIONS = """
import os, signal, sys, tempfile, time, warnings
import numpy as np
from ortmeter.einsum.parse import EinsumError
from ortmeter.errors import ModelError
from ortmeter.runtime.placement import PlacementWarning
from ortmeter.timing.measurement import Measurement
print("the import prints", flush=True)
def double(x: float) -> float: return 2 * x
def measured(given: Measurement) -> tuple[Measurement, dict[str, float]]:
    return given, {"not a number": np.float64("nan"), "NumPy": np.float32(0.5)}
def count(numbers: list[float]) -> list[float]: return [2 * x for x in numbers]
def variables(names: list[str]) -> list[str | None]: return [*map(os.environ.get, names)]
def print_all() -> str:
    print('{"answer": "of print"}')
    os.write(1, b'{"answer": "of a library"}\\n')
    os.system('echo \\'{"answer": "of a program"}\\'')
    return f"mine, {sys.stdin.read()!r}"
def refuse() -> None:
    error = ModelError("this model is refused,\\non two lines")
    error.add_note("a note")
    raise error
def refuse_equation() -> None: raise EinsumError("no", "i?->i")
def fail() -> None:
    print("not the last line")
    raise ValueError("a bug")
def leave(code: int) -> None:
    sys.stderr.write("last words\\n")
    sys.exit(code)
def stop(number: int) -> None: os.kill(os.getpid(), number)
def litter(code: int) -> None:
    tempfile.mkdtemp()
    os.kill(os.getpid(), code)
def hang() -> None: time.sleep(10)
def warn() -> int:
    for text in ("MaxPool", "Mod", "MaxPool"): warnings.warn(text, PlacementWarning)
    warnings.warn("of another library")
    return 1
def tell_process() -> int: return os.getpid()
"""
MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y) { Y = Abs(X) }"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a model and files that leave a trace when they run."""
    folder = tmp_path / "beside a model"
    folder.mkdir()
    hostile = f"open({str(tmp_path / 'executed')!r}, 'a').write(__name__ + ' ')\n"
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(hostile)
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
    assert Path(told["package"]).samefile(ortmeter.__file__)
    assert told["filters"] == []
    assert told["dev"] is False
    assert {"", "relative"}.isdisjoint(told["path"])
    assert told["path"].index(str(folder)) > told["path"].index(str(Path(json.__file__).parents[1]))


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """A module of the user."""
    (tmp_path / "functions_of_children.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "functions_of_children", raising=False)
    return importlib.import_module("functions_of_children")


def test_a_function_is_called_in_another_process(functions):
    assert call(functions.double, {"x": 21}) == 42.0
    assert call(functions.tell_process) != os.getpid()


def test_values_keep_their_types_and_numbers_are_many(functions):
    given = Measurement("a", np.array([[1e-3, 2e-3]]), warmup=(0.5,))
    found, numbers = call(functions.measured, {"given": given})
    assert (type(found), found.name, found.warmup) == (Measurement, "a", (0.5,))
    np.testing.assert_array_equal(found.seconds, given.seconds)
    assert np.isnan(numbers["not a number"])
    assert numbers["NumPy"] == 0.5
    many = np.random.default_rng(0).standard_normal(10**5)
    assert call(functions.count, {"numbers": many}) == (2 * many).tolist()


def test_a_child_has_the_variables_that_are_given_beside_those_of_its_parent(
    functions, monkeypatch
):
    monkeypatch.setenv("OF_THE_PARENT", "kept")
    monkeypatch.setenv("OF_BOTH", "replaced")
    given = {"OF_BOTH": "given"}
    names = ["OF_THE_PARENT", "OF_BOTH"]
    assert call(functions.variables, {"names": names}, environment=given) == ["kept", "given"]


def test_what_is_printed_is_no_answer(functions, monkeypatch):
    monkeypatch.setattr(children, "_BOOT", f"print('[] hello')\n{children._BOOT}")
    assert call(functions.print_all, timeout_s=60) == "mine, ''"


@pytest.mark.parametrize(
    ("name", "kind", "message", "notes"),
    [
        ("refuse", ModelError, "this model is refused,\non two lines", ["a note"]),
        ("refuse_equation", EinsumError, "'i?->i': no", []),
    ],
)
def test_an_error_of_the_package_keeps_its_class(functions, name, kind, message, notes):
    with pytest.raises(kind) as caught:
        call(getattr(functions, name))
    assert (str(caught.value), getattr(caught.value, "__notes__", [])) == (message, notes)


@pytest.mark.parametrize(
    ("name", "arguments", "code", "message"),
    [
        ("fail", {}, 1, r"stopped with exit code 1: (.*\n)+ValueError: a bug$"),
        ("leave", {"code": 0}, 0, "stopped with exit code 0: the import prints\nlast words$"),
        ("stop", {"number": 11}, -11, "was killed by SIGSEGV: the import prints$"),
        ("stop", {"number": 40}, -40, "was killed by signal 40: the import prints$"),
        (
            "double",
            {"x": "a text"},
            1,
            r"stopped with exit code 1: (.*\n)+.*Expected `float`, got `str`$",
        ),
    ],
)
def test_a_process_that_dies_says_what_it_did_and_how(functions, name, arguments, code, message):
    with pytest.raises(ChildError, match=rf"^functions_of_children:{name} {message}") as caught:
        call(getattr(functions, name), arguments)
    assert caught.value.code == code
    assert str(caught.value).count("\n") <= 5


def test_a_process_that_does_not_start_is_an_error(functions, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildError, match="cannot start: .*No such file") as caught:
        call(functions.double, {"x": 1})
    assert caught.value.code is None


def processes():
    return [one.pid for one in psutil.Process().children(recursive=True)]


def test_a_process_that_takes_too_long_is_killed(functions):
    before = processes()
    with pytest.raises(ChildError, match="hang did not answer within 0.2 s and was killed") as late:
        call(functions.hang, timeout_s=0.2)
    assert late.value.code is None
    assert processes() == before


def test_a_question_that_nobody_reads_is_given_up(functions, monkeypatch):
    monkeypatch.setattr(children, "_BOOT", "import time; time.sleep(10)")
    with pytest.raises(ChildError, match="did not answer within 0.2 s"):
        call(functions.count, {"numbers": [0.5] * 10**5}, timeout_s=0.2)


def test_an_interruption_leaves_no_process(functions, monkeypatch):
    before = processes()

    def interrupt(*_):
        assert processes() != before
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(functions.hang)
    assert processes() == before


def test_a_child_that_dies_leaves_no_file(functions, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ChildError, match="litter was killed by SIGKILL"):
        call(functions.litter, {"code": int(signal.SIGKILL)})
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_child_imports_what_its_parent_imports(tmp_path):
    """A folder where packages are installed keeps its rank, after the standard library."""
    (tmp_path / "msgspec-1.0.dist-info").mkdir()
    for name in ("msgspec", "fractions"):
        (tmp_path / f"{name}.py").write_text("")
    script = "import msgspec, sys; sys.path *= 2  # each folder twice\n"
    script += "from ortmeter.child import child_command as c; print(c('print_path'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    told = run_python("-c", script, env=environment, check=True)
    (tmp_path / "print_path.py").write_text(
        "import fractions, msgspec\ndef main(): print(fractions.__file__, msgspec.__file__)"
    )
    found = subprocess.run(
        ast.literal_eval(told.stdout), capture_output=True, text=True, check=True
    ).stdout.split()
    assert found == [fractions.__file__, str(tmp_path / "msgspec.py")]


def test_warnings_of_the_package_are_given_again_once(functions, monkeypatch):
    monkeypatch.setattr(children, "told_warnings", {(PlacementWarning, "Mod")})
    with pytest.warns(PlacementWarning) as caught:
        assert [call(functions.warn) for _ in range(2)] == [1, 1]
    assert [str(one.message) for one in caught] == ["MaxPool"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(functions.warn)


def test_a_child_answers_several_questions(functions):
    with Child() as child:
        first = child.ask(functions.tell_process)
        with pytest.raises(ModelError, match="refused"):
            child.ask(functions.refuse)
        child.start(functions.double, x=4)
        assert child.answer() == 8
        assert child.ask(functions.tell_process) == first
        assert not child.is_dead
        assert "the import prints" in child.errors()
    assert child.is_dead


def test_a_script_answers_where_nothing_is_installed(tmp_path):
    """As in the environment of another release, with the standard library alone."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom ortmeter.child_main import serve\n"
        "serve(lambda do, given: {'answer': [do, given, 'msgspec' in sys.modules, sys.path]})"
    )
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    with Child(script_command(script, bare / "bin" / "python")) as child:
        *told, path = child.ask("anything", number=3)
    assert told == ["anything", {"number": 3}, False]
    assert not any("site-packages" in one and str(bare) not in one for one in path)


@pytest.mark.slow
def test_a_bench_executes_nothing_that_is_beside_the_model(folder):
    command = Path(sys.executable).with_name("ortmeter")
    options = ["bench", "model.onnx", "--provider", "cpu", "--budget", "0.1", "--processes", "2"]
    done = run([command, *options], folder)
    assert done.returncode == 0, done.stderr
    assert "Memory of a fresh process" in done.stdout
    assert executed(folder) == []


def test_no_child_executes_what_is_around_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}")
    monkeypatch.syspath_prepend("")
    assert not providers._probe("cuda")[0].startswith("the probe d")
    assert executed(folder) == []
