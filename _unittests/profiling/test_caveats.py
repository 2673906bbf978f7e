import dataclasses

import pytest
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.profiling import read_profile
from ortmeter.profiling.caveats import find_caveats
from ortmeter.timing.claims import compare_ratio

LONG = [
    kernel_event("first", 101, 400),
    kernel_event("second", 502, 300),
    run_event(100, 800),
    kernel_event("first", 1001, 400),
    kernel_event("second", 1502, 300),
    run_event(1000, 850),
]


def caveats(folder, events):
    return read_profile(write(folder / "p.json", events)).caveats


def test_a_plain_profile_has_none(tmp_path):
    assert caveats(tmp_path, LONG) == ()


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [
                LONG[0],
                LONG[2],
                {**LONG[3], "args": {**LONG[3]["args"], "provider": "CUDA"}},
                LONG[5],
            ],
            "times of CUDA are those of the launch of a kernel",
        ),
        (LONG[:3], "only one run"),
        (two_runs(), "Kernels below 10 µs take 100% of the time"),
        (
            [*LONG[:4], kernel_event("beside", 1050, 300, thread=8), *LONG[4:]],
            "Kernels ran at the same time",
        ),
        ([*LONG[:5], run_event(500, 1400, thread=8), LONG[5]], "Runs overlap"),
    ],
)
def test_each_cause_is_told(tmp_path, events, message):
    (found,) = caveats(tmp_path, events)
    assert message in str(found)


def test_what_was_measured_is_in_the_values(tmp_path):
    (found,) = caveats(tmp_path, two_runs())
    assert found.values == {"share": 1.0}


def test_an_overhead_is_told_when_it_can_be_claimed(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", LONG))
    runs = profile.by_iteration()
    slow = compare_ratio("a profiled run", "an unprofiled run", 0.5, (0.4, 0.6))
    assert list(find_caveats(profile.steady, runs, slow, truncated=False)) == [slow]
    same = compare_ratio("a profiled run", "an unprofiled run", 1.0, (0.99, 1.01))
    assert not list(find_caveats(profile.steady, runs, same, truncated=False))


def test_trust_is_what_is_unexplained_then_the_cost_then_the_caveats(tmp_path):
    profile = read_profile(write(tmp_path / "p.json", LONG[:3]))
    known, *rest = profile.trust
    assert str(known) == "12.5% of a run is outside of any kernel"
    assert known.values == {"share": 0.125}
    assert tuple(rest) == profile.caveats
    slow = compare_ratio("a profiled run", "an unprofiled run", 0.5, (0.4, 0.6))
    told = dataclasses.replace(profile, overhead=slow).trust
    assert told == (known, slow, *profile.caveats)
