"""The search of the fastest model of an equation, by cost or by time."""

import functools
import os
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

from ortmeter.einsum import EinsumError, optimize_einsum
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import measure

SEED = "bsnh,btnh->bnts"
CPU = Provider("cpu", 0)


def draw(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


def test_a_search_by_cost_is_the_same_in_every_process():
    code = (
        "from ortmeter.einsum import optimize_einsum; import hashlib;"
        "s = optimize_einsum('bi,ijk,bk->bj', (4, 6), (6, 5, 7), (4, 7), by='cost', "
        "provider='cpu');"
        "print([(c.name, c.cost) for c in s.candidates], "
        "hashlib.sha256(s.model.SerializeToString()).hexdigest())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "decomposed" in told.pop()


def test_a_search_by_time_compares_the_same_candidates():
    operands = draw([(2, 3, 4, 5), (2, 6, 4, 5)])
    first, second = (
        optimize_einsum(SEED, *operands, budget=0.2, seed=3, provider="cpu") for _ in range(2)
    )
    assert [c.name for c in first.candidates] == [c.name for c in second.candidates]
    # How many of them have the time to run depends on the machine, which ones does not.
    fewer, more = sorted((list(s.race.measured) for s in (first, second)), key=len)
    assert more[: len(fewer)] == fewer
    assert "Einsum" in first.race.measured
    assert first.best.name == first.race.winner
    quartiles = {name: first.race.measured[name].quartiles[0] for name in first.race.finalists}
    assert first.best.name in {min(quartiles, key=quartiles.get), "Einsum"}
    assert first.model is first.best.model


def test_shapes_stand_for_operands():
    found = optimize_einsum("ij,jk->ik", (8, 9), [9, 7], budget=0.05, provider="cpu")
    assert found.race.measured
    dims = [d.dim_value for d in found.model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == [8, 7]


def test_without_time_only_the_most_promising_runs():
    found = optimize_einsum(SEED, *draw([(2, 3, 4, 5)] * 2), budget=1e-9, provider="cpu")
    assert list(found.race.measured) == [found.candidates[0].name] == [found.best.name]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32"])
def test_the_type_is_that_of_the_operands(dtype):
    operands = draw([(3, 4), (4, 5)], dtype)
    found = optimize_einsum("ij,jk->ik", *operands, budget=0.1, provider="cpu")
    assert ("Einsum" in found.race.refused) == (dtype == "int8")
    session = make_session(found.model, provider="cpu")
    got = session.run(None, dict(zip(("X0", "X1"), operands, strict=True)))[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, operands[0] @ operands[1])


def test_the_table_begins_with_the_best():
    found = optimize_einsum(SEED, (4, 5, 6, 7), (4, 3, 6, 7), budget=0.2, provider="cpu")
    frame = found.to_frame()
    assert sorted(frame["candidate"]) == sorted(c.name for c in found.candidates)
    leaders = frame[frame["finalist"]]
    assert set(leaders["candidate"]) == set(found.race.finalists)
    assert leaders.index.tolist() == list(range(len(leaders)))
    assert leaders["median"].is_monotonic_increasing
    assert (frame["rounds"] > 0).tolist() == frame["median"].notna().tolist()
    assert str(found).startswith(f"{SEED}: {found.best.name} among {len(frame)} candidates, ")
    assert "timed in" in str(found)


def test_a_search_by_cost_runs_nothing(monkeypatch):
    def fail(*_args, **_options):
        raise AssertionError("a session was created")

    monkeypatch.setattr("ortmeter.einsum.race.make_session", fail)
    found = optimize_einsum(SEED, (4, 5, 6, 7), (4, 3, 6, 7), by="cost", provider="cpu")
    assert found.race is None
    assert found.best.cost == min(c.cost for c in found.candidates)
    assert found.to_frame()["candidate"][0] == found.best.name
    assert found.to_frame()["median"].isna().all()
    assert "estimated" in str(found)


def test_a_provider_that_was_resolved_is_taken_as_it_is():
    found = optimize_einsum("ij,jk->ik", (2, 3), (3, 4), by="cost", provider=CPU)
    assert found.best.name == "decomposed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "size"}, "by='size', budget=2.0, threads=1. Accepted: by='time' or"),
        ({"budget": 0}, "budget=0, threads=1. Accepted"),
        ({"threads": -1}, "threads=-1. Accepted"),
    ],
)
def test_an_option_that_is_not_accepted(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        optimize_einsum("ij,jk->ik", (2, 3), (3, 4), provider="cpu", **options)


def test_operands_that_do_not_suit():
    with pytest.raises(EinsumError, match="size"):
        optimize_einsum("ij,jk->ik", (2, 3), (4, 5))
    with pytest.raises(InvalidArgumentError, match="Accepted: operands, or known shapes"):
        optimize_einsum("ij,jk->ik", (2, "n"), ("n", 5))
    with pytest.raises(InvalidArgumentError, match="Accepted: operands, or known shapes"):
        optimize_einsum("->")
    with pytest.raises(ModelError, match="c64"):
        optimize_einsum("ij->i", np.zeros((2, 2), "complex64"), provider="cpu")


@pytest.mark.parametrize(("faster", "expected"), [(1, 1), (2, 2)])
def test_at_most_some_threads_are_used(monkeypatch, faster, expected):
    """The runs of a session take as long as planted for its number of threads."""
    made = []

    class Planted:
        def __init__(self, session, feeds):
            self.seconds = 1e-3 if session == faster else 5e-3

        def run(self):
            now[0] += self.seconds

    class Session(int):
        def get_inputs(self):
            return [onnx.ValueInfoProto(name=name) for name in ("X0", "X1")]

    def make(model, *, provider, threads):
        made.append(threads)
        return Session(threads)

    now = [0.0]
    monkeypatch.setattr("ortmeter.einsum.race.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("ortmeter.einsum.race.make_session", make)
    monkeypatch.setattr("ortmeter.einsum.race.BoundSession", Planted)
    clocked = functools.partial(measure, timer=lambda: now[0])
    monkeypatch.setattr("ortmeter.einsum.race.measure", clocked)
    options = {"provider": "cpu", "threads": 2, "budget": 1e3}
    found = optimize_einsum("ij,kj->ik", (2, 3), (4, 3), at_most=True, **options)
    assert found.best.threads == expected
    assert made.count(1) == made.count(2) == len(found.candidates) / 2
    assert set(found.to_frame()["threads"]) == {1, 2}
    made.clear()
    optimize_einsum("ij,kj->ik", (2, 3), (4, 3), **options)
    assert set(made) == {2}
