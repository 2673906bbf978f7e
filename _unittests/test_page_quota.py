"""The page on quotas: what it says of planted times, and that a quota is set and taken away."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

from ortmeter.study.records import record


@pytest.fixture(scope="module")
def page():
    return define_page("plot_quota")


def plant(slowest, means=(10.0, 10.0, 5.0, 9.0), waits=50.0, processes=8):
    """Milliseconds of the host and of the quota, in a row and with pauses, by process."""
    rng, rows = np.random.default_rng(0), []
    keys = [(load, name) for load in ("in a row", "with pauses") for name in ("host", "ours")]
    for (load, name), slow, mean in zip(keys, slowest, means, strict=True):
        for process in range(processes):
            noise = np.exp(rng.normal(0, 0.01))
            row = {"load": load, "setting": name, "process": process}
            row["waits"] = noise * (waits if name == "host" else 1.0)
            rows.append(row | {"median": mean, "mean": noise * mean, "slowest": noise * slow})
    names = {"host": "host", "ours": "ours", "cores": 2, "quota": 1}
    return {"rows": pd.DataFrame(rows), "pinned": False, "legend": "", **names}


def conclude(page, data):
    made = record("plot_quota", page["args"], page["study"].provider, data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


def test_threads_that_are_stopped_are_too_many(page):
    found = conclude(page, plant((60.0, 12.0, 6.0, 9.0)))
    told = "If the slowest runs matter, set intra_op_num_threads to the container's CPU limit"
    told += " (here 1 of 2 cores): back-to-back, the slowest 5% average 5.0"
    assert str(found.answer).startswith(told)
    assert "times shorter than with 2 threads." in str(found.answer)
    assert "median" not in str(found.answer)
    assert "With pauses of 30 ms, 2 threads are 1.79 " in str(found.answer)
    assert "intra_op_num_threads = 1" in found.answer.setting
    assert "force_spinning_stop" in found.answer.setting  # as it was measured
    assert [claim.verdict for claim in found.claims] == ["right"] * 4
    assert list(found.beliefs.frame["verdict"]) == ["right", "right"]


@pytest.mark.parametrize(("mean", "told"), [(8.0, "shorter"), (11.0, "longer"), (9.5, "undecided")])
def test_the_median_and_the_mean_may_cost(page, mean, told):
    data = plant((60.0, 12.0, 6.0, 9.0))
    rows, ours = data["rows"], data["rows"]["setting"] == "ours"
    host_mean, noise = 9.5, 1 + 0.05 * (rows["process"] % 3 - 1)
    rows["mean"] = rows["mean"].where(rows["load"] != "in a row", host_mean)
    rows.loc[ours & (rows["load"] == "in a row"), "mean"] = mean * noise
    rows.loc[ours, "median"] = 15.0
    answer = str(conclude(page, data).answer)
    assert f"The median run is 1.50 [1.50, 1.50] times longer with 1 thread, the mean {told}." in (
        answer.replace("1.5 [1.5, 1.5]", "1.50 [1.50, 1.50]")
    )
    assert len(answer.split()) <= 60


def test_nothing_is_advised_of_what_is_not_stopped(page):
    found = conclude(page, plant((12.0, 12.0, 6.0, 6.0), (10.0, 7.0, 6.0, 6.0), waits=0.0))
    assert str(found.answer).startswith("Keep as many threads as the host has cores, 2 here: ")
    assert not found.answer.setting
    assert [claim.verdict for claim in found.claims[:3]] == ["wrong", "right", "wrong"]
    assert list(found.beliefs.frame["verdict"])[1] == "wrong"


def test_cores_that_are_taken_away_are_no_quota(page):
    found = conclude(page, plant((60.0, 12.0, 6.0, 9.0)) | {"pinned": True})
    assert found.answer.warning.startswith("Not shown: no quota could be set")
    assert found.claims[0].verdict == "undecided"


def test_a_child_is_limited_and_its_parent_is_not_any_more(page):
    asked = "import os; from ortmeter.machine.preflight import cpu_quota as q; "
    asked += "print(q(), len(os.sched_getaffinity(0)))"
    before = os.sched_getaffinity(0)

    def ask():
        command = [sys.executable, "-c", asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()

    free = ask()
    with page["limited"](1) as is_quota:
        limit, cores = ask()
        assert (limit == "1.0") if is_quota else (cores == "1")
    assert ask() == free
    assert os.sched_getaffinity(0) == before
