"""The files of a sweep."""

import dataclasses
import json

import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.providers import Provider
from ortmeter.sweep import Task, load_sweep
from ortmeter.sweep.child import Attempt
from ortmeter.sweep.machine import describe_machine
from ortmeter.sweep.store import Store

IDENTITY = {"script": "a", "code": "b"}
TASK = Task("plot_x", {"n": "0"}, run=2)


def attempt():
    args = ortmeter.get_parsed_args("plot_x", args=[], n=0)
    made = ortmeter.record("plot_x", args, Provider.parse("cpu"), {"x": 1})
    return Attempt("here", 1.5, made.to_json(), output="said")


def kept(folder):
    store = Store(folder, "plot_x", IDENTITY)
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


def test_a_result_of_other_packages_on_this_machine_is_measured_again(tmp_path):
    store, outcome = kept(tmp_path)
    here = describe_machine()
    other = dataclasses.replace(here, packages={"onnxruntime": "0"})
    twin = [other, here]  # two machines of one model
    assert store.done([TASK], [here]) == {TASK.key: outcome}
    assert store.done([TASK], [other]) == {}
    assert store.done([TASK], twin) == {TASK.key: outcome}
    assert store.done([TASK], [dataclasses.replace(other, name="elsewhere")]) != {}


def test_a_failure_is_kept_and_not_done(tmp_path):
    store, _ = kept(tmp_path)
    failed = store.keep(TASK, Attempt("here", 1.0, error="no", output="said"))
    assert store.read(TASK) == failed
    assert store.done([TASK], []) == {}


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"3", b"\xff", b'{"task": 1}', b'{"tasks": [{}]}', b'{"tasks": 3}']
)
def test_files_that_were_damaged_are_told(tmp_path, content):
    kept(tmp_path)
    (tmp_path / "sweeps" / "plot_x" / "tasks.json").write_bytes(content)
    with pytest.raises(RecordError, match="tasks.json"):
        load_sweep(tmp_path)


def test_what_became_of_a_task_that_was_damaged_is_told(tmp_path):
    store, _ = kept(tmp_path)
    file = tmp_path / "sweeps" / "plot_x" / f"{TASK.key}.json"
    file.write_text(json.dumps(IDENTITY))
    with pytest.raises(RecordError, match="json lacks machine, seconds"):
        store.read(TASK)


def test_a_record_that_was_damaged_is_told(tmp_path):
    _, outcome = kept(tmp_path)
    outcome.file.write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(RecordError, match="plot_x--cpu"):
        load_sweep(tmp_path)


def test_a_folder_without_sweep(tmp_path):
    with pytest.raises(InvalidArgumentError, match="has no sweep"):
        load_sweep(tmp_path)
