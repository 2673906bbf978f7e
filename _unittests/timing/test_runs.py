import math

import numpy as np
import pytest
import scipy.stats
from fakes import Caches

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Measurement, measure
from ortmeter.timing.runs import compare_runs, drift_ratio, is_steady
from ortmeter.timing.statistics import welch_log_ratio


def run(*medians, name="m", rounds=3):
    return Measurement(name, [[median] * rounds for median in medians])


@pytest.mark.parametrize(("first", "second"), [(3, 3), (5, 5), (10, 3), (4, 15)])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_is_that_of_welch(first, second, confidence):
    rng = np.random.default_rng([first, second])
    logs = 0.02 * rng.standard_normal(first), 0.1 + 0.08 * rng.standard_normal(second)
    level = 1 - 0.6 * (1 - confidence)  # a part of the error is left
    peer = scipy.stats.ttest_ind(*logs, equal_var=False).confidence_interval(level)
    log, half = welch_log_ratio(*(np.exp(x)[:, None] for x in logs), confidence)
    assert [log - half, log + half] == pytest.approx([peer.low, peer.high])


def test_medians_of_processes_are_compared():
    """A round out of line changes nothing."""
    calm, spiky = run(2.0, 2.1, 2.2), Measurement("m", [[2.0, 2.0, 90], [2.1] * 3, [2.2] * 3])
    assert compare_runs(calm, spiky) == compare_runs(calm, calm)


def measured(seed, names, **options):
    """Time ``a`` and what runs beside it, in five processes whose sessions differ."""
    rng, rows = np.random.default_rng([seed, len(names)]), []
    for _ in range(5):
        caches = Caches(0.79, 0.38, 0.03)
        times = 1e-4 * np.exp(0.005 * rng.standard_normal(len(names)))
        group = {n: caches.candidate(n, s) for n, s in zip(names, times, strict=True)}
        options |= {"repeat": 12, "precision": None}
        rows.append(caches.clock.time(measure, group, **options)["a"].seconds)
    return Measurement("a", np.concatenate(rows))


@pytest.mark.parametrize(("before", "now"), [("a", "ab"), ("abcd", "a"), ("ab", "abcd")])
def test_a_baseline_of_other_candidates_makes_no_false_claim(before, now):
    """What ran beside a model took the caches from it, and was compared with what had them."""
    pairs = [(measured(seed, before), measured(seed + 100, now)) for seed in range(5)]
    assert {compare_runs(*pair).verdict for pair in pairs} <= {"negligible", "undecided"}
    switching = measured(0, "abcd", switching=True)
    assert compare_runs(measured(0, "a"), switching).verdict == "slower"


def test_verdicts_and_words():
    before = run(1.0, 1.01, 1.0, 1.01, 1.0)
    slower = compare_runs(before, run(1.5, 1.51, 1.5), name="the baseline of Monday")
    assert slower.verdict == "slower"
    assert slower.ratio == pytest.approx(1 / 1.5, rel=0.01)
    assert str(slower).startswith("m is 1.50 times slower than the baseline of Monday [1.4")
    assert str(slower).endswith("(99% CI, 5 and 3 processes)")
    assert compare_runs(before, run(0.5, 0.51, 0.5)).verdict == "faster"
    assert compare_runs(before, before).verdict == "negligible"


@pytest.mark.parametrize("few", [1, 2])
def test_no_interval_with_fewer_than_three_processes_on_a_side(few):
    many, less = run(*[1.0] * 5), run(*[2.0] * few, rounds=500)
    for pair in ((many, less), (less, many)):
        claim = compare_runs(*pair)
        assert (claim.has_interval, claim.verdict) == (False, "undecided")


@pytest.mark.parametrize("drift", [1.03, 1 / 1.03])
def test_the_drift_of_the_machine_widens_the_interval(drift):
    before, after = run(1.0, 1.001, 1.0), run(1.04, 1.041, 1.04)
    plain = compare_runs(before, after)
    assert plain.verdict == "negligible"
    controls = (
        run(1.0, 1.001, 1.0, rounds=2),
        run(*[drift * s for s in (1.0, 1.001, 1.0)], rounds=2),
    )
    wide = compare_runs(before, after, references=controls)
    assert math.log(wide.high / wide.low) == pytest.approx(
        math.log(plain.high / plain.low) + 2 * math.log(1.03)
    )
    controls = run(1.0, 1.001, 1.0), run(1.045, 1.046, 1.045)
    assert compare_runs(before, after, references=controls).verdict == "undecided"


@pytest.mark.parametrize("control", [1.26, 0.79])
def test_nothing_is_claimed_when_the_machine_drifted_too_much(control):
    before, after = run(1.0, 1.001, 1.0), run(9.0, 9.001, 9.0)
    controls = run(1.0, 1.0, 1.0), run(control, control, control)
    assert not compare_runs(before, after, references=controls).has_interval
    assert not is_steady(control)
    assert is_steady(1.25)
    assert drift_ratio(run(1.0, 4.0), run(4.0, 4.0, 4.0)) == pytest.approx(2.0)


def test_what_slows_the_reference_workload_too_leaves_the_ratio():
    """Processes of both runs have paces of their own, the same ones in another order."""
    rng = np.random.default_rng(0)
    found = []
    for scale in (1.0, 1.1):
        pace = np.exp(rng.permutation([-0.1, -0.05, 0.0, 0.05, 0.1]))[:, None]
        noise = np.exp(0.01 * rng.standard_normal((2, 5, 24)))
        found.append([Measurement("m", x) for x in (scale * pace, pace) * noise])
    (old, control), (new, same) = found
    log, half = welch_log_ratio(*(x.seconds / y.seconds for x, y in found), 0.99)
    claim = compare_runs(old, new, references=(control, same))
    drift = abs(math.log(drift_ratio(control, same)))
    assert [math.log(claim.low), math.log(claim.high)] == pytest.approx(
        [log - half - drift, log + half + drift]
    )
    assert (claim.verdict, compare_runs(old, new).verdict) == ("slower", "undecided")


@pytest.mark.parametrize("wrong", [0.0, 1e300])
def test_samples_that_are_no_latencies_are_refused(wrong):
    """They come from a file that somebody wrote."""
    good, bad = run(1.0, 1.0, 1.0), run(1.0, wrong, 1.0, name="x")
    for compare in (compare_runs, drift_ratio):
        with pytest.raises(InvalidArgumentError, match="samples of 'x' go from"):
            compare(good, bad)
