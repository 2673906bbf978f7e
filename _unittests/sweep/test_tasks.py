"""The tasks of a sweep; a page is asked what it accepts, without running."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import wait_for_end

from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep import Task, tasks, worker
from ortmeter.sweep.tasks import (
    MAX_TASKS,
    check_page,
    command_line,
    configurations,
    read_grid,
    read_script,
)
from ortmeter.sweep.worker import Script

GALLERY = Path(__file__).parents[2] / "_doc" / "examples"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("itype=1,10,16", ("1", "10", "16")),
        ("config=small, medium", ("small", "medium")),
        ("batch=1,32;64,128", ("1,32", "64,128")),
        ("batch=1,32;", ("1,32",)),
        ("scale=1e-3,-1", ("1e-3", "-1")),
        ("file=a=b", ("a=b",)),
        ("config=", ()),
    ],
)
def test_values_are_separated_by_commas_or_semicolons(text, values):
    assert list(read_grid([text]).values()) == [values]


def test_hyphens_are_for_the_command_line():
    assert read_grid(["--num-layers=1,2"]) == {"num_layers": ("1", "2")}
    assert command_line({"num_layers": "1"}) == ["--num-layers=1"]


@pytest.mark.parametrize("texts", [["config"], ["=small"], ["a=1", "a=2"], ["a-b=1", "a_b=2"]])
def test_other_forms_are_refused(texts):
    with pytest.raises(InvalidArgumentError, match="expected NAME=|is given twice"):
        read_grid(texts)


def test_every_combination_comes_once():
    chosen = configurations({"a": [1, 2], "b": ["x", "y"], "c": [3]})
    assert [tuple(one.values()) for one in chosen] == [
        ("1", "x", "3"),
        ("1", "y", "3"),
        ("2", "x", "3"),
        ("2", "y", "3"),
    ]


def test_a_grid_that_never_ends_is_refused():
    axes = {f"option_{i}": [str(j) for j in range(100)] for i in range(10)}
    with pytest.raises(InvalidArgumentError, match="has 100000000000000000000 configurations"):
        configurations(axes)
    assert len(configurations({"a": range(MAX_TASKS)})) == MAX_TASKS


@pytest.mark.parametrize("text", ["a\0", "\udcff"])
def test_what_no_file_holds_is_refused(text):
    for grid in ({"a": [text]}, {text: ["1"]}, {"a": ["1"], "b": [text]}):
        with pytest.raises(InvalidArgumentError, match="expected UTF-8 without null character"):
            configurations(grid)


def test_keys_tell_tasks_apart():
    tasks = [
        Task("plot_x", {"a": "1", "b": "2"}),
        Task("plot_x", {"a": "2", "b": "1"}),
        Task("plot_x", {"a": "1", "b": "2"}, 2),
        Task("plot_y", {"a": "1", "b": "2"}),
    ]
    assert len({task.key for task in tasks}) == 4
    assert Task("plot_x", {"b": "2", "a": "1"}).key == tasks[0].key


def page_of(folder, text):
    file = folder / "plot_x.py"
    file.write_text(text, encoding="utf-8")
    return read_script(file)


def test_a_page_of_the_gallery_tells_its_name(tmp_path):
    page = read_script(GALLERY / "accuracy" / "plot_parallelized_reduction.py")
    options = [{"lengths": "64", "orders": "4"}, {"lengths": "8,16", "orders": "8"}]
    assert check_page(page, options) == "plot_parallelized_reduction"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", r"does not declare .* with get_parsed_args \(exit code 0: no output\)"),
        ("raise ValueError('no')", r"get_parsed_args \(exit code 1: ValueError: no\)"),
        ("import os; os.abort()", r"get_parsed_args \(killed by SIGABRT\)"),
        (
            "import ortmeter; ortmeter.get_parsed_args('plot_x', size=1)",
            "got unknown argument --record",
        ),
        ("import time; time.sleep(10)", "did not declare its parameters in 0.5 s"),
    ],
)
def test_a_page_without_parameters_is_refused(tmp_path, monkeypatch, text, message):
    if "sleep" in text:
        monkeypatch.setattr(tasks, "_CHECK_TIMEOUT_S", 0.5)
    with pytest.raises(InvalidArgumentError, match=message):
        check_page(page_of(tmp_path, text), [{"size": "1"}])


def test_the_page_stops_where_it_declares_its_parameters(tmp_path):
    text = (
        "import ortmeter\nfrom pathlib import Path\n"
        "ortmeter.get_parsed_args('plot_other', size=1, record=False)\n"
        f"Path({str(tmp_path / 'went_on')!r}).touch()\n"
    )
    assert check_page(page_of(tmp_path, text), [{"size": "2"}]) == "plot_other"
    assert not (tmp_path / "went_on").exists()


@pytest.mark.parametrize(
    "name",
    ["../..", "..", "", "plot_", "/x", "plot_a/../..", "plot_x\n", "plot_" + "x" * 101, "p"],
)
def test_a_name_that_is_no_name_is_refused(monkeypatch, name):
    answer = SimpleNamespace(page=name, readings=[])
    monkeypatch.setattr(tasks, "_ask", lambda script, lines: answer)
    with pytest.raises(InvalidArgumentError, match="plot_x.py calls itself .* Accepted: plot_ and"):
        check_page(Script("plot_x.py", ""), [{"size": "1"}])


STARTS = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path({log!r}).write_text(str(child.pid))
"""


@pytest.mark.parametrize("end", ["declares", "hangs", "fails"])
def test_what_a_page_starts_before_it_declares_its_parameters_ends_with_it(
    tmp_path, monkeypatch, end
):
    if end == "hangs":
        monkeypatch.setattr(tasks, "_CHECK_TIMEOUT_S", 3)
    ends = {
        "declares": "import ortmeter; ortmeter.get_parsed_args('plot_x', size=1, record=False)",
        "hangs": "import time; time.sleep(60)",
        "fails": "sys.exit('no')",
    }
    messages = {"hangs": "did not declare its parameters in 3 s", "fails": r"\(exit code 1: no\)"}
    page = page_of(tmp_path, STARTS.format(log=str(tmp_path / "pid")) + ends[end])
    if end == "declares":
        assert check_page(page, [{"size": "2"}]) == "plot_x"
    else:
        with pytest.raises(InvalidArgumentError, match=messages[end]):
            check_page(page, [{"size": "2"}])
    wait_for_end(int((tmp_path / "pid").read_text()))


def test_a_page_that_writes_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_FULL", 2**20)
    with pytest.raises(InvalidArgumentError, match="killed by SIGKILL"):
        check_page(page_of(tmp_path, "while True: print('x' * 10_000)"), [{"size": "1"}])


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


@pytest.mark.parametrize(
    "answer",
    [
        *("{", "5", "null", "[]", "{}", "[" * 100_000, '"\\ud800"'),
        *('{"page": 5, "readings": []}', '{"page": "plot_x", "readings": 5}'),
        *('{"page": "plot_x", "readings": []}', '{"page": "plot_x", "readings": [{"error": 5}]}'),
        '{"page": "plot_x\\n", "readings": [{}]}',
    ],
)
def test_an_answer_that_is_none_is_refused(tmp_path, monkeypatch, answer):
    def write_answer(_script, _arguments, _variables, *, folder, timeout):
        (folder / "answer.json").write_text(answer)
        return SimpleNamespace(code=0)

    monkeypatch.setattr(tasks, "run_script", write_answer)
    with pytest.raises(InvalidArgumentError, match="plot_x.py (gives no valid|calls itself)"):
        check_page(page_of(tmp_path, ""), [{"size": "1"}])
