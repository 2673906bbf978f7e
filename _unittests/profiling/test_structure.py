import numpy as np
import pytest
from profile_writer import kernel_event, run_event, session_event, two_runs

from ortmeter.profiling.columns import collect
from ortmeter.profiling.structure import NO_RUN, iterations, parents


def structure(events):
    kernels, others = collect([events])
    runs = others.select(np.flatnonzero(others.is_named("model_run")))
    runs = runs.select(np.argsort(runs.start, kind="stable"))
    found = iterations(kernels, runs)
    return found.tolist(), parents(kernels, found).tolist(), iterations(others, runs).tolist()


def test_runs_hold_their_kernels_and_the_start_up_is_apart():
    assert structure(two_runs()) == ([0, 0, 1, 1], [-1] * 4, [-1, -1, 0, 0, 1, 1])


def test_the_order_of_the_file_may_not_be_that_of_time():
    # Events of a device come at the end of the file.
    events = two_runs()
    late = [*events[:3], *events[4:7], *events[8:], events[3], events[7]]
    assert structure(late)[0] == [0, 1, 0, 1]


def test_a_kernel_without_a_run_has_no_iteration():
    events = [*two_runs(), kernel_event("first", 90, 2)]
    assert structure(events)[0][-1] == NO_RUN
    assert structure([kernel_event("first", 90, 2)])[0] == [NO_RUN]


@pytest.mark.parametrize(("recorded_before", "iteration"), [(True, 0), (False, 1)])
def test_a_tie_between_runs_is_decided_by_the_file(recorded_before, iteration):
    tied, first, second = kernel_event("x", 20, 0), run_event(10, 10), run_event(20, 10)
    events = [tied, first, second] if recorded_before else [first, tied, second]
    assert structure(events)[0] == [iteration]


def test_a_rounded_run_holds_its_last_kernel():
    # 10.9 + 9.9 = 20.8 is written 10 + 9: the kernel starts in the microsecond 20.
    assert structure([kernel_event("x", 20, 0), run_event(10, 9)])[0] == [0]


def test_overlapping_runs_are_told_by_their_thread():
    events = [
        kernel_event("a", 11, 5, thread=1),
        kernel_event("a", 13, 5, thread=2),
        kernel_event("b", 17, 2, thread=1),
        run_event(10, 10, thread=1),
        kernel_event("b", 21, 2, thread=2),
        run_event(12, 12, thread=2),
        kernel_event("pool", 14, 1, thread=3),
    ]
    assert structure(events)[0] == [0, 1, 0, 1, 1]


def test_bodies_are_nested_at_any_depth():
    execute = "SequentialExecutor::Execute"
    events = [
        kernel_event("before", 2, 3),
        kernel_event("leaf", 12, 1),
        session_event(execute, 12, 2),
        kernel_event("inner", 11, 4, op="If"),
        kernel_event("other", 16, 1),
        session_event(execute, 11, 7),
        kernel_event("leaf", 22, 1),
        session_event(execute, 22, 2),
        kernel_event("inner", 21, 4, op="If"),
        session_event(execute, 21, 7),
        kernel_event("outer", 10, 20, op="Loop"),
        kernel_event("after", 31, 3),
        run_event(1, 40),
    ]
    _, found, _ = structure(events)
    #     before leaf inner other leaf inner outer after
    assert found == [-1, 2, 6, 6, 5, 6, -1, -1]


def test_a_body_does_not_take_kernels_of_other_threads_or_runs():
    events = [
        kernel_event("elsewhere", 12, 3, thread=2),
        kernel_event("branch", 11, 9, op="If", thread=1),
        run_event(10, 20, thread=7),
        kernel_event("inside", 52, 3, thread=1),
        kernel_event("branch", 51, 9, op="If", thread=1),
        run_event(50, 20, thread=7),
    ]
    assert structure(events)[1] == [-1, -1, 3, -1]
