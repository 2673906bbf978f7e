import json
import os

import numpy as np
import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.timing import Candidate, Recipe, fresh, measure
from ortmeter.timing.worker import main


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user, which a fresh process can import."""
    code = """
import os, sys, time
from ortmeter.timing import Candidate
def build(seconds, folder):
    with open(os.path.join(folder, f"{os.getpid()}"), "a") as f: f.write(".")
    return Candidate(lambda: time.sleep(seconds), flop=5.0)
def fail(): raise ValueError("cannot be built")
def die(): os._exit(9)
"""
    (tmp_path / "user_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "user_module"


def candidate(target, **arguments):
    return Candidate(lambda: None, recipe=lambda folder: Recipe(target, arguments))


def test_each_process_builds_the_candidates_again(module, tmp_path):
    folder = tmp_path / "pids"
    folder.mkdir()
    a = candidate(f"{module}:build", seconds=1e-3, folder=str(folder))
    results = measure({"a": a}, processes=2, repeat=3, warmup=1, precision=None)
    assert results["a"].seconds.shape == (2, 3)
    assert results["a"].flop == 5.0
    assert results["a"].median >= 1e-3
    pids = {int(file.name) for file in folder.iterdir()}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_later_processes_take_as_many_rounds_as_the_first(monkeypatch):
    tasks = []

    def run(task, folder):
        tasks.append(task)
        m = {"name": "a", "seconds": [[1.0] * 80], "number": 1, "warmup": []}
        return {"a": fresh.Measurement.from_dict(m)}

    monkeypatch.setattr(fresh, "_run", run)
    results = measure({"a": candidate("x:y")}, processes=3, repeat=20, precision=0.01, seed=5)
    assert results["a"].seconds.shape == (3, 80)
    assert [task["repeat"] for task in tasks] == [20, 80, 80]
    assert [task["seed"] for task in tasks] == [5, 6, 7]
    assert tasks[0]["precision"] == pytest.approx(0.01 * np.sqrt(3))
    assert tasks[1]["precision"] is None


@pytest.mark.parametrize(
    ("function", "message"),
    [("fail", "exit code 1.*cannot be built"), ("die", "exit code 9"), ("nothing", "nothing")],
)
def test_a_process_that_fails_is_reported(module, function, message):
    with pytest.raises(OrtMeterError, match=f"(?s){message}"):
        measure({"a": candidate(f"{module}:{function}")}, processes=2)


def test_the_worker_writes_raw_times(module, tmp_path):
    recipe = {"target": f"{module}:build", "arguments": {"seconds": 0, "folder": str(tmp_path)}}
    options = {"repeat": 2, "warmup": 1, "precision": None, "seed": 0}
    question, answer = tmp_path / "task.json", tmp_path / "answer.json"
    question.write_text(json.dumps({"candidates": {"a": recipe}, **options}))
    main(str(question), str(answer))
    (row,) = json.loads(answer.read_text())
    assert row["name"] == "a"
    assert np.shape(row["seconds"]) == (1, 2)
