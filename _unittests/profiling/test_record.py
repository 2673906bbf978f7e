import dataclasses

import numpy as np
import pytest
from claim_samples import compare_ratio
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import (
    ProfileCheck,
    profile,
    profile_together,
    read_profile,
)
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing import Comparison, Measurement


def test_events_outside_of_the_runs_do_not_count(tmp_path):
    lost = kernel_event("first", 95, 1000, op="Exp")
    profile = read_profile(write(tmp_path / "p.json", [*two_runs(), lost]))
    assert len(profile.events) == 5
    assert len(profile.steady) == 2
    assert profile.by_operator()["total"].sum() == 7
    assert profile.by_iteration()["kernel_time"].sum() == 22


def test_tables_agree_on_the_total(recorded):
    profile = read_profile(recorded["loop"])
    total = profile.steady["self_duration"].sum()
    assert profile.by_operator()["total"].sum() == profile.by_node()["total"].sum() == total
    runs = profile.by_iteration()
    assert runs["kernel_time"][runs["steady"]].sum() == total
    assert 0 < profile.unexplained < 1


def test_a_profile_says_what_it_is(small):
    assert str(small) == (
        "profile of 2 runs, 2 nodes: a profiled run takes 10 µs, 30% of it outside of any kernel"
    )


LONG = [
    kernel_event("first", 101, 400),
    kernel_event("second", 502, 300),
    run_event(100, 800),
    kernel_event("first", 1001, 400),
    kernel_event("second", 1502, 300),
    run_event(1000, 850),
]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (LONG[:3], "only one run"),
        (two_runs(), "Kernels below 10 µs take 100% of kernel time"),
        (
            [*LONG[:4], kernel_event("beside", 1050, 300, thread=8), *LONG[4:]],
            "Kernels ran at the same time",
        ),
        ([*LONG[:5], run_event(500, 1400, thread=8), LONG[5]], "Runs overlap"),
    ],
)
def test_each_cause_is_told(tmp_path, events, message):
    (found,) = read_profile(write(tmp_path / "p.json", events)).caveats
    assert message in str(found)
    assert read_profile(write(tmp_path / "p.json", LONG)).caveats == ()


def test_trust_is_what_is_unexplained_then_the_cost_then_the_caveats(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", LONG[:3]))
    known, *rest = profile.trust
    assert str(known) == "12.5% of a run is outside of any kernel"
    assert tuple(rest) == profile.caveats
    slow = compare_ratio("a profiled run", "an unprofiled run", 0.5, (0.4, 0.6))
    told = dataclasses.replace(profile, overhead=slow)
    assert told.trust == (known, slow, *profile.caveats)
    assert told.caveats == (*profile.caveats, slow)
    same = compare_ratio("a profiled run", "an unprofiled run", 1.0, (0.99, 1.01))
    assert dataclasses.replace(profile, overhead=same).caveats == profile.caveats


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
        ((16.9, 13.0), (17.3, 13.9), "agree"),
        ((10.0, 10.0), (11.0, 11.0), "agree"),
        # Both are decided and as close as what is worth a claim.
        ((10.4, 10.0), (10.6, 10.0), "agree"),
        ((10.0, 10.0), (13.0, 10.0), "undecided"),
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
        "undecided": "are not confirmed",
    }
    assert bool(check.obstacle) == (verdict == "opposed")
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
    check = before.compare(after)
    for measured, ran in zip(check.kernels, (before, after), strict=True):
        steady = ran.events[ran.events["iteration"] > 0]
        expected = steady.groupby("iteration")["self_duration"].sum()
        np.testing.assert_allclose(measured.seconds[0], 1e-6 * expected)
    assert check.latencies == (before.latencies["written"], before.latencies["rewritten"])
    claim = check.latency_speedup
    assert (claim.baseline, claim.subject) == ("written", "rewritten")
    assert check.verdict in {"agree", "opposed", "undecided"}


CUDA = "CUDAExecutionProvider"


def on_device(events):
    return [{**e, "args": {**e["args"], "provider": CUDA} if e["args"] else {}} for e in events]


@pytest.mark.parametrize("side", [0, 1])
def test_launches_are_not_compared_with_latencies(tmp_path, side):
    measured = Comparison(planted(10.0, 5.0))
    plain = read_profile(write(tmp_path / "plain.json", LONG))
    found = [dataclasses.replace(plain, name=name, latencies=measured) for name in measured]
    check = found[0].compare(found[1])
    assert (len(check.kernels), check.obstacle) == (2, "")
    launched = read_profile(write(tmp_path / "cuda.json", on_device(LONG)))
    found[side] = dataclasses.replace(found[side], events=launched.events)
    assert found[side].devices == (CUDA,)
    check = found[0].compare(found[1])
    assert (check.verdict, check.kernels, check.kernel_speedup) == ("launches", (), None)
    assert "launches" in check.obstacle
    assert "kernels in total" not in str(check)
    assert str(check).endswith("nothing can be concluded about nodes")
    assert check == ProfileCheck((), check.latencies)


def test_trust_counts_launches_and_no_time_of_the_device(tmp_path):
    found = read_profile(write(tmp_path / "p.json", on_device(two_runs())))
    known, launches = map(str, found.trust)
    assert known == "30.0% of a run is outside of any launch"
    assert launches.startswith(f"The times of {CUDA} only cover the launch")


def test_a_launch_has_no_throughput(tmp_path):
    model = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] X) => (float[2] Y) { [first] Z = Abs(X)  [second] Y = Abs(Z) }"""
    first = kernel_event("first", 101, 400, op="Abs", provider=CUDA)
    events = [first, kernel_event("second", 502, 300, op="Abs"), run_event(100, 800)]
    table = read_profile(write(tmp_path / "p.json", events), model=model).by_node()
    table = table.set_index("name")
    assert table["flop"].tolist() == [2, 2]
    assert table["gb_per_s"].isna().to_dict() == {"first": True, "second": False}


def test_profiles_that_were_not_taken_together_are_refused(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n] X) => (float[n] Y) { Y = Abs(X) }"""
    one, two = (
        profile(text, {"X": np.ones(2, np.float32)}, provider="cpu", repeat=1) for _ in range(2)
    )
    assert one.compare(one).verdict == "undecided"
    read = read_profile(write(tmp_path / "p.json", [*two_runs(), run_event(90, 3)]))
    for baseline, candidate in ((one, two), (one, read), (read, read)):
        with pytest.raises(InvalidArgumentError, match="were not taken together.*Accepted"):
            baseline.compare(candidate)
