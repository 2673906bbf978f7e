import numpy as np
import pytest
from fakes import ENOUGH_S

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.settings import DENORMALS
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing import bench as module
from ortmeter.timing.bench import bench, why_isolated
from ortmeter.timing.candidates import model_variants

MATMUL = """<ir_version: 11, opset_import: ["": 23]>
g (float[n, k] X, float[k, 3] Y) => (float[n, 3] Z) { Z = MatMul(X, Y) }"""
FEEDS = {"X": np.ones((2, 4), np.float32), "Y": np.ones((4, 3), np.float32)}
QUICK = {"provider": "cpu", "repeat": 2, "warmup": 1, "precision": None, "budget_s": ENOUGH_S}
HERE = {**QUICK, "processes": 1}


def test_a_bench_names_what_varies(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.onnx").write_bytes(load_model(MATMUL).SerializeToString())
    one, two = tmp_path / "a" / "m.onnx", tmp_path / "b" / "m.onnx"
    assert list(bench(one, FEEDS, **HERE)) == ["m.onnx"]
    assert list(bench([one, two], FEEDS, **HERE)) == [str(one), str(two)]
    assert list(bench([MATMUL, one], [FEEDS, FEEDS], **HERE)) == ["g", "m.onnx"]
    got = bench({"x": one, "y": MATMUL}, FEEDS, threads=(1, 2), **HERE)
    assert list(got) == ["x, threads=1", "x, threads=2", "y, threads=1", "y, threads=2"]


def test_a_bench_runs_what_cannot_be_bound_and_draws_its_inputs():
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (string[1] X) => (string[1] Y) { Y = Identity(X) }"""
    assert list(bench(text, **HERE)) == ["g"]


STOPPED = {"session_config": {"session.force_spinning_stop": 1}}
PARALLEL = {"session_options": {"execution_mode": "parallel"}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"spinning": ["during-run", "on", "off"], "threads": 2}, "threads of 'spinning=on' spin"),
        ({"spinning": "on", "threads": [1, 0]}, "threads of 'threads=0' spin"),
        ({"optimization": ["none", "all"], "threads": 2, "spinning": "on"}, "threads of 'optimiz"),
        (
            {"session_config": {"session.force_spinning_stop": [1, 0]}, "threads": 2},
            "_stop=0' spin",
        ),
        (
            {"session_options": {"execution_mode": ["parallel", "sequential"]}, "spinning": "on"},
            "threads of 'execution_mode=parallel' spin",
        ),
        (
            {"session_config": {DENORMALS: ["0", "1"]}},
            f"session of a process decides for {DENORMALS}",
        ),
        ({"spinning": ["during-run", "off"], "threads": [1, 2]}, ""),
        ({"spinning": ["on", "off"]}, ""),  # one thread
        ({"spinning": "on", "threads": 2}, ""),  # one candidate
        ({"spinning": ["on", "during-run"], "threads": 2, **STOPPED}, ""),
        ({"spinning": ["during-run", "off"], **PARALLEL}, ""),
        ({"session_config": {DENORMALS: 0}, "threads": [1, 2]}, ""),
    ],
)
def test_who_disturbs_the_next(settings, why, monkeypatch):
    variants = model_variants(MATMUL, FEEDS, provider="cpu", **settings)
    found = why_isolated(variants)
    assert why in found
    assert bool(found) == bool(why)
    asked = []

    def stand_in(candidates, **options):
        asked.append(options)
        return Comparison(Measurement(name, [[1.0]]) for name in candidates)

    monkeypatch.setattr(module, "measure", stand_in)
    monkeypatch.setattr("ortmeter.timing.candidates.make_session", None)  # none is made here
    assert len(bench(MATMUL, FEEDS, provider="cpu", **settings)) == len(variants)
    usual = {"processes": 5, "budget_s": 30, "precision": 0.04}
    assert asked == [{**usual, "isolated": bool(why)}]


def test_one_process_is_refused_where_several_are_needed():
    with pytest.raises(
        InvalidArgumentError, match="^processes=1: threads of .* from 2; an interval"
    ):
        bench(MATMUL, FEEDS, provider="cpu", threads=2, spinning=["on", "off"], processes=1)


def test_each_value_of_what_a_process_decides_once_is_measured():
    config = {DENORMALS: [0, 1]}
    found = bench(MATMUL, FEEDS, processes=2, session_config=config, **QUICK)
    assert {name: m.seconds.shape for name, m in found.items()} == {
        f"{DENORMALS}={value}": (2, 6 * 2) for value in (0, 1)
    }
    assert all(measured.isolated for measured in found.values())
