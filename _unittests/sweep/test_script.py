"""A page is asked what it accepts, without running; how its process ended."""

import os
import signal
import time
from pathlib import Path

import pytest
from sweep_pages import is_alive

from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep import script
from ortmeter.sweep.script import Ended, read_script

GALLERY = Path(__file__).parents[2] / "_doc" / "examples"


def page_of(folder, text):
    file = folder / "plot_x.py"
    file.write_text(text, encoding="utf-8")
    return read_script(file)


def test_a_page_of_the_gallery_tells_its_name(tmp_path):
    page = read_script(GALLERY / "numerics" / "plot_parallelized_reduction.py")
    options = [{"config": "small", "itype": "1"}, {"config": "8,16", "itype": "10"}]
    assert page.check(options) == "plot_parallelized_reduction"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", r"does not declare .* with get_parsed_args \(exit code 0: no output\)"),
        ("raise ValueError('no')", r"get_parsed_args \(exit code 1: ValueError: no\)"),
        ("import os; os.abort()", r"get_parsed_args \(killed by SIGABRT\)"),
        (
            "import ortmeter; ortmeter.get_parsed_args('plot_x', size=1)",
            "plot_x.py declares no parameter 'record'",
        ),
        (
            "import ortmeter; ortmeter.get_parsed_args('plot_x', expose='n', n=1, record=False)",
            "plot_x.py declares no parameter 'record'",
        ),
        ("import time; time.sleep(60)", "did not declare its parameters in 0.5 s"),
    ],
)
def test_a_page_without_parameters_is_refused(tmp_path, monkeypatch, text, message):
    if "sleep" in text:
        monkeypatch.setattr(script, "_CHECK_TIMEOUT_S", 0.5)
    with pytest.raises(InvalidArgumentError, match=message):
        page_of(tmp_path, text).check([{"size": "1"}])


def test_the_page_stops_where_it_declares_its_parameters(tmp_path):
    text = (
        "import ortmeter\nfrom pathlib import Path\n"
        "ortmeter.get_parsed_args('plot_other', size=1, record=False)\n"
        f"Path({str(tmp_path / 'went_on')!r}).touch()\n"
    )
    assert page_of(tmp_path, text).check([{"size": "2"}]) == "plot_other"
    assert not (tmp_path / "went_on").exists()


@pytest.mark.parametrize(
    "name",
    ["../..", "..", "", "plot_", "/x", "plot_a/../..", "plot_x\n", "plot_" + "x" * 101, "p"],
)
def test_a_name_that_is_no_name_is_refused(monkeypatch, name):
    answer = {"page": name, "parameters": ["size", "record"], "readings": []}
    monkeypatch.setattr(script.Script, "_ask", lambda self, lines: answer)
    with pytest.raises(InvalidArgumentError, match="plot_x.py calls itself .* Accepted: plot_ and"):
        script.Script("plot_x.py", "").check([{"size": "1"}])


STARTS = """
import subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path({log!r}).write_text(str(child.pid))
"""


@pytest.mark.parametrize("end", ["declares", "hangs", "fails"])
def test_what_a_page_starts_before_it_declares_its_parameters_ends_with_it(
    tmp_path, monkeypatch, end
):
    if end == "hangs":
        monkeypatch.setattr(script, "_CHECK_TIMEOUT_S", 3)
    ends = {
        "declares": "import ortmeter; ortmeter.get_parsed_args('plot_x', size=1, record=False)",
        "hangs": "import time; time.sleep(60)",
        "fails": "sys.exit('no')",
    }
    messages = {"hangs": "did not declare its parameters in 3 s", "fails": r"\(exit code 1: no\)"}
    page = page_of(tmp_path, STARTS.format(log=str(tmp_path / "pid")) + ends[end])
    began = time.monotonic()
    if end == "declares":
        assert page.check([{"size": "2"}]) == "plot_x"
    else:
        with pytest.raises(InvalidArgumentError, match=messages[end]):
            page.check([{"size": "2"}])
    assert time.monotonic() - began < 30  # the child sleeps for a minute
    child = int((tmp_path / "pid").read_text())
    while is_alive(child):
        assert time.monotonic() - began < 30
        time.sleep(0.01)


def test_a_page_that_writes_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_CHECK_TIMEOUT_S", 1)
    with pytest.raises(InvalidArgumentError, match="did not declare its parameters in 1 s"):
        page_of(tmp_path, "while True: print('x' * 10_000)").check([{"size": "1"}])


def test_a_pipe_is_not_a_page(tmp_path):
    os.mkfifo(tmp_path / "plot_x.py")
    with pytest.raises(InvalidArgumentError, match="is not the script of a page"):
        read_script(tmp_path / "plot_x.py")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "cannot be read"),
        ("page.txt", b"x = 1", "is not the script of a page"),
        ("page.py", b"x = (", "cannot be read: '\\(' was never closed"),
        ("page.py", b"\xff\xfe", "cannot be read: 'utf-8'"),
        ("page.py", b"x = '\0'", "cannot be read: source code"),
        ("page.py", b"#" * 2**20 + b"\n", "is not the script of a page"),
        ("page.py", b"-" * 300_000 + b"1", "cannot be read"),
    ],
)
def test_what_is_not_a_page_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_script(tmp_path / name)


@pytest.mark.parametrize("number", range(1, signal.NSIG))
def test_any_signal_is_told(number):
    # Those for real time have no name in Python, but for the first and the last one.
    named = {member.value: member.name for member in signal.Signals}
    told = named.get(number, f"signal {number}")
    assert str(Ended(-number, "")).split(" (")[0] == f"killed by {told}"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", "no output"),
        ("\n \n", "no output"),
        ("first\nlast \n\n", "last"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_an_exit_code_comes_with_the_last_line(output, told):
    assert str(Ended(3, output)) == f"exit code 3: {told}"
