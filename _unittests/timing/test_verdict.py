import numpy as np
import pytest
from fakes import FakeClock

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Measurement, measure, speedup, summarize
from ortmeter.timing.verdict import Speedup

TRIALS = 100
LENGTH = 4000


def autocorrelated(rng, correlation):
    """Normal noise whose neighbours are correlated, of unit variance."""
    steps = rng.standard_normal(LENGTH) * np.sqrt(1 - correlation**2)
    noise = np.empty(LENGTH)
    noise[0] = rng.standard_normal()
    for i in range(1, LENGTH):
        noise[i] = correlation * noise[i - 1] + steps[i]
    return noise


def verdicts(ratio, relative_iqr, correlation, drift):
    """Measure two planted candidates with a fake clock, many times."""
    spread = relative_iqr / 1.349  # interquartile range of a normal law
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        clock = FakeClock()
        trend = drift * np.linspace(0, 1, LENGTH) * rng.choice([-1, 1])
        candidates = {
            name: clock.candidate(
                name, 1e-3 * scale * np.exp(spread * autocorrelated(rng, correlation) + trend)
            )
            for name, scale in {"baseline": ratio, "candidate": 1.0}.items()
        }
        results = measure(candidates, warmup=5, seed=seed, timer=clock)
        yield speedup(results["baseline"], results["candidate"], seed=seed).verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relative_iqr", "correlation", "drift"),
    [(0.02, 0.0, 0.0), (0.2, 0.0, 0.3), (0.1, 0.5, 0.3), (0.2, 0.5, 0.3)],
)
@pytest.mark.parametrize(
    ("ratio", "right"),
    [
        (1.0, {"equivalent", "undecided"}),
        (1.1, {"faster"}),
        (1.5, {"faster"}),
        (1 / 1.1, {"slower"}),
    ],
)
def test_the_verdict_is_right_in_95_percent_of_trials(
    ratio, right, relative_iqr, correlation, drift
):
    found = [v in right for v in verdicts(ratio, relative_iqr, correlation, drift)]
    assert sum(found) >= 0.95 * TRIALS


@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.5])
def test_the_interval_covers_the_true_ratio(ratio):
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(TRIALS):
        noise = np.exp(0.05 * rng.standard_normal((2, 1, 200)))
        result = speedup(Measurement("a", ratio * noise[0]), Measurement("b", noise[1]), seed=seed)
        covered += result.low <= ratio <= result.high
    assert covered >= 0.96 * TRIALS


def test_processes_that_differ_widen_the_interval():
    """The same samples say less when most of the variation is between processes."""
    rng = np.random.default_rng(0)
    noise = np.exp(0.01 * rng.standard_normal((2, 5, 50)))
    offset = np.exp(0.1 * rng.standard_normal((5, 1)))
    pooled = speedup(Measurement("a", 1.1 * noise[0]), Measurement("b", noise[1]))
    varied = speedup(Measurement("a", 1.1 * noise[0] * offset), Measurement("b", noise[1]))
    assert pooled.verdict == "faster"
    assert np.log(varied.high / varied.low) > 10 * np.log(pooled.high / pooled.low)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict", "text"),
    [
        (2.0, 1.8, 2.2, "faster", "b is 2.00 times faster than a (99% interval 1.80 to 2.20)"),
        (0.5, 0.4, 0.625, "slower", "b is 2.00 times slower than a (99% interval 1.60 to 2.50)"),
        (
            1.5,
            0.9,
            2.0,
            "undecided",
            "no difference can be claimed between b and a (ratio 1.50, 99",
        ),
        # an interval that leaves 1 out is not enough: the effect must be worth a claim
        (1.02, 1.01, 1.03, "equivalent", "(ratio 1.02, below 5%, 99% interval 1.01 to 1.03)"),
        (1.04, 1.01, 1.08, "undecided", "no difference can be claimed"),
        (0.97, 0.90, 0.99, "undecided", "no difference can be claimed"),
        (1.05, 1.001, 1.1, "faster", "1.05 times faster"),
    ],
)
def test_a_claim_needs_an_interval_and_an_effect(ratio, low, high, verdict, text):
    got = Speedup("a", "b", ratio, low, high)
    assert got.verdict == verdict
    assert text in str(got)
    assert got.is_claim is (verdict in {"faster", "slower"})


def test_a_summary_groups_the_keys_by_verdict():
    wins, loses = Speedup("a", "b", 2.0, 1.8, 2.2), Speedup("a", "b", 0.5, 0.4, 0.6)
    ties = Speedup("a", "b", 1.01, 0.9, 1.1)
    assert summarize({1: wins, 2: ties, 3: loses, 4: ties}, "size") == (
        "b is faster than a at size 1 (2.00, 1.80 to 2.20); "
        "no difference can be claimed between b and a at size 2 (1.01, 0.90 to 1.10) "
        "and 4 (1.01, 0.90 to 1.10); "
        "b is slower than a at size 3 (0.50, 0.40 to 0.60)"
    )


def test_measurements_of_different_runs_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"\(1, 3\) samples and 'b' \(1, 2\)"):
        speedup(Measurement("a", [[1.0] * 3]), Measurement("b", [[1.0] * 2]))


def test_a_clock_that_stands_still_is_refused():
    with pytest.raises(InvalidArgumentError, match="too coarse"):
        speedup(Measurement("a", [[1.0]]), Measurement("b", [[0.0]]))
