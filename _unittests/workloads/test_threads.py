"""Sessions measured alone in fresh processes, and their neighbours."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from processes import wait_until

from ortmeter.child import Child
from ortmeter.errors import ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads import threads
from ortmeter.workloads.threads import Scenario, measure_threads

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 64] X) => (float[n, 64] Y) { Y = Softmax(X) }"""
OTHER = TEXT.replace("Softmax", "Tanh")
CPU = Provider("cpu")


def variant(text=TEXT, rows=8, **settings):
    feeds = {"X": np.ones((rows, 64), np.float32)}
    return SessionSpec(text, feeds, {"provider": CPU, "threads": 2, **settings})


def test_each_situation_has_its_samples_in_each_process():
    spin, sleep = variant(spinning="on"), variant(OTHER, spinning="off")
    found = measure_threads(
        {
            "paused": Scenario(spin, (0.002, 0.0), 3),
            "near": Scenario(spin, (0.0,), 4, before=sleep, background=sleep),
        },
        processes=2,
    )
    assert list(found.latency) == list(found.cpu) == ["paused", "near"]
    assert list(found.latency["paused"]) == [0.002, 0.0]
    shapes = {name: one[0.0].seconds.shape for name, one in found.latency.items()}
    assert shapes == {"paused": (2, 3), "near": (2, 4)}
    assert {one.seconds.shape for row in found.cpu.values() for one in row.values()} == {(2, 1)}
    # Two processes: their samples are not the same ones.
    first, second = found.latency["near"][0.0].seconds
    assert (first != second).any()


def test_what_a_recipe_asks_reaches_the_session(monkeypatch):
    """On CUDA as on the CPU: provider, threads and spinning, for the model and its neighbour."""
    made, runs = [], []

    class Session:
        def __init__(self, settings):
            self.name = settings["spinning"]

    monkeypatch.setattr(SessionSpec, "session", lambda self: Session(self.settings))

    def call(self, session):
        made.append((str(self.settings["provider"]), self.settings["threads"], session.name))
        return lambda: runs.append(session.name)

    monkeypatch.setattr(SessionSpec, "call", call)
    settings = {"provider": Provider("cuda", 1), "threads": 3}
    spin, sleep = (variant(**settings, spinning=word) for word in ("on", "off"))
    with threads._write({"a": Scenario(spin, (0.0, 0.001), 2, before=sleep)}) as asked:
        rows = threads._measure(asked["a"], 0)
    assert made == [("cuda:1", 3, "on"), ("cuda:1", 3, "off")]
    warm = ["on"] * 3 + ["off"] * 3
    assert runs == 2 * [*warm, *2 * [*6 * ["off"], "on"]]  # one pause, then the other
    assert [len(seconds) for seconds, _ in rows] == [2, 2]


def test_a_neighbour_ends_with_its_situation(monkeypatch):
    started = []

    class Watched(Child):
        def __init__(self):
            super().__init__()
            started.append(self)

    def measure_pauses(calls, *_, **__):
        (child,) = started
        process = psutil.Process(child._process.pid)
        before = process.cpu_times()
        wait_until(lambda: process.cpu_times() != before)  # it runs
        return {"": SimpleNamespace(seconds=np.ones(1), cpu=1.0)}

    monkeypatch.setattr(threads, "Child", Watched)
    monkeypatch.setattr(threads, "measure_pauses", measure_pauses)
    large = variant(rows=4096)
    with threads._write({"a": Scenario(variant(), background=large)}) as asked:
        assert threads._measure(asked["a"], 0) == [([1.0], 1.0)]
    assert started[0].is_dead


def test_a_model_that_cannot_run_is_told_in_one_line():
    wrong = variant(TEXT.replace("Softmax", "Softmaxx"))
    for scenario in (Scenario(wrong), Scenario(variant(), background=wrong)):
        with pytest.raises(ModelError, match=r"^ONNX Runtime .*Softmaxx") as error:
            measure_threads({"wrong": scenario}, processes=1)
        assert "\n" not in str(error.value)


@pytest.mark.cuda
def test_sessions_on_cuda_are_measured():
    scenario = Scenario(variant(provider=Provider("cuda")), (0.0,), 3)
    found = measure_threads({"cuda": scenario}, processes=1)
    assert found.latency["cuda"][0.0].seconds.shape == (1, 3)
