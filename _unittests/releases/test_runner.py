"""What every runner shares: samples, outputs, and the cores that it keeps busy."""

import time

import numpy as np
import pytest

from ortmeter.releases.runner import Bound, Runner, read_feeds


def make_runner(run):
    runner = Runner()
    runner.bound, runner.names = Bound(run, lambda: [np.ones(2), "text"], None), ["Y", "Z"]
    return runner


@pytest.mark.parametrize("spinning", [0, 1])  # threads, in a pause
def test_the_cores_of_runs_and_of_a_pause_are_told(spinning):
    """CPU time over elapsed time: a busy machine can only lower it."""
    clock = {"wall": 0.0, "cpu": 0.0}

    def advance(wall, cpu):
        clock["wall"] += wall
        clock["cpu"] += cpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock["wall"])
        patch.setattr(time, "process_time", lambda: clock["cpu"])
        patch.setattr(time, "sleep", lambda seconds: advance(seconds, spinning * seconds))
        runner = make_runner(lambda: advance(1e-3, 2e-3))
        assert runner.cores(0.02) == pytest.approx([2, spinning])


def test_outputs_that_are_numbers_and_inputs_travel_by_files(tmp_path):
    file = str(tmp_path / "y.npz")
    assert make_runner(lambda: None).outputs(file) == {"Y": "arr_0"}
    question = {"arrays": file, "feeds": {"X": "arr_0"}}
    assert read_feeds(question)["X"].tolist() == [1, 1]
