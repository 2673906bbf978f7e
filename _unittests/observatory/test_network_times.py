"""Models timed and profiled in fresh processes, and what these are asked."""

import contextlib
import json
import os
from types import SimpleNamespace

import pandas as pd
import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.observatory import network_times
from ortmeter.observatory.network_times import measure_networks, profile_networks
from ortmeter.observatory.networks import export_network
from ortmeter.runtime.providers import Provider
from ortmeter.timing.measurement import Candidate

CPU = Provider("cpu")
CASES = {"encoder, 2": ("encoder", 2)}


@pytest.fixture(scope="module")
def models():
    return {name: export_network(name)[0] for name in ("encoder", "forest")}


def test_a_process_adds_up_to_its_latencies(models):
    found = profile_networks(CASES, models, provider=CPU, processes=1, turns=2)
    assert list(found.columns) == ["case", "process", "turn", "kind", "eager", "onnxruntime"]
    assert found["turn"].unique().tolist() == [0, 1]
    kinds = found.groupby("kind")[["eager", "onnxruntime"]].mean()
    assert {"matrix product", "attention", "normalization", "outside"} <= set(kinds.index)
    assert (kinds.loc["matrix product"] > 0).all()
    assert (found[["eager", "onnxruntime"]] > -1e-9).all(axis=None)


def test_a_process_that_stops_is_one_line(models, monkeypatch):
    with pytest.raises(OrtMeterError, match="A profiling process stopped: .*RNN"):
        profile_networks({"x": ("RNN", 1)}, {"RNN": models["forest"]}, provider=CPU, processes=1)


def test_the_child_keeps_its_memory_and_is_asked_for_the_device(models, monkeypatch):
    asked = []

    def answer(module, question, answer, environment):
        asked.append((module, json.loads(question.read_text()), environment))
        row = {"case": "encoder, 2", "turn": 0, "kind": "other", "eager": 2.0, "onnxruntime": 1.0}
        answer.write_text(json.dumps([row]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(network_times, "run_child", answer)
    cuda = Provider("cuda", 1)
    found = profile_networks(CASES, models, provider=cuda, threads=2, processes=2)
    assert found["process"].tolist() == [0, 1]
    module, question, environment = asked[1]
    assert module == "ortmeter.observatory.network_times"
    told = {"cases": {"encoder, 2": ["encoder", 2]}, "provider": "cuda:1", "threads": 2}
    assert question == told | {"turns": 2, "seed": 1}
    assert environment["MALLOC_TRIM_THRESHOLD_"] == str(2**40)
    assert environment["GOMP_SPINCOUNT"] == "10000"


def test_both_are_profiled_on_the_device_that_is_asked_for(monkeypatch):
    cuda, asked = Provider("cuda", 1), {}

    def keep(name, result):
        return lambda *given, **options: asked.update({name: options}) or result

    latencies = {"eager": SimpleNamespace(median=2.0), "onnxruntime": SimpleNamespace(median=1.0)}
    bound = contextlib.nullcontext(SimpleNamespace(run=None))
    planted = {"start_network": None, "make_session": None, "BoundSession": bound, "profile": None}
    planted |= {"measure_here": latencies, "torch_kinds": {"trees": 1.5}}
    for name, result in (planted | {"session_kinds": {"trees": 4.0}}).items():
        monkeypatch.setattr(network_times, name, keep(name, result))
    options = {"seed": 3, "provider": cuda, "threads": 2}
    found = network_times.profile_both("encoder", 1, None, **options)
    assert found == [
        {"kind": "trees", "eager": 1.5, "onnxruntime": 1.0},
        {"kind": "outside", "eager": 0.5, "onnxruntime": 0.0},
    ]
    assert asked["start_network"] == {"provider": "cuda:1", "threads": 2, "compiled": False}
    assert asked["measure_here"]["sync"] == "cuda:1"
    for name in ("make_session", "profile"):
        assert (asked[name]["provider"], asked[name]["threads"]) == (cuda, 2)


def test_contenders_take_turns_on_the_device_that_is_asked_for(models, monkeypatch):
    asked, sessions, networks, compiled = [], [], [], []

    def network(*case, **options):
        networks.append((case, options))
        return Candidate(lambda: compiled.append(case))

    def measure(groups, **options):
        asked.append((groups, options, dict(os.environ)))

    def session(model, feeds, **options):
        sessions.append((feeds["x" if "x" in feeds else "X"].shape, options))

    monkeypatch.setattr(network_times, "measure_each", measure)
    monkeypatch.setattr(network_times, "session_candidate", session)
    monkeypatch.setattr(network_times, "network_candidate", network)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    cases = {**CASES, "forest, 3": ("forest", 3)}
    cuda = Provider("cuda", 1)
    measure_networks(cases, models, provider=cuda, threads=2, inductor=True, processes=4)
    ((groups, options, environment),) = asked
    assert options == {"axis": "case", "sync": "cuda:1", "processes": 4}
    assert list(groups["encoder, 2"]) == ["eager", "onnxruntime", "session.run", "inductor"]
    assert list(groups["forest, 3"]) == ["eager", "onnxruntime", "session.run"]
    settings = {"provider": "cuda:1", "threads": 2}
    encoder, forest = cases.values()
    inductor = (encoder, settings | {"compiled": True})
    assert networks == [(encoder, settings), inductor, (forest, settings)]
    assert compiled == [encoder]  # before the processes start
    assert sessions[:2] == [((2, 32, 128), {"bound": b, **settings}) for b in (True, False)]
    assert environment["GOMP_SPINCOUNT"] == "10000"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] != "mine"
    assert "GOMP_SPINCOUNT" not in os.environ
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"


@pytest.mark.cuda
def test_both_libraries_are_measured_on_cuda(models):
    cuda = Provider("cuda")
    results = measure_networks(CASES, models, provider=cuda, processes=2, repeat=2, precision=None)
    assert all(one.median > 0 for one in results["encoder, 2"].values())
    found = profile_networks(CASES, models, provider=cuda, processes=1, turns=1)
    assert isinstance(found, pd.DataFrame)
    assert "matrix product" in set(found["kind"])
