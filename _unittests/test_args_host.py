import runpy
import sys

import pytest
from processes import run_python

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.args import Param, command_line, get_parsed_args

PAGE = """
from ortmeter.study.args import Param, get_parsed_args

args = get_parsed_args(
    "plot_x",
    config=Param("small", choices={"small": (256,), "large": (4096,)}),
    threads=Param(1, env="ORTMETER_THREADS"),
)
print(args)
"""
DEFAULTS = "config=small (256), threads=1"
LARGE = "config=large (4096), threads=1"


def start(folder, *command, **variables):
    """Run Python on *command* in *folder*; return its exit code, output and errors."""
    own = dict.fromkeys(("PYTHONPATH", "HOME", "IPYTHONDIR"), str(folder)) | variables
    done = run_python(*command, cwd=folder, env=own, timeout=60)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def write(folder, name="plot_x.py", text=PAGE):
    (folder / name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        # the page, and a copy under another name
        ("plot_x.py", [], DEFAULTS),
        ("my pytest page.py", ["--config", "large"], LARGE),
        # programs that run it as the interpreter does
        ("plot_x.py", ["-m", "plot_x", "--config", "large"], LARGE),
        ("plot_x.py", ["-c", "import plot_x", "--config", "large"], LARGE),
        # files named as the hosts are: their arguments are foreign
        ("ipykernel_launcher.py", ["--config", "large"], DEFAULTS),
    ],
)
def test_command_line_of_a_program(tmp_path, name, args, expected):
    write(tmp_path, name)
    command = args if args[:1] in (["-m"], ["-c"]) else [name, *args]
    assert start(tmp_path, *command) == (0, expected, "")


@pytest.mark.parametrize(
    ("args", "variables", "message"),
    [
        (["--confg", "large"], {}, "unrecognized arguments: --confg large"),
        ([], {"ORTMETER_THREADS": "x"}, "variable ORTMETER_THREADS (for --threads): got 'x'"),
    ],
)
def test_error_of_a_program(tmp_path, args, variables, message):
    code, out, err = start(tmp_path, write(tmp_path, "renamed.py"), *args, **variables)
    assert (code, out) == (2, "")
    assert err.startswith("usage: plot_x [-h] [--config CHOICE|INT,...] [--threads INT]")
    assert message in err
    assert "Traceback" not in err


def test_bad_declaration_is_never_an_exit(tmp_path):
    text = PAGE.replace('Param("small"', 'Param("tiny"')
    code, _, err = start(tmp_path, write(tmp_path, text=text))
    assert code == 1
    assert "InvalidArgumentError: default of --config: got 'tiny'" in err


def test_ipython_run_reads_the_arguments_of_the_page_and_sees_an_error_not_an_exit(tmp_path):
    pytest.importorskip("IPython")
    write(tmp_path)
    runs = "%run plot_x.py --config large\nimport plot_x\n%run plot_x.py --confg large"
    _, out, err = start(tmp_path, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", runs)
    assert out.splitlines()[:2] == [LARGE, DEFAULTS]
    assert "InvalidArgumentError: plot_x: unrecognized arguments: --confg large" in out + err
    assert "usage:" not in out + err


@pytest.mark.parametrize(
    ("started", "argv", "expected"),
    [
        # hosts, as scripts and as modules
        (["python"], ["/bin/pytest", "-q"], ([], False)),
        (["python"], ["/lib/pytest/__main__.py", "-q"], ([], False)),
        (["python"], ["C/pytest.exe", "-q"], ([], False)),
        (["python"], ["/lib/ipykernel_launcher.py", "-f", "kernel.json"], ([], False)),
        (["python"], ["/lib/ipykernel/__main__.py", "-f", "kernel.json"], ([], False)),
        (["python"], ["/bin/sphinx-build", "-b", "html"], ([], False)),
        (["python", "-m", "launcher", "-f", "kernel.json"], ["ipykernel_launcher.py"], ([], False)),
        # a host renamed by runpy
        (["python", "/bin/pytest", "-q", "x"], ["plot_x.py", "-q", "x"], ([], False)),
        (["python", "-m", "unittest", "x"], ["python -m unittest", "x"], ([], False)),
        # arguments given on purpose inside a host
        (["python", "/bin/pytest", "-q"], ["plot_x.py", "--a", "2"], (["--a", "2"], True)),
        # sphinx-gallery: the page alone
        (["python", "/bin/sphinx-build", "-b", "html"], ["plot_x.py"], ([], True)),
        # programs
        (["python", "plot_x.py", "--a"], ["plot_x.py", "--a"], (["--a"], True)),
        (["python", "-m", "cProfile", "p.py", "--a"], ["p.py", "--a"], (["--a"], True)),
        (["python", "test_pytest.py", "x"], ["test_pytest.py", "x"], (["x"], True)),
        # no program at all
        (["python"], [""], ([], True)),
        (["python"], [], ([], True)),
    ],
)
def test_command_line(monkeypatch, started, argv, expected):
    monkeypatch.setattr(sys, "orig_argv", started)
    monkeypatch.setattr(sys, "argv", argv)
    assert command_line() == expected


def test_notebook_raises(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setenv("ORTMETER_THREADS", "x")
    assert get_parsed_args("plot_x", f="default").f == "default"
    with pytest.raises(InvalidArgumentError, match="ORTMETER_THREADS"):
        get_parsed_args("plot_x", threads=Param(1, env="ORTMETER_THREADS"))


def test_this_very_pytest_is_a_host(tmp_path, capsys):
    runpy.run_path(str(tmp_path / write(tmp_path)), run_name="__main__")
    assert capsys.readouterr().out.strip() == DEFAULTS
