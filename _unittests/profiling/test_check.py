import numpy as np
import pytest
from profile_writer import run_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import (
    ProfileCheck,
    check_profiles,
    profile,
    profile_together,
    read_profile,
)
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing import Measurement


def planted(before, after, *, rounds=200, noise=0.01):
    """Samples around two medians."""
    rng = np.random.default_rng(0)
    return tuple(
        Measurement(name, median * np.exp(noise * rng.standard_normal((1, rounds))))
        for name, median in (("before", before), ("after", after))
    )


@pytest.mark.parametrize(
    ("kernels", "latencies", "verdict"),
    [
        # What two profiles taken one after the other said once, in ms.
        ((16.9, 19.8), (17.3, 13.9), "opposed"),
        ((19.8, 16.9), (13.9, 17.3), "opposed"),
        ((16.9, 13.0), (17.3, 13.9), "agree"),
        ((13.0, 16.9), (13.9, 17.3), "agree"),
        ((10.0, 10.0), (11.0, 11.0), "agree"),
        # Both are decided and as close as what is worth a claim.
        ((10.4, 10.0), (10.6, 10.0), "agree"),
        ((10.0, 10.0), (13.0, 10.0), "undecided"),
        ((13.0, 10.0), (10.0, 10.0), "undecided"),
        # A kernel that takes less than a microsecond has no time.
        ((0.0, 0.0), (13.0, 10.0), "undecided"),
    ],
)
def test_kernels_and_latencies_point_the_same_way_or_not(kernels, latencies, verdict):
    check = ProfileCheck(planted(*kernels), planted(*latencies))
    assert check.verdict == verdict
    said = {
        "agree": "the latency say the same",
        "opposed": "nothing can be concluded about nodes",
        "undecided": "is not confirmed",
    }
    assert str(check).endswith(said.pop(verdict))
    assert not any(text in str(check) for text in said.values())
    kernels_said, latency_said, _ = map(str, check.claims)
    assert kernels_said.startswith("kernels in total: ")
    assert latency_said.startswith("latency without the profiler: ")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("samples", [{"noise": 0.9}, {"rounds": 50}])
def test_what_is_not_decided_neither_agrees_nor_opposes(side, samples):
    sides = [planted(10.0, 5.0), planted(10.0, 5.0)]
    assert ProfileCheck(*sides).verdict == "agree"
    sides[side] = planted(5.0, 5.0, **samples)
    assert ProfileCheck(*sides).verdict == "undecided"


def test_a_check_is_about_the_steady_runs_of_profiles_taken_together():
    feeds = {"input": np.zeros((1, 3, 16, 16), np.float32)}
    found = profile_together(
        {"written": {"optimization": "none"}, "rewritten": {"optimization": "all"}},
        model=sample_cnn(size=16),
        feeds=feeds,
        provider="cpu",
        repeat=4,
    )
    before, after = found.values()
    check = check_profiles(before, after)
    for measured, ran in zip(check.kernels, (before, after), strict=True):
        steady = ran.events[ran.events["iteration"] > 0]
        expected = steady.groupby("iteration")["self_duration"].sum()
        np.testing.assert_allclose(measured.seconds[0], 1e-6 * expected)
    assert check.latencies == (before.latencies["written"], before.latencies["rewritten"])
    claim = check.latency_speedup
    assert (claim.baseline, claim.candidate) == ("written", "rewritten")
    assert check.verdict in {"agree", "opposed", "undecided"}


def test_profiles_that_were_not_taken_together_are_refused(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n] X) => (float[n] Y) { Y = Abs(X) }"""
    one, two = (
        profile(text, {"X": np.ones(2, np.float32)}, provider="cpu", repeat=1) for _ in range(2)
    )
    assert check_profiles(one, one).verdict == "undecided"
    read = read_profile(write(tmp_path / "p.json", [*two_runs(), run_event(90, 3)]))
    for pair in ((one, two), (one, read), (read, read)):
        with pytest.raises(InvalidArgumentError, match="were not taken together.*Accepted"):
            check_profiles(*pair)
