"""What the command line declares, and what becomes of a report when something fails."""

import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import onnx
import pytest
from matplotlib import pyplot as plt
from processes import PATIENCE_S, launched, run_python

import ortmeter.cli.env as env_command
from ortmeter.cli import execution, main
from ortmeter.cli.execution import COMMANDS
from ortmeter.runtime.models import sample_transformer

BIG = (
    "import pandas, sys\n"
    "from ortmeter.cli import env, main\n"
    "def run(options, report):\n"
    "    report.add('Big', pandas.DataFrame({'x': range(10_000)}))\n"
    "env.run = run\n"
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("shell", ["| true", "> /dev/full"])
def test_the_page_is_written_when_nobody_reads_the_text(tmp_path, shell):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    html = tmp_path / "report.html"
    command = f'"$0" -c "$1" env --html "$2" {shell}'
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, BIG, str(html)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert "9999</td>" in html.read_text(encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix closes a stream")
@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&-", 2), ("<&-", 0)])
def test_a_closed_stream_gives_no_other_exit_code(closed, code):
    """1 is what a gate reads as slower."""
    command = ["/bin/sh", "-c", f'"$0" -m ortmeter env {closed}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith("ortmeter env: the standard output is closed: ")
    else:
        assert "Measured on" in done.stdout


ENV = "import sys; from ortmeter.cli import env, main\n"
MAIN = "sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    "error", [ValueError("a\n\x1b[31mb"), RecursionError(), AssertionError("a b")]
)
def test_what_nobody_expected_is_one_line_and_exit_code_2(error, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(env_command, "run", fail)
    assert main(["env"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ortmeter env: {type(error).__name__}: ")
    assert "\x1b" not in line
    assert main(["env", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_terminal_without_greek_letters_shows_the_report():
    program = f"{ENV}def run(options, report): report.conclude('1.5 µs')\nenv.run = run\n{MAIN}"
    done = run_python("-c", program, "env", variables={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert r"1.5 \xb5s" in done.stdout


def test_a_warning_does_not_act_on_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(env_command, "run", lambda *_: warnings.warn("\x1b[2J a\nb", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["env"]) == 0
    assert capsys.readouterr().err == "ortmeter env: UserWarning: \\x1b[2J a b\n"


def test_a_name_that_the_font_lacks_is_no_warning(monkeypatch, capsys):
    def draw(_options, report):
        axes = plt.figure().gca()
        axes.set_title("\u65e5\u672c.onnx \x1b")
        report.add("Plot", axes)

    monkeypatch.setattr(env_command, "run", draw)
    assert main(["env"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("env", {"pandas", "matplotlib"}),
        ("bench model.onnx --budget 0", {"matplotlib", "scipy", "ortmeter.profiling"}),
    ],
)
def test_a_command_imports_what_it_needs_alone(tmp_path, command, heavy):
    onnx.save(sample_transformer(layers=1), tmp_path / "model.onnx")
    program = f"""import os, sys
os.chdir({str(tmp_path)!r})
from ortmeter.cli import execution, main
main({command.split()!r})
print(sorted({heavy!r} & set(sys.modules)))"""
    done = run_python("-c", program)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_an_interruption_of_an_import_is_no_traceback():
    program = """import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "numpy":
            raise KeyboardInterrupt
from ortmeter.cli import execution, main
sys.meta_path.insert(0, Interrupted())
sys.exit(main(["env"]))"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (130, "ortmeter env: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
)
def test_the_end_that_the_system_asks_for_removes_temporary_folders(tmp_path, number, code):
    program = f"""{ENV}
import signal, tempfile, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def run(options, report):
    with tempfile.TemporaryDirectory(prefix="ortmeter-"):
        print("ready", flush=True)
        time.sleep(60)
env.run = run
{MAIN}"""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with launched("-c", program, "env", env=environment, **streams) as child:
        assert child.stdout.readline() == b"ready\n"
        assert list(tmp_path.glob("ortmeter-*"))
        child.send_signal(number)
        _, errors = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, errors) == (code, b"")
    assert list(tmp_path.glob("ortmeter-*")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_one_of_its_module(name, capsys):
    assert importlib.import_module(f"ortmeter.cli.{name}").__doc__.startswith(COMMANDS[name])
    assert main([name, "--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_a_command_that_is_not_asked_for_is_not_imported():
    program = """import sys
from ortmeter.cli import main
for arguments in (["--help"], ["--version"], [], ["fly"]):
    main(arguments)
print([m for m in ("numpy", "onnx", "pandas", "ortmeter.cli.report") if m in sys.modules])"""
    done = run_python("-c", program)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_an_unknown_argument_does_not_act_on_the_terminal(capsys):
    assert main(["env", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_no_line_of_a_report_is_obeyed_by_github(monkeypatch, capsys):
    def fill(options, report):
        report.conclude("a")
        report.add("::error::planted", "::warning::planted too")

    monkeypatch.setattr(env_command, "run", fill)
    assert main(["env"]) == 0
    told = capsys.readouterr().out
    assert "planted too" in told
    assert not any(line.startswith("::") for line in told.splitlines())


def test_an_older_onnxruntime_is_one_line(tmp_path):
    """It may not even be imported: the file says which release it is."""
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text(
        '__version__ = "1.17.3"\nraise AttributeError("_ARRAY_API")'
    )
    ran = run_python("-m", "ortmeter", "env", variables={"PYTHONPATH": str(tmp_path)})
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("ortmeter env: onnxruntime 1.17.3 is installed. Accepted: 1.30 or newer")


def test_the_oldest_release_is_that_of_the_package():
    (least,) = {
        one.partition(">=")[2].partition(";")[0].strip()
        for one in importlib.metadata.requires("ortmeter")
        if one.startswith("onnxruntime>=")
    }
    assert least == ".".join(map(str, execution._OLDEST))
