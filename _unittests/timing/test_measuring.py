import json
import os

import numpy as np
import pytest
from fakes import FakeClock

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime import placement
from ortmeter.timing import Candidate, Comparison, Measurement, Recipe, measure, measure_each
from ortmeter.timing.candidates import function_candidate
from ortmeter.timing.loop import main
from ortmeter.timing.measuring import collect


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
def warn():
    from ortmeter.runtime import placement
    placement.warned.append("MaxPool runs on the CPU")
    return lambda: None
def on_a_device():
    from types import SimpleNamespace
    def synchronize(index): raise ValueError(f"device {index} is awaited")
    sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize))
    return lambda: None
"""
    (tmp_path / "user_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "user_module"


def candidate(target, **arguments):
    return Candidate(lambda: None, recipe=lambda folder: Recipe(target, arguments))


def test_each_process_builds_the_candidates_of_all_groups(module, tmp_path):
    folder = tmp_path / "pids"
    folder.mkdir()
    a = candidate(f"{module}:build", seconds=1e-3, folder=str(folder))
    results = measure_each(
        {1: {"a": a}, 2: {"a": a, "b": a}},
        axis="n",
        processes=2,
        repeat=3,
        warmup=1,
        precision=None,
    )
    assert {m.seconds.shape for group in results.values() for m in group.values()} == {(2, 3)}
    assert results[2]["b"].flop == 5.0
    assert results[1]["a"].median >= 1e-3
    pids = {int(file.name) for file in folder.iterdir()}
    assert len(pids) == 2  # a process for all the groups, not one for each
    assert os.getpid() not in pids


def test_candidates_are_built_in_another_order_in_each_process(module, tmp_path):
    names = ["a", "b", "c", "d"]
    folders = {name: tmp_path / f"built {name}" for name in names}
    for folder in folders.values():
        folder.mkdir()
    group = {n: candidate(f"{module}:build", seconds=0, folder=str(f)) for n, f in folders.items()}
    results = measure(group, processes=4, repeat=1, warmup=1, precision=None)
    assert list(results) == names
    built = {
        name: {f.name: f.stat().st_mtime_ns for f in folders[name].iterdir()} for name in names
    }
    orders = [tuple(sorted(names, key=lambda n: built[n][pid])) for pid in built["a"]]
    assert len(orders) == 4
    assert len(set(orders)) > 1


def planted(noise, duration=1.0, rounds=12):
    """Processes that last as long on a fake clock, whose candidates differ by a noise."""
    clock, rng, asked = FakeClock(), np.random.default_rng(0), []

    def run(i, keys, budget_s):
        asked.append((i, tuple(keys), budget_s))
        clock.now += duration
        both = np.exp(noise * rng.standard_normal((2, 1)) + np.zeros((2, rounds)))
        pair = {name: Measurement(name, row[None]) for name, row in zip("ab", both, strict=True)}
        return dict.fromkeys(keys, pair)

    return run, clock, asked


def test_precision_is_that_of_all_processes_together():
    run, clock, asked = planted(noise=0.001)
    found = collect(["x"], run, processes=5, precision=0.02, budget_s=100, timer=clock)["x"]
    assert found.stopped == "precision"
    assert found["a"].processes == 5 == len(asked)
    assert found.half_width() <= 0.02

    run, clock, asked = planted(noise=0.02)
    found = collect(["x"], run, processes=3, precision=0.02, budget_s=100, timer=clock)["x"]
    assert 3 < found["a"].processes <= 9


def test_an_interval_that_is_narrow_by_luck_ends_nothing():
    """Narrow at 99% after three processes, not at 99.9%: a fourth one is asked for."""
    ratios = iter([0.999, 1.0, 1.001, *[1.0] * 20])

    def run(_i, keys, _budget):
        ratio = next(ratios)
        pair = {"a": Measurement("a", [[1.0] * 12]), "b": Measurement("b", [[ratio] * 12])}
        return dict.fromkeys(keys, pair)

    found = collect(["x"], run, processes=3, precision=0.01, budget_s=1e6)["x"]
    assert found["a"].processes > 3
    first = Comparison(Measurement(m.name, m.seconds[:3]) for m in found.values())
    assert first.half_width() <= 0.01 < first.half_width(0.999)


def test_processes_are_added_to_the_groups_that_need_them_only():
    calm, clock, _ = planted(noise=0.0001)
    noisy, _, _ = planted(noise=0.1)
    asked = []

    def run(i, keys, budget_s):
        asked.append(tuple(keys))
        clock.now += 1.0
        return {k: (calm if k == "calm" else noisy)(i, [k], budget_s)[k] for k in keys}

    found = collect(["calm", "noisy"], run, processes=5, precision=0.02, budget_s=1e6, timer=clock)
    assert asked[:5] == [("calm", "noisy")] * 5
    assert set(asked[5:]) == {("noisy",)}
    assert (found["calm"].stopped, found["noisy"].stopped) == ("precision", "budget")


def test_the_budget_caps_the_processes():
    run, clock, asked = planted(noise=0.1)
    found = collect(["x"], run, processes=10, precision=0.001, budget_s=4.6, timer=clock)["x"]
    assert found.stopped == "budget"
    assert found["a"].processes == len(asked) == 5
    assert clock.now <= 5
    assert sum(budget for *_, budget in asked[:1]) <= 4.6


def test_processes_with_fewer_rounds_cut_the_others():
    rounds = iter([12, 7, 12])

    def run(_i, keys, _budget):
        return {key: {"a": Measurement("a", np.ones((1, next(rounds))))} for key in keys}

    found = collect(["x"], run, processes=3, precision=None, budget_s=100)["x"]
    assert found["a"].seconds.shape == (3, 7)
    assert found.stopped == "repeat"


@pytest.mark.parametrize(
    ("function", "message"),
    [("fail", "exit code 1.*cannot be built"), ("die", "exit code 9"), ("nothing", "nothing")],
)
def test_a_process_that_fails_is_reported(module, function, message):
    with pytest.raises(OrtMeterError, match=f"(?s){message}"):
        measure({"a": candidate(f"{module}:{function}")}, processes=2)


def test_a_process_waits_for_the_device(module):
    with pytest.raises(OrtMeterError, match="device 1 is awaited"):
        measure({"a": candidate(f"{module}:on_a_device")}, processes=2, sync="cuda:1")


def test_the_child_writes_raw_times(module, tmp_path):
    recipe = {"target": f"{module}:build", "arguments": {"seconds": 0, "folder": str(tmp_path)}}
    task = {"groups": [{"a": recipe}], "repeat": 2, "warmup": 1, "seed": 0}
    question, answer = tmp_path / "task.json", tmp_path / "answer.json"
    question.write_text(json.dumps({**task, "budget_s": 10, "asked_at": 0}))
    main(str(question), str(answer))
    found = json.loads(answer.read_text())
    ((row,),) = found["groups"]
    assert (row["name"], found["warned"]) == ("a", [])
    assert np.shape(row["seconds"])[0] == 1


def test_what_a_process_runs_elsewhere_than_asked_is_told_once(module, monkeypatch):
    monkeypatch.setattr(placement, "warned", [])
    with pytest.warns(placement.PlacementWarning, match="MaxPool") as caught:
        measure({"a": candidate(f"{module}:warn")}, processes=2, repeat=1, precision=None)
    assert len(caught) == 1
    assert placement.warned == ["MaxPool runs on the CPU"]


def test_a_function_of_a_page_travels_as_source(tmp_path):
    page = tmp_path / "plot_x.py"
    page.write_text(
        "import ortmeter\n"
        "def build(size):\n"
        "    import numpy as np\n"
        "    return np.ones(size).sum\n"
        "candidates = {'sum': ortmeter.function_candidate(build, size=10)}\n"
        "found = ortmeter.measure(candidates, processes=2, repeat=3, warmup=1, precision=None)\n"
        "print(found['sum'].seconds.shape)\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, page], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.split("\n")[0] == "(2, 3)", done.stderr


OUTSIDE = 3


def test_a_function_that_does_not_stand_alone_is_refused():
    def build():
        return lambda: OUTSIDE

    def uses():
        return OUTSIDE

    with pytest.raises(InvalidArgumentError, match="'uses' uses OUTSIDE, defined outside"):
        function_candidate(uses)
    assert build() is not None


def test_a_function_without_source_is_refused():
    with pytest.raises(InvalidArgumentError, match="source of 'sum' is not available"):
        function_candidate(sum, iterable=[1])
