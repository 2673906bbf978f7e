"""``ortmeter sweep``, end to end."""

import io
import json
import signal
import subprocess

import pytest
from processes import PATIENCE_S, is_alive, launched, run_python, wait_for_start
from sweep_pages import FastPage, files_of

from ortmeter.cli import main
from ortmeter.sweep import load_sweep


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_MACHINE_LOCK", str(tmp_path / "machine.lock"))


SWEEP = ("-m", "ortmeter", "sweep")


def test_a_sweep_tells_each_task_and_compares(tmp_path, capsys):
    page, html = FastPage(tmp_path, "if args.number == 2: sys.exit('too large')"), "report.html"
    output = tmp_path / "out"
    grid = ("--grid", "number=1,2", "color=red", "threads=1", "--repeat-runs", "2")
    files = ("--output", str(output), "--json", "--html", str(tmp_path / html))
    assert main(["sweep", str(page.path), *grid, *files]) == 1
    done = capsys.readouterr()
    lines = done.err.splitlines()
    assert lines[0].startswith("[1/4] done plot_fast number=1 color=red threads=1, run 1 on ")
    assert lines[1].startswith("[2/4] failed plot_fast number=2 color=red threads=1, run 1 on ")
    assert lines[1].endswith(": exit code 1: too large")
    report = json.loads(done.out)
    assert report["title"] == "ortmeter sweep plot_fast.py"
    assert any("2 of 4" in sentence for sentence in report["conclusion"])
    assert report["conclusion"][-1] == f"records are in {output}."
    assert "too large" in (tmp_path / html).read_text(encoding="utf-8")
    assert len(files_of(output)) == 2


def test_values_that_are_lists(tmp_path):
    page, output = FastPage(tmp_path), tmp_path / "out"
    grid = ("--grid", "threads=1;1,1", "number=3", "--output", str(output))
    assert main(["sweep", str(page.path), *grid]) == 0
    assert page.numbers == ["3", "3"]
    labels = [json.loads(f.read_text())["configuration"]["threads"] for f in output.glob("*/*--*")]
    assert sorted(labels) == ["1", "1,1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "number"], "got 'number', expected NAME=VALUE,VALUE..."),
        (["--grid", "threads=1", "threads=1"], "threads is given twice"),
        ([], "the grid has no value"),
        (["--grid", "number=1", "--scheduler", "x://host"], "no scheduler answers at x://host"),
        (["--grid", "number=1", "--timeout", "0"], "timeout=0"),
        (["--grid", "number=1", "--repeat-runs", "99999999999"], "at most 100000 in all"),
        (["--grid", "number=1", "color=\udcff"], "expected UTF-8 without null character"),
    ],
)
def test_what_is_not_accepted_is_one_line_and_code_2(tmp_path, capsys, arguments, message):
    page = FastPage(tmp_path)
    output = ["--output", str(tmp_path / "out")]
    assert main(["sweep", str(page.path), *arguments, *output]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert page.runs == []
    assert not (tmp_path / "out").exists()


def test_ctrl_c_kills_what_runs_keeps_what_is_done_and_says_how_to_go_on(tmp_path, capsys):
    page, output = FastPage(tmp_path, "if args.number == 2: time.sleep(60)"), tmp_path / "out"
    arguments = (str(page.path), "--grid", "number=0,1,2,3", "--output", str(output))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(*SWEEP, *arguments, **streams) as child:
        wait_for_start(child, lambda: len(page.runs) == 3)
        child.send_signal(signal.SIGINT)
        text, error = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130, error
    assert "--resume" in text
    assert "partial" in text
    assert "Traceback" not in error
    assert len(files_of(output)) == 2
    assert not is_alive(page.runs[-1][1])
    states = [outcome.state for outcome in load_sweep(output).outcomes]
    assert states == ["done"] * 2 + ["missing"] * 2
    assert main(["sweep", *arguments]) == 2
    assert "Accepted: --resume to finish it" in capsys.readouterr().err


def test_a_terminal_shows_a_bar(tmp_path, monkeypatch):
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda _: True})()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("ortmeter.progress._SHOW_AFTER_S", 0)
    files = (str(FastPage(tmp_path).path), "--output", str(tmp_path / "out"))
    assert main(["sweep", *files, "--grid", "number=1,2,3"]) == 0
    assert "sweep:" in terminal.getvalue()
    assert "done=2" in terminal.getvalue()
    assert "[1/3]" not in terminal.getvalue()


def test_without_dask_a_scheduler_says_what_to_install(tmp_path):
    page = FastPage(tmp_path)
    hidden = tmp_path / "hidden" / "distributed"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    asked = (page.path, "--grid", "number=1", "--scheduler", "tcp://x:1")
    done = run_python(*SWEEP, *asked, variables={"PYTHONPATH": str(hidden.parent)})
    assert done.returncode == 2
    assert 'pip install "ortmeter[sweep]"' in done.stderr
    assert page.runs == []
