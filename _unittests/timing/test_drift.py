import itertools
import os
import sys
import time

import numpy as np
import pytest
from fakes import FakeClock
from processes import run_python

from ortmeter.runtime.cpu import usable_cores
from ortmeter.timing import Candidate, Measurement, loop, measure
from ortmeter.timing.drift import STEADY, drift


def seconds(*medians, rounds=12):
    return Measurement("reference", [[median] * rounds for median in medians])


@pytest.fixture
def clock(monkeypatch):
    """A clock that the product advances by 3 ms, unless a test says otherwise."""
    clock = FakeClock()
    clock.product = clock.candidate("product", 3e-3)
    monkeypatch.setattr(loop, "make_reference", lambda: Candidate(clock.product))
    return clock


def test_the_control_is_timed_in_the_same_rounds_and_is_no_candidate(clock):
    call = clock.candidate("a", 1e-3)
    found = clock.time(
        measure, {"a": call}, repeat=7, warmup=1, precision=None, reference_workload=True
    )
    assert list(found) == ["a"]
    assert found.reference_workload.seconds == pytest.approx(np.full((1, 7), 3e-3))
    assert found["a"].seconds == pytest.approx(np.full((1, 7), 1e-3))
    turns = [name for name, _ in itertools.groupby(clock.calls[-2 * 3 * 3 :])]
    assert {*turns} == {"a", "product"}
    assert clock.time(measure, {"a": call}, repeat=1, precision=None).reference_workload is None


@pytest.mark.parametrize(("candidate", "number"), [(1e-4, 1), (2.5e-3, 2), (1.0, 3)])
def test_a_sample_of_the_control_is_interrupted_as_those_of_the_candidates_are(
    clock, candidate, number
):
    """As long as the longest candidate, 4 ms at most: shorter ones see no other process."""
    clock.product = clock.candidate("product", 1.5e-3)
    pair = {"a": clock.candidate("a", candidate), "b": clock.candidate("b", 1e-4)}
    found = clock.time(
        measure, pair, repeat=3, precision=None, budget_s=1e3, reference_workload=True
    )
    assert found.reference_workload.number == number


def test_the_control_does_not_decide_when_to_stop(clock):
    """The control is wild, the two candidates are not: the rounds end at once."""
    wild = np.exp(np.random.default_rng(0).standard_normal(10_000)) * 1e-3
    clock.product = clock.candidate("product", wild)
    pair = {name: clock.candidate(name, 1e-3) for name in "ab"}
    found = clock.time(measure, pair, precision=0.02, budget_s=1e3, reference_workload=True)
    assert (found.stopped, found["a"].repeat) == ("precision", 100)
    assert found.reference_workload.relative_iqr > 0.5


def test_a_control_beside_a_candidate_of_the_same_name(clock):
    mine = {"control": clock.candidate("control", 2e-3)}
    found = clock.time(measure, mine, repeat=3, precision=None, reference_workload=True)
    assert found["control"].median == pytest.approx(2e-3)
    assert found.reference_workload.median == pytest.approx(3e-3)


# In a process that has no other threads than those of the products.
WAKES = """
import numpy as np
from ortmeter.timing.drift import make_reference
from processes import work_of_other_threads
large = np.ones((1024, 1024), np.float32)
for product in (make_reference().function, lambda: large @ large):
    product()
    before = work_of_other_threads()
    for _ in range(20):
        product()
    print(work_of_other_threads() == before or not before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_product_wakes_no_other_thread():
    """A product on several threads would be disturbed by the threads of a session."""
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python("-c", WAKES, variables=variables, check=True)
    assert done.stdout.split() == ["True", str(usable_cores() == 1)]


@pytest.mark.parametrize(
    ("reference_workload", "share"),
    [
        (seconds(1.0, 1.0, 1.1), 0.1),  # by process
        (seconds(1.0, 1.3, rounds=12), 0.3),
        (Measurement("reference", [[1.0] * 60 + [2.0] * 40]), 1.0),  # by part of one process
        (Measurement("reference", [[1.0] * 30 + [1.2] * 30] * 2), 0.2),  # of several
    ],
)
def test_drift(reference_workload, share):
    assert drift(reference_workload).share == pytest.approx(share)


def test_drift_needs_two_parts():
    assert drift(None) is None
    assert drift(seconds(1.0)) is None
    assert drift(seconds(1.0, rounds=20)).share == 0


def test_a_long_sample_is_no_drift():
    spiky = np.ones((1, 100))
    spiky[0, ::15] = 9.0
    assert drift(Measurement("reference", spiky)).share == 0


@pytest.mark.parametrize("shape", [(1, 100), (10, 12)])
@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_noise_is_no_drift(shape, noise):
    rng = np.random.default_rng(0)
    drawn = (np.exp(noise * rng.standard_normal(shape)) for _ in range(200))
    found = [drift(Measurement("reference", seconds)) for seconds in drawn]
    assert sum(one.share > STEADY for one in found) > 100  # medians that differ
    assert sum(not one.is_steady for one in found) <= 4
    wild = np.linspace(1, 1.5, 100).reshape(1, 100) * np.exp(noise * rng.standard_normal((1, 100)))
    assert not drift(Measurement("reference", wild)).is_steady


def test_a_machine_that_moved_too_much_is_said():
    calm, wild = (drift(seconds(1e-3, 1e-3 * (1 + s))) for s in (0.9 * STEADY, 2 * STEADY))
    assert calm.is_steady
    assert not wild.is_steady
    assert "trust" not in str(calm)
    assert "drifted by 10% during the measurement" in str(wild)
    assert "not their latencies" in str(wild)
    assert not drift(seconds(0.0, 1.0)).is_steady


def test_a_budget_that_is_spent_before_the_warm_up_leaves_one_sample():
    found = loop.measure_here(
        {"a": Candidate(time.perf_counter)}, budget_s=0, reference_workload=True
    )
    assert found["a"].seconds.size == found.reference_workload.seconds.size == 1
