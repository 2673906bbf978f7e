import os

import pytest
from fakes import ENOUGH_S
from processes import run_python

from ortmeter import child
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.runtime.placement import PlacementLog, PlacementWarning
from ortmeter.timing import Candidate, SpawnSpec, measure, measure_each


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user, which a fresh process can import."""
    code = """
import os, sys, time
from ortmeter.timing import Candidate
def build(seconds, folder):
    with open(os.path.join(folder, f"{os.getpid()}"), "a") as f: f.write(f"{time.time_ns()} ")
    return Candidate(lambda: time.sleep(seconds), flop=5.0)
def fail(): raise ValueError("cannot be built")
def refuse():
    from ortmeter.errors import ModelError
    raise ModelError("this model is refused")
def warn():
    import warnings
    from ortmeter.runtime.placement import PlacementWarning
    warnings.warn("MaxPool runs on the CPU", PlacementWarning)
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
    return Candidate(lambda: None, spawn_spec=lambda folder: SpawnSpec(target, arguments))


class Builds:
    """Candidates that fresh processes build, and when each process did."""

    def __init__(self, module, folder):
        self.module, self.folder = module, folder / "builds"

    def candidate(self, name, seconds=0):
        folder = self.folder / name
        folder.mkdir(parents=True)
        return candidate(f"{self.module}:build", seconds=seconds, folder=str(folder))

    def times(self):
        """Return the first time by name of candidate, then by process."""
        return {
            folder.name: {int(f.name): int(f.read_text().split()[0]) for f in folder.iterdir()}
            for folder in self.folder.iterdir()
        }


@pytest.fixture
def builds(module, tmp_path):
    return Builds(module, tmp_path)


LIMITS = {"repeat": 3, "warmup": 1, "precision": None, "budget_s": ENOUGH_S}


def test_each_process_builds_the_candidates_of_all_groups_in_another_order(builds):
    group = {name: builds.candidate(name, 1e-3 if name == "a" else 0) for name in "abcd"}
    groups = {1: group, 2: {"a": group["a"]}}
    found = measure_each(groups, axis="n", processes=4, reference_workload=True, **LIMITS)
    assert list(found[1]) == [*"abcd"]
    measured = [m for g in found.values() for m in (*g.values(), g.reference_workload)]
    assert {m.seconds.shape for m in measured} == {(4, 6 * 3)}
    assert all(g.reference_workload.median > 0 for g in found.values())
    assert found[2]["a"].flop == 5.0
    assert found[2]["a"].median >= 1e-3
    times = builds.times()
    assert len(times["a"]) == 4  # a process for all the groups, not one for each
    assert os.getpid() not in times["a"]
    orders = {tuple(sorted("abcd", key=lambda n: times[n][pid])) for pid in times["a"]}
    assert len(orders) > 1


def test_candidates_apart_have_their_own_processes(builds):
    names = ["a", "b"]
    groups = {key: {n: builds.candidate(f"{key}{n}") for n in names} for key in (1, 2)}
    options = {"isolated": True, "reference_workload": True, **LIMITS}
    found = measure_each(groups, axis="n", processes=2, **options)
    times = builds.times()
    pids = [pid for each in times.values() for pid in each]
    assert len(pids) == len({*pids, os.getpid()}) - 1 == 8  # 2 groups, 2 candidates, 2 processes
    for key, group in found.items():
        assert list(group) == names
        assert [measured.seconds.shape for measured in group.values()] == [(2, 6 * 3)] * 2
        assert group.reference_workload.seconds.shape == (2, 2 * 6 * 3)  # beside each candidate
        assert group.how == "each alone in 2 processes of 6 times 3 rounds, back to back"
        assert group.speedup("a", "b").how == "2 processes each"
        turns = sorted((time, n) for n in names for time in times[f"{key}{n}"].values())
        assert [sorted(n for _, n in turns[i : i + 2]) for i in (0, 2)] == [names] * 2


def test_candidates_apart_need_several_processes(module):
    with pytest.raises(
        InvalidArgumentError, match="processes=1 with isolated=True. Accepted: proc"
    ):
        measure({"a": candidate(f"{module}:build")}, isolated=True)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("fail", OrtMeterError, "exit code 1.*cannot be built"),
        ("refuse", ModelError, "^this model is refused$"),
    ],
)
def test_a_process_that_fails_is_reported(module, function, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        measure({"a": candidate(f"{module}:{function}")}, processes=2)


def test_a_process_waits_for_the_device(module):
    with pytest.raises(OrtMeterError, match="device 1 is awaited"):
        measure({"a": candidate(f"{module}:on_a_device")}, processes=2, sync="cuda:1")


def test_what_a_process_runs_elsewhere_than_asked_is_told_once(module, monkeypatch):
    monkeypatch.setattr(child, "told_warnings", set())
    log = PlacementLog()
    with pytest.warns(PlacementWarning, match="MaxPool") as caught:
        measure({"a": candidate(f"{module}:warn")}, processes=2, repeat=1, precision=None)
    assert len(caught) == 1
    assert log.messages == ["MaxPool runs on the CPU"]


def test_a_function_of_a_page_travels_as_source(tmp_path):
    page = tmp_path / "plot_x.py"
    page.write_text(
        "import ortmeter\n"
        "def build(size):\n"
        "    import numpy as np\n"
        "    return np.ones(size).sum\n"
        "candidates = {'sum': ortmeter.function_candidate(build, size=10)}\n"
        f"limits = dict(repeat=3, warmup=1, precision=None, budget_s={ENOUGH_S})\n"
        "found = ortmeter.measure(candidates, processes=2, **limits)\n"
        "print(found['sum'].seconds.shape)\n"
    )
    done = run_python(page, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "(2, 18)", done.stderr
