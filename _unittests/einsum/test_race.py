"""The race of the candidates of an equation: who runs, how long, who wins."""

import itertools

import numpy as np
import onnx.parser
import pytest

from ortmeter.einsum.race import Race, _promising, _Stage, fastest, race
from ortmeter.errors import ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.timing import Comparison, Measurement

CPU = Provider("cpu", 0)


class Broken:
    threads = 1
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (string[n] X) => (string[n] Y) { Y = Abs(X) }'
    )


def test_a_race_without_a_runner_tells_why():
    options = {"provider": CPU, "budget_s": 1, "seed": 0}
    with pytest.raises(ModelError, match="refuses this model"):
        race({"a": Broken()}, [np.zeros(2)], baseline="a", **options)


class Quick:
    threads = 1
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (double[n] X) => (double[n] Y) { Y = Abs(X) }'
    )


def test_a_slow_baseline_leaves_the_others_in_the_race(monkeypatch):
    seconds = iter([1e-3, 1e3, 2e-3])
    monkeypatch.setattr("ortmeter.einsum.race._shortest", lambda run: next(seconds))
    models = {"first": Quick(), "slow": Quick(), "other": Quick()}
    found = race(models, [np.zeros(2)], baseline="slow", provider=CPU, budget_s=0.5, seed=0)
    assert list(found.measured) == list(models)
    assert "slow" not in found.finalists


def test_a_comparison_has_all_the_time_that_is_left(monkeypatch):
    """measure counts its own warm-up: nothing is set aside for it."""
    clock = itertools.count(step=0.125)
    monkeypatch.setattr("ortmeter.einsum.race.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("ortmeter.einsum.race._shortest", lambda run: 1e-3)
    given = []

    def fake(candidates, *, budget_s, **options):
        given.append((float(next(clock)) + budget_s, options["precision"]))
        return Comparison(planted(**dict.fromkeys(candidates, 1e-3)).values())

    monkeypatch.setattr("ortmeter.einsum.race.measure", fake)
    models = {"a": Quick(), "b": Quick()}
    race(models, [np.zeros(2)], baseline="a", provider=CPU, budget_s=10, seed=0)
    # The clock advances by an eighth of a second between the question and the call.
    assert given == [(6 + 0.125, None), (9 + 0.125, 0.02)]


def planted(**medians):
    return {name: Measurement(name, np.full((1, 4), m)) for name, m in medians.items()}


@pytest.mark.parametrize(
    ("baseline_s", "most", "left_s", "expected"),
    [
        (1.8e-3, 3, 10.0, ("baseline", "b", "a")),
        (1.8e-3, 9, 10.0, ("baseline", "b", "a", "c")),
        # 13 calls of 1.8 ms, then of 1 ms: no time for a third one
        (1.8e-3, 9, 13 * 3e-3, ("baseline", "b")),
        (3e-3, 9, 10.0, ("b", "a", "c")),
        (1.8e-3, 9, 0.0, ()),
    ],
)
def test_the_baseline_and_the_fastest_are_compared_longer(baseline_s, most, left_s, expected):
    measured = planted(baseline=baseline_s, a=1.2e-3, b=1e-3, hopeless=2.1e-3, c=1.5e-3)
    stage = _Stage(most, rounds=10, share=1.0, precision=None)
    assert _promising(measured, tuple(measured), "baseline", stage, left_s) == expected


def test_the_winner_is_a_finalist_and_noise_does_not_choose_it():
    measured = planted(left_early=1.0, slow=3.0)
    measured["noisy"] = Measurement("noisy", np.array([[2.0, 2.0, 9.0, 9.0, 9.0]]))
    assert Race(measured, ("slow", "noisy"), {}, "absent").winner == "noisy"


@pytest.mark.parametrize(
    ("won", "rounds", "expected"),
    # The binomial law: 7 of 7 by luck in 1 case of 128, 6 in 8, 22 of 30 in 0.8%, 21 in 2.1%,
    # 100 200 of 200 000 in 18.6%, 100 600 in 0.4%.
    [
        (7, 7, "new"),
        (6, 7, "old"),
        (22, 30, "new"),
        (21, 30, "old"),
        (1, 1, "old"),
        (100_200, 200_000, "old"),
        (100_600, 200_000, "new"),
    ],
)
def test_what_is_not_shown_to_be_faster_does_not_replace_the_baseline(won, rounds, expected):
    seconds = {"old": np.full((1, rounds), 1.0), "new": np.full((1, rounds), 1.01)}
    seconds["new"][0, :won] = 0.9
    assert fastest(seconds, "old") == expected
    assert fastest(seconds, "absent") == "new"
    assert fastest({**seconds, "old": seconds["old"] * 2.5}, "old") == "new"
