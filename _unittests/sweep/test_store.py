"""The files of a sweep."""

import json

import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import record
from ortmeter.sweep import Task, load_sweep
from ortmeter.sweep.store import Store
from ortmeter.sweep.worker import Attempt

CONDITIONS = "0123456789abcdef"
TASK = Task("plot_x", {"n": "0"}, run=2)


def attempt():
    args = ortmeter.get_parsed_args("plot_x", args=[], n=0)
    made = record("plot_x", args, Provider.parse("cpu"), {"x": 1})
    return Attempt("here", 1.5, made.to_json(), output="said")


def kept(folder):
    store = Store(folder, "plot_x", CONDITIONS)
    store.begin([TASK])
    return store, store.keep(TASK, attempt())


def test_an_outcome_comes_back_from_its_files(tmp_path):
    store, outcome = kept(tmp_path)
    assert store.read(TASK) == outcome
    assert load_sweep(tmp_path).outcomes == (outcome,)
    assert (outcome.record.run, outcome.seconds, outcome.output) == (2, 1.5, "said")
    assert outcome.file.name.startswith("plot_x--cpu--")
    assert outcome.file.name.endswith("--2.json")
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) == 3  # the record, what became of its task, the list of tasks


def test_what_is_done_is_not_a_failure_nor_under_other_conditions(tmp_path):
    store, outcome = kept(tmp_path)
    assert store.done([TASK]) == {TASK.key: outcome}
    assert Store(tmp_path, "plot_x", "other").done([TASK]) == {}
    failed = store.keep(TASK, Attempt("here", 1.0, error="no", output="said"))
    assert store.read(TASK) == failed
    assert store.done([TASK]) == {}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"tasks": [{}]}', b'{"tasks": 3}'])
def test_a_list_of_tasks_that_was_damaged_is_told(tmp_path, content):
    kept(tmp_path)
    (tmp_path / "sweeps" / "plot_x" / "tasks.json").write_bytes(content)
    with pytest.raises(RecordError, match="tasks.json"):
        load_sweep(tmp_path)


def test_a_task_whose_files_were_damaged_fails_and_runs_again(tmp_path):
    store, outcome = kept(tmp_path)
    other = Task("plot_x", {"n": "1"})
    store.begin([TASK, other])
    kept_other = store.keep(other, attempt())
    file = tmp_path / "sweeps" / "plot_x" / f"{TASK.key}.json"
    for damaged, content, told in (
        (outcome.file, {"schema_version": 2}, f"{outcome.file.name}: "),
        (file, {"conditions": CONDITIONS}, f"{file.name} cannot be read: Object missing required"),
    ):
        damaged.write_text(json.dumps(content))
        found = load_sweep(tmp_path)
        assert found.done == (kept_other,)
        assert found.failed[0].error.startswith(told)
        assert store.done([TASK, other]) == {other.key: kept_other}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"date": "yesterday"}, "the page wrote a file that is not a record"),
        ({"page": "plot_other"}, "wrote a record of 'plot_other', expected 'plot_x'"),
        ({"configuration": {"provider": "x" * 300}}, "File name too long"),
    ],
)
def test_a_record_that_cannot_be_kept_says_why(tmp_path, change, error):
    store, _ = kept(tmp_path)
    content = json.dumps({**json.loads(attempt().record), **change}).encode()
    assert error in store.keep(TASK, Attempt("here", 1.0, content)).error


def test_a_folder_without_sweep(tmp_path):
    with pytest.raises(InvalidArgumentError, match="has no sweep"):
        load_sweep(tmp_path)
