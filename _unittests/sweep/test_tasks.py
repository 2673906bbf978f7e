"""The tasks of a sweep, and the script of its page."""

import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep import Task
from ortmeter.sweep.tasks import MAX_TASKS, command_line, configurations, read_grid, read_script


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
    assert read_grid(["--num-layers=1,2"]) == {"num_layers": ("1", "2")}
    assert command_line({"num_layers": "1"}) == ["--num-layers=1"]


@pytest.mark.parametrize("texts", [["config"], ["=small"], ["a=1", "a=2"], ["a-b=1", "a_b=2"]])
def test_other_forms_are_refused(texts):
    with pytest.raises(InvalidArgumentError, match="expected NAME=|is given twice"):
        read_grid(texts)


def test_every_combination_comes_once():
    chosen = configurations({"a": [1, 2], "b": ["x", "y"], "c": [3]})
    assert ["".join(one.values()) for one in chosen] == ["1x3", "1y3", "2x3", "2y3"]


def test_a_grid_that_never_ends_is_refused():
    axes = {f"option_{i}": [str(j) for j in range(100)] for i in range(10)}
    with pytest.raises(InvalidArgumentError, match="1 runs of 10{20} configurations"):
        configurations(axes)
    assert len(configurations({"a": range(MAX_TASKS)})) == MAX_TASKS


def test_keys_tell_tasks_apart():
    tasks = [
        Task("plot_x", {"a": "1", "b": "2"}),
        Task("plot_x", {"a": "2", "b": "1"}),
        Task("plot_x", {"a": "1", "b": "2"}, 2),
        Task("plot_y", {"a": "1", "b": "2"}),
    ]
    assert len({task.key for task in tasks}) == 4
    assert Task("plot_x", {"b": "2", "a": "1"}).key == tasks[0].key


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "cannot be read"),
        ("page.txt", b"x = 1", "cannot be read: not a file of Python"),
        ("page.py", b"x = 1", "got the page page.py. Accepted: plot_ and"),
        (f"plot_{'x' * 101}.py", b"x = 1", "Accepted: plot_ and at most 100 letters"),
        ("page.py", b"x = (", "cannot be read: '\\(' was never closed"),
        ("page.py", b"x = '\0'", "cannot be read: source code"),
        ("page.py", b"-" * 300_000 + b"1", "cannot be read"),
    ],
)
def test_what_is_not_a_page_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_script(tmp_path / name)
