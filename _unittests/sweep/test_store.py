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


def test_a_result_under_other_conditions_is_measured_again(tmp_path):
    store, outcome = kept(tmp_path)
    assert store.done([TASK]) == {TASK.key: outcome}
    assert Store(tmp_path, "plot_x", "other").done([TASK]) == {}


def test_a_failure_is_kept_and_not_done(tmp_path):
    store, _ = kept(tmp_path)
    failed = store.keep(TASK, Attempt("here", 1.0, error="no", output="said"))
    assert store.read(TASK) == failed
    assert store.done([TASK]) == {}


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
    file.write_text(json.dumps({"conditions": CONDITIONS}))
    found = store.read(TASK)
    assert (found.state, found.record) == ("failed", None)
    assert found.error.endswith("json cannot be read: Object missing required field `task`")
    assert store.done([TASK]) == {}


def test_a_record_that_was_damaged_fails_its_task_and_runs_again(tmp_path):
    store, outcome = kept(tmp_path)
    other = Task("plot_x", {"n": "1"})
    store.begin([TASK, other])
    kept_other = store.keep(other, attempt())
    outcome.file.write_text(json.dumps({"schema_version": 2}))
    found = load_sweep(tmp_path)
    assert found.done == (kept_other,)
    assert found.failed[0].error.startswith(f"{outcome.file.name}: ")
    assert store.done([TASK, other]) == {other.key: kept_other}


# Values that no sweep writes, at any place of any file.
HOSTILE = [
    None,
    True,
    -1,
    0,
    2.5,
    1e308,
    "",
    "\0",
    "../..",
    "/etc/passwd",
    "x" * 5000,
    [],
    [[]],
    {},
]
HOSTILE += [{"": ""}, "0000-00-00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"]


def places(value, *path):
    """Walk the places of a JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for name, part in pairs:
        yield from places(part, *path, name)


def damages(content):
    """Plant some of the values at each place, all of them over the places."""
    for rank, path in enumerate(places(content)):
        for value in HOSTILE[rank % 4 :: 4]:
            yield planted(content, path, value)


def planted(content, path, value):
    """Copy a JSON value with another one at a place."""
    copy = json.loads(json.dumps(content))
    if not path:
        return value
    inside = copy
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return copy


def test_any_record_is_kept_or_fails_its_task(tmp_path):
    content = json.loads(attempt().record)
    store = Store(tmp_path / "out", "plot_x", CONDITIONS)
    store.begin([TASK])
    refused = 0
    for damaged in damages(content):
        outcome = store.keep(TASK, Attempt("here", 1.0, json.dumps(damaged).encode()))
        assert (outcome.record is None) == bool(outcome.error)
        assert store.read(TASK).state == outcome.state
        refused += outcome.state == "failed"
    assert refused > 40
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["tasks.json", f"{TASK.key}.json"])
def test_any_file_of_a_sweep_is_read_or_told(tmp_path, name):
    kept(tmp_path)
    file = tmp_path / "sweeps" / "plot_x" / name
    content = json.loads(file.read_text())
    for damaged in damages(content):
        file.write_text(json.dumps(damaged))
        try:
            found = load_sweep(tmp_path)
        except RecordError:
            assert name == "tasks.json"
            continue
        str(found)
        assert all(o.file is None or tmp_path in o.file.parents for o in found.done)


def test_a_file_leads_nowhere_else(tmp_path):
    _, outcome = kept(tmp_path / "out")
    outside = tmp_path / "plot_x--cpu--0.json"
    outcome.file.rename(outside)
    file = tmp_path / "out" / "sweeps" / "plot_x" / f"{TASK.key}.json"
    for name in (str(outside), f"../{outside.name}", f"a/../../{outside.name}"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "file": name}))
        (found,) = load_sweep(tmp_path / "out").outcomes
        assert found.record is None
        assert "has its record elsewhere" in found.error


def test_a_record_of_another_page_is_told(tmp_path):
    _, outcome = kept(tmp_path)
    fields = json.loads(outcome.file.read_text())
    outcome.file.write_text(json.dumps({**fields, "page": "plot_y"}))
    (found,) = load_sweep(tmp_path).outcomes
    assert found.error.endswith("is a record of 'plot_y'")


def test_a_folder_without_sweep(tmp_path):
    with pytest.raises(InvalidArgumentError, match="has no sweep"):
        load_sweep(tmp_path)
