"""What every runner shares: samples, outputs, and the cores that it keeps busy."""

import threading
import time

import numpy as np
import pytest

from ortmeter.releases.runner import Bound, Runner, read_feeds


def make_runner(run):
    runner = Runner()
    runner.bound, runner.names = Bound(run, lambda: [np.ones(2), "text"], None), ["Y", "Z"]
    return runner


def spend(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def test_the_cores_of_runs_and_of_a_pause_are_told():
    """CPU time over elapsed time: a busy machine can only lower it."""
    clock = {"wall": 0.0, "cpu": 0.0}

    def advance(wall, cpu):
        clock["wall"] += wall
        clock["cpu"] += cpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock["wall"])
        patch.setattr(time, "process_time", lambda: clock["cpu"])
        # One core in a pause: a thread spins.
        patch.setattr(time, "sleep", lambda seconds: advance(seconds, seconds))
        runner = make_runner(lambda: advance(1e-3, 2e-3))
        assert runner.cores(0.02) == pytest.approx([2, 1])


def test_a_thread_that_spins_in_a_pause_is_seen():
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [spend(1e-3) for _ in iter(stop.is_set, True)])
    runner = make_runner(lambda: spend(1e-3))
    assert runner.cores(0.05)[1] < 0.1
    thread.start()
    try:
        # While the other thread waits for a core, less is seen.
        assert max(runner.cores(0.05)[1] for _ in range(20)) > 0.1
    finally:
        stop.set()
        thread.join()


def test_outputs_that_are_numbers_and_inputs_travel_by_files(tmp_path):
    file = str(tmp_path / "y.npz")
    assert make_runner(lambda: None).outputs(file) == {"Y": "arr_0"}
    question = {"arrays": file, "feeds": {"X": "arr_0"}}
    assert read_feeds(question)["X"].tolist() == [1, 1]
