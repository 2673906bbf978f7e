"""The search of the fastest model of an equation."""

import itertools
from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest
from einsum_cases import operands_of

from ortmeter.einsum import EinsumError, optimize_einsum
from ortmeter.einsum import search as module
from ortmeter.einsum.search import EinsumSearch, race
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Comparison, Measurement

SEED = "bsnh,btnh->bnts"
CPU = Provider("cpu", 0)


def test_two_searches_compare_the_same_candidates():
    operands = operands_of([(2, 3, 4, 5), (2, 6, 4, 5)])
    first, second = (
        optimize_einsum(SEED, *operands, budget=0.2, seed=3, provider="cpu") for _ in range(2)
    )
    assert [c.name for c in first.candidates] == [c.name for c in second.candidates]
    # How many of them have the time to run depends on the machine, which ones does not.
    fewer, more = sorted((list(s.measured) for s in (first, second)), key=len)
    assert more[: len(fewer)] == fewer
    assert "Einsum" in first.measured
    quartiles = {name: first.measured[name].quartiles[0] for name in first.finalists}
    assert first.best.name in {min(quartiles, key=quartiles.get), "Einsum"}
    assert first.model is first.best.model


def test_shapes_stand_for_operands():
    found = optimize_einsum("ij,jk->ik", (8, 9), [9, 7], budget=0.05, provider="cpu")
    assert found.measured
    dims = [d.dim_value for d in found.model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == [8, 7]


def test_without_time_only_the_most_promising_runs():
    found = optimize_einsum(SEED, *operands_of([(2, 3, 4, 5)] * 2), budget=1e-9, provider="cpu")
    assert list(found.measured) == [found.candidates[0].name] == [found.best.name]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_type_is_that_of_the_operands(dtype):
    operands = operands_of([(3, 4), (4, 5)], dtype)
    found = optimize_einsum("ij,jk->ik", *operands, budget=0.1, provider="cpu")
    session = make_session(found.model, provider="cpu")
    got = session.run(None, dict(zip(("X0", "X1"), operands, strict=True)))[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, operands[0] @ operands[1])


def test_the_table_begins_with_the_best():
    found = optimize_einsum(SEED, (4, 5, 6, 7), (4, 3, 6, 7), budget=0.2, provider="cpu")
    frame = found.to_frame()
    assert sorted(frame["candidate"]) == sorted(c.name for c in found.candidates)
    leaders = frame[frame["finalist"]]
    assert set(leaders["candidate"]) == set(found.finalists)
    assert leaders.index.tolist() == list(range(len(leaders)))
    assert leaders["median"].is_monotonic_increasing
    assert (frame["rounds"] > 0).tolist() == frame["median"].notna().tolist()
    assert str(found).startswith(f"{SEED}: {found.best.name} among {len(frame)} candidates, ")
    assert "timed in" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
    for equation, shapes in (("i,i->", []), ("i,i->", [("n",), ("n",)]), ("->", [])):
        with pytest.raises(InvalidArgumentError, match="shapes without free sizes"):
            optimize_einsum(equation, *shapes)
    with pytest.raises(EinsumError, match="their type is int32. Accepted: float16"):
        optimize_einsum("ij->i", np.zeros((2, 2), "int32"), provider="cpu")
    with pytest.raises(ModelError, match="complex64"):
        optimize_einsum("ij->ji", np.zeros((2, 2), "complex64"), provider="cpu")


class Broken:
    threads, cost, decomposed = 1, 1.0, True
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (string[n] X) => (string[n] Y) { Y = Abs(X) }'
    )


def test_a_race_without_a_runner_tells_why():
    options = {"provider": CPU, "budget_s": 1, "seed": 0}
    with pytest.raises(ModelError, match="refuses this model"):
        race({"a": Broken()}, [np.zeros(2)], **options)


class Quick:
    threads, cost, decomposed = 1, 1.0, True
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (double[n] X) => (double[n] Y) { Y = Abs(X) }'
    )


def test_a_slow_baseline_leaves_the_others_in_the_race(monkeypatch):
    seconds = iter([1e-3, 1e3, 2e-3])
    monkeypatch.setattr(module, "_shortest", lambda run: next(seconds))
    models = {"first": Quick(), "Einsum": Quick(), "other": Quick()}
    measured, finalists = race(models, [np.zeros(2)], provider=CPU, budget_s=0.5, seed=0)
    assert list(measured) == list(models)
    assert "Einsum" not in finalists


@pytest.mark.parametrize(
    ("equation", "expected"),
    # The product of every element of a matrix by every one of another: 17 GB for sizes of 256.
    # Einsum, from left to right, computes it too where the two come first.
    [
        ("ij,jk,kl->il", {"path 0 2, 0 1"}),
        ("ij,kl,jk->il", {"path 0 1, 0 1", "Einsum"}),
    ],
)
def test_what_costs_far_more_than_the_others_does_not_run(equation, expected):
    found = optimize_einsum(equation, *[(64, 64)] * 3, budget=2, provider="cpu")
    assert {c.name for c in found.candidates} - set(found.measured) == expected


def test_a_low_estimate_of_the_operator_leaves_no_decomposition_out():
    models = {"first": Quick(), "Einsum": Quick(), "other": Quick()}
    models["Einsum"].cost, models["Einsum"].decomposed = 1e-3, False
    measured, _ = race(models, [np.zeros(2)], provider=CPU, budget_s=0.5, seed=0)
    assert list(measured) == ["first", "Einsum", "other"]


def test_what_costs_nothing_leaves_nothing_out():
    found = optimize_einsum("ij->ij", (8, 8), budget=2, provider="cpu")
    assert found.candidates[0].cost == 0
    assert set(found.measured) == {c.name for c in found.candidates}


def test_a_costly_model_runs_when_the_others_are_refused():
    models = {"refused": Broken(), "Einsum": Quick(), "other": Quick()}
    models["Einsum"].cost, models["other"].cost = 200.0, 300.0
    measured, finalists = race(models, [np.zeros(2)], provider=CPU, budget_s=0.5, seed=0)
    assert list(measured) == list(finalists) == ["Einsum"]


def test_a_comparison_has_all_the_time_that_is_left(monkeypatch):
    """measure counts its own warm-up: nothing is set aside for it."""
    clock = itertools.count(step=0.125)
    monkeypatch.setattr("ortmeter.einsum.search.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(module, "_shortest", lambda run: 1e-3)
    given = []

    def fake(candidates, *, budget_s, **_):
        given.append(float(next(clock)) + budget_s)
        return Comparison(planted(**dict.fromkeys(candidates, 1e-3)).values())

    monkeypatch.setattr(module, "measure", fake)
    models = {"Einsum": Quick(), "b": Quick()}
    race(models, [np.zeros(2)], provider=CPU, budget_s=10, seed=0)
    # The clock advances by an eighth of a second between the question and the call.
    assert given == [9 + 0.125]


def planted(**medians):
    return {name: Measurement(name, np.full((1, 4), m)) for name, m in medians.items()}


@pytest.mark.parametrize(
    ("einsum_s", "most", "left_s", "expected"),
    [
        (1.8e-3, 3, 10.0, ("Einsum", "b", "a")),
        (1.8e-3, 9, 10.0, ("Einsum", "b", "a", "c")),
        # 33 calls of 1.8 ms, then of 1 ms: no time for a third one
        (1.8e-3, 9, 33 * 3e-3, ("Einsum", "b")),
        (3e-3, 9, 10.0, ("b", "a", "c")),
        (1.8e-3, 9, 0.0, ()),
    ],
)
def test_einsum_and_the_fastest_are_compared_longer(monkeypatch, einsum_s, most, left_s, expected):
    monkeypatch.setattr(module, "_FINALISTS", most)
    shortest = {"Einsum": einsum_s, "a": 1.2e-3, "b": 1e-3, "hopeless": 2.1e-3, "c": 1.5e-3}
    assert module._promising(shortest, left_s) == expected


def winner(finalists, measured):
    candidates = tuple(SimpleNamespace(name=name) for name in measured)
    return EinsumSearch(candidates, measured, tuple(finalists), 1.0).best.name


def test_the_winner_is_a_finalist_and_noise_does_not_choose_it():
    measured = planted(left_early=1.0, slow=3.0)
    measured["noisy"] = Measurement("noisy", np.array([[2.0, 2.0, 9.0, 9.0, 9.0]]))
    assert winner(("slow", "noisy"), measured) == "noisy"


@pytest.mark.parametrize(
    ("won", "rounds", "expected"),
    # The binomial law: 7 of 7 by luck in 1 case of 128, 6 in 8, 22 of 30 in 0.8%, 21 in 2.1%,
    # 100 200 of 200 000 in 18.6%, 100 600 in 0.4%.
    [
        (7, 7, "new"),
        (6, 7, "Einsum"),
        (22, 30, "new"),
        (21, 30, "Einsum"),
        (1, 1, "Einsum"),
        (100_200, 200_000, "Einsum"),
        (100_600, 200_000, "new"),
    ],
)
def test_what_is_not_shown_to_be_faster_does_not_replace_einsum(won, rounds, expected):
    old, new = np.full((1, rounds), 1.0), np.full((1, rounds), 1.01)
    new[0, :won] = 0.9

    def chosen(**seconds):
        timed = {name: Measurement(name, taken) for name, taken in seconds.items()}
        return winner(timed, timed)

    assert chosen(Einsum=old, new=new) == expected
    assert chosen(old=old, new=new) == "new"
    assert chosen(Einsum=old * 2.5, new=new) == "new"
