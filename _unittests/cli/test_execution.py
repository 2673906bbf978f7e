"""What the command line declares, and what becomes of a report when something fails."""

import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import onnx
import pytest
from cli_runs import run, save
from matplotlib import pyplot as plt
from processes import PATIENCE_S, launched

import ortmeter.cli.env as env_command
from ortmeter.cli import execution, terminal
from ortmeter.cli.execution import COMMANDS
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.models import sample_transformer

ENV = "import sys; from ortmeter.cli import env, main\n"
MAIN = "sys.exit(main(sys.argv[1:]))"


def start(*arguments, **variables):
    return subprocess.run(
        list(map(str, arguments)),
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
        timeout=60,
    )


@pytest.fixture
def filled(monkeypatch):
    """Let ``ortmeter env`` be what a function does with a report."""
    return lambda fill: monkeypatch.setattr(env_command, "run", lambda _, report: fill(report))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("shell", ["| true", "> /dev/full"])
def test_the_page_is_written_when_nobody_reads_the_text(tmp_path, shell):
    html = tmp_path / "report.html"
    rows = "report.add('Big', Rows(('x',), tuple((i,) for i in range(20_000))))"
    fill = (
        f"from ortmeter.cli.report import Rows\ndef run(options, report): {rows}\nenv.run = run\n"
    )
    command = f'"$0" -c "$1" env --html "$2" {shell}'
    start("/bin/sh", "-c", command, sys.executable, f"{ENV}{fill}{MAIN}", html)
    assert "19999" in html.read_text(encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix closes a stream")
@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&-", 2), ("<&-", 0)])
def test_a_closed_stream_gives_no_other_exit_code(closed, code):
    """1 is what a gate reads as slower."""
    done = start("/bin/sh", "-c", f'"$0" -m ortmeter env {closed}', sys.executable)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith("ortmeter env: the standard output is closed: ")
    else:
        assert "Measured on" in done.stdout


@pytest.mark.parametrize(
    "error", [ValueError("a\n\x1b[31mb"), RecursionError(), AssertionError("a b")]
)
def test_what_nobody_expected_is_one_line_and_exit_code_2(error, filled):
    def fail(_):
        raise error

    filled(fail)
    done = run("env")
    (line,) = done.err.splitlines()
    assert (done.code, line.startswith(f"ortmeter env: {type(error).__name__}: ")) == (2, True)
    assert "\x1b" not in line
    done = run("env", "--debug")
    assert (done.code, "Traceback" in done.err) == (2, True)


def test_a_terminal_without_greek_letters_shows_the_report():
    program = f"{ENV}def run(options, report): report.conclude('1.5 µs')\nenv.run = run\n{MAIN}"
    done = start(sys.executable, "-c", program, "env", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "1.5 \\xb5s" in done.stdout


def test_a_warning_does_not_act_on_the_terminal(filled):
    filled(lambda _: warnings.warn("\x1b[2J a\nb", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = run("env")
    assert (done.code, done.err) == (0, "ortmeter env: UserWarning: \\x1b[2J a b\n")


def test_a_name_that_the_font_lacks_is_no_warning(filled):
    def draw(report):
        axes = plt.figure().gca()
        axes.set_title("\u65e5\u672c.onnx \x1b")
        report.add("Plot", axes)

    filled(draw)
    done = run("env")
    assert (done.code, done.err) == (0, "")


def test_no_line_of_a_report_is_obeyed_by_github(filled):
    filled(lambda report: report.add("::error::planted", "::warning::planted too"))
    told = run("env").out
    assert "planted too" in told
    assert not any(line.startswith("::") for line in told.splitlines())


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("env", {"pandas", "matplotlib"}),
        ("bench model.onnx --budget 0", {"matplotlib", "scipy", "ortmeter.profiling"}),
        *((given, {"numpy", "onnx", "ortmeter.cli.report"}) for given in ("--help", "", "fly")),
    ],
)
def test_a_command_imports_what_it_needs_alone(tmp_path, command, heavy):
    onnx.save(sample_transformer(layers=1), tmp_path / "model.onnx")
    program = f"""import os, sys
os.chdir({str(tmp_path)!r})
from ortmeter.cli import execution, main
main({command.split()!r})
print(sorted({heavy!r} & set(sys.modules)))"""
    done = start(sys.executable, "-c", program)
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
    done = start(sys.executable, "-c", program)
    assert done.returncode == 130
    assert done.stderr.splitlines() == ["ortmeter env: interrupted"]


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


@pytest.mark.slow
def test_a_kernel_that_kills_the_process_is_told(tmp_path):
    graph = """(float[n] X) => (int64[n] Y) <int64 k = {-1}> {
        A = Cast<to = 7>(X) Y = Div(A, k) }"""
    given = ["profile", save(tmp_path / "cast.onnx", graph), "--value", "X=nan"]
    ran = start(sys.executable, "-m", "ortmeter", *given)
    if ran.returncode == 0:
        pytest.skip("this release of onnxruntime divides the smallest integer by -1")
    assert ran.returncode < 0
    assert ran.stderr.startswith("Fatal Python error: Floating")
    assert "onnxruntime" in ran.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_one_of_its_module(name):
    assert importlib.import_module(f"ortmeter.cli.{name}").__doc__.startswith(COMMANDS[name])
    done = run(name, "--help")
    assert (done.code, "--debug" in done.out) == (0, True)


def test_the_help_of_bench_begins_with_what_most_need():
    first = run("bench", "--help").out.partition("options:\n")[2].partition("\n\n")[0]
    assert first.count("\n  --") == 10


def test_an_older_onnxruntime_is_one_line(tmp_path):
    """It may not even be imported: the file says which release it is."""
    package = tmp_path / "onnxruntime"
    package.mkdir()
    text = '__version__ = "1.17.3"\nraise AttributeError("_ARRAY_API")'
    (package / "__init__.py").write_text(text)
    ran = start(sys.executable, "-m", "ortmeter", "env", PYTHONPATH=str(tmp_path))
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


ACTING = [
    "\x1b[2J\x1b]0;title\x07",
    "a\0b",
    "a\rb",
    "\u202egnp.exe\u2066",  # another direction
    "a\u200bb\ufeff",  # invisible
    "a\u2028b\x85c",  # lines
    "\udce9",  # half a character
    "\x7f\x9b31m",
]


@pytest.mark.parametrize("name", ACTING, ids=ascii)
def test_nothing_acts_on_the_terminal(name):
    shown = terminal.printable(name)
    assert shown.encode("utf-8")
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert shown.encode("ascii").decode("unicode_escape") == name
    done = run("env", f"{name}?")
    assert (done.code, name in done.err) == (2, False)


@pytest.mark.parametrize("text", ["1.5 µs\n\tdone", "99% \u00a0 ± 1", "日本語 🚀", r"C:\new \x1b"])
def test_what_can_be_read_is_kept(text):
    assert terminal.printable(text) == text


def test_what_the_encoding_lacks_is_escaped():
    assert terminal.printable("1.5 µs é", "ascii") == r"1.5 \xb5s \xe9"
    assert terminal.printable("1.5 µs €", "latin-1") == r"1.5 µs \u20ac"


@pytest.mark.parametrize("user", ["user:TOKEN", "TOKEN", "u%40x:TOKEN"])
def test_no_password_of_an_address_is_shown(user, capsys):
    terminal.tell(f"Looking in indexes: https://{user}@host:8080/simple/,\n file:///a@b \x1b[31m")
    assert capsys.readouterr().err == (
        "Looking in indexes: https://***@host:8080/simple/, file:///a@b \\x1b[31m\n"
    )


def test_a_full_disk_is_an_error(monkeypatch):
    try:
        full = open("/dev/full", "w")  # noqa: PTH123, SIM115
    except OSError:
        pytest.skip("no /dev/full here")
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(OrtMeterError, match="the standard output cannot be written: No space left"):
        terminal.show("done")
    full.close()  # nothing is left to write: this would raise
