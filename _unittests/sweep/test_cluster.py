"""Sweeps over workers of dask reached by tcp on the loopback, which share the lock of a machine."""

import itertools
from unittest.mock import MagicMock

import pytest
from sweep_pages import cluster, files_of

from ortmeter.cli import main
from ortmeter.errors import OrtMeterError
from ortmeter.sweep import load_sweep, run_sweep


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Address of a scheduler with two workers, and its process; they serve all the tests."""
    once = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with cluster(tmp_path_factory.mktemp("locks"), "one", "two", **once) as started:
        yield started


def test_workers_of_one_machine_share_the_tasks_and_never_time_at_once(
    workers, make_page, tmp_path
):
    page = make_page("print(time.monotonic()); time.sleep(0.1); print(time.monotonic())")
    output = tmp_path / "out"
    options = ("--grid", "number=0,1,2,3", "--scheduler", workers[0], "--output", str(output))
    assert main(["sweep", str(page.path), *options]) == 0
    assert len(files_of(output)) == 4
    assert len({parent for _, _, parent in page.runs}) == 2
    spans = sorted(tuple(map(float, o.output.split())) for o in load_sweep(output).outcomes)
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert end <= begin


DIES = """
if args.number == 1: time.sleep(1)  # the results that this worker still has are fetched
if args.number == 1: os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)
"""
ONE_WAITS = "if len(open(log.name).readlines()) > 1: time.sleep(60)"  # that which comes second


def test_a_page_that_kills_its_worker_fails_alone(workers, make_page, tmp_path):
    page = make_page(DIES)
    grid = {"number": ["0", "1", "2"]}
    result = run_sweep(page.path, grid, scheduler=workers[0], output=tmp_path / "out")
    assert [outcome.state for outcome in result.outcomes] == ["done", "failed", "done"]
    assert result.failed[0].error.startswith("KilledWorker on the worker: ")
    assert page.numbers == ["0", "1", "2"]


def test_a_scheduler_that_dies_loses_nothing_that_was_done(workers, make_page, tmp_path):
    page, output = make_page(ONE_WAITS), tmp_path / "out"
    address, scheduler = workers  # the last test with these workers
    with pytest.raises(OrtMeterError, match="the scheduler was lost .* continue with --resume"):
        run_sweep(
            page.path,
            {"number": ["0", "1"]},
            scheduler=address,
            output=output,
            tell=lambda line: scheduler.kill(),
        )
    states = sorted(outcome.state for outcome in load_sweep(output).outcomes)
    assert states == ["done", "missing"]


def test_a_scheduler_without_worker_is_told(make_page, tmp_path, monkeypatch):
    client = MagicMock()
    client.scheduler_info.return_value = {"workers": {}}
    monkeypatch.setattr("distributed.Client", lambda *_, **__: client)
    output = tmp_path / "out"
    with pytest.raises(OrtMeterError, match="has no worker. Start some: dask worker tcp://x"):
        run_sweep(make_page().path, {"number": ["1"]}, scheduler="tcp://x:1", output=output)
    assert not output.exists()
