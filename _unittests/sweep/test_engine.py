"""Sweeps without a scheduler."""

import math
import subprocess
from pathlib import Path

import pytest
from processes import is_alive, launched, wait_for_end, wait_for_start
from sweep_pages import files_of

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime.placement import PlacementLog, PlacementWarning
from ortmeter.study.records import load_records
from ortmeter.sweep import load_sweep, run_sweep


def test_a_grid_gives_one_record_for_each_configuration_and_run(quick_page, tmp_path):
    output, grid = tmp_path / "out", {"number": ["1", "2"], "color": ["red", "blue"]}
    result = run_sweep(quick_page.path, grid, repeat_runs=2, output=output)
    assert len(result.done) == len(result.outcomes) == 8
    assert quick_page.numbers == ["1"] * 4 + ["2"] * 4
    # Whole grids first, so that an interruption leaves whole grids.
    assert [outcome.task.run for outcome in result.outcomes] == [1] * 4 + [2] * 4
    assert len(files_of(output)) == 8
    for outcome in result.outcomes:
        chosen = {name: outcome.record.configuration[name] for name in grid}
        assert chosen == outcome.task.options
        assert outcome.record.run == outcome.task.run
        assert outcome.file.parent.name == outcome.record.machine == outcome.machine
    assert [found.run for found in load_records("plot_fast", output)] == [2] * 4
    assert [o.file for o in load_sweep(output).outcomes] == [o.file for o in result.outcomes]


def test_nodes_that_ran_on_the_cpu_in_a_task_are_warned_of_and_recorded(
    quick_page, tmp_path, monkeypatch
):
    monkeypatch.setattr("ortmeter.child.told_warnings", set())
    log = PlacementLog()
    quick_page.changes = {"on_cpu": ["Mod ran on CPU"]}
    with pytest.warns(PlacementWarning, match="Mod ran on CPU") as found:
        run_sweep(quick_page.path, {"number": ["1", "2"]}, output=tmp_path / "out")
    assert len(found) == 1
    assert log.messages == ["Mod ran on CPU"]  # a record made after the sweep has it


def test_what_a_page_leaves_in_the_temporary_folder_goes_with_its_task(make_page, tmp_path):
    left = tmp_path / "left"
    body = f"import tempfile; Path({str(left)!r}).write_text(tempfile.mkdtemp())"
    run_sweep(make_page(body).path, {"number": ["1"]}, output=tmp_path / "out")
    assert not Path(left.read_text()).exists()


def test_a_page_that_dies_fails_alone_with_its_output(make_page, tmp_path):
    page = make_page("if args.number == 5: print('about to'); os.kill(os.getpid(), signal.SIGSEGV)")
    result = run_sweep(page.path, {"number": ["5", "6"]}, output=tmp_path / "out")
    (failed,) = result.failed
    assert failed.task.options == {"number": "5"}
    assert failed.error == "killed by SIGSEGV"
    assert "about to" in failed.output
    assert "Segmentation fault" in failed.output  # where: faulthandler
    assert len(result.done) == len(files_of(tmp_path / "out")) == 1
    assert load_sweep(tmp_path / "out").failed == (failed,)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError('no such size')", "exit code 1: ValueError: no such size"),
        ("sys.exit(0)", "the page wrote 0 records, expected 1"),
        ("time.sleep(10)", "it exceeded its time limit of 1 s"),
    ],
)
def test_a_page_that_fails_says_why(make_page, tmp_path, body, error):
    page = make_page(body)
    timeout = 1 if "limit of 1 s" in error else 30
    result = run_sweep(page.path, {"number": ["1"]}, output=tmp_path / "out", timeout=timeout)
    assert error in result.failed[0].error
    assert files_of(tmp_path / "out") == []
    assert not any(is_alive(pid) for _, pid, _ in page.runs)


def test_resume_runs_what_is_missing_or_failed_and_says_so(quick_page, tmp_path):
    page, output, lines = quick_page, tmp_path / "out", []
    for numbers in ("4", "45", "456"):
        told = {"resume": True, "tell": lines.append}
        result = run_sweep(page.path, {"number": list(numbers)}, output=output, **told)
    assert page.numbers == ["4", "5", "5", "6"]
    first, again, second, *_ = lines
    assert first.startswith("[1/1] done plot_fast number=4, run 1 on ")
    assert again == "1 of 2 done already"
    assert second.startswith("[2/2] failed plot_fast number=5, run 1 on ")
    assert second.endswith(": killed by SIGSEGV")
    result.outcomes[0].file.unlink()
    assert [o.state for o in load_sweep(output).outcomes] == ["missing", "failed", "done"]
    run_sweep(page.path, {"number": ["4"]}, output=output, resume=True)
    assert page.numbers == ["4", "4", "5", "5", "6"]
    with pytest.raises(
        InvalidArgumentError, match="already has a sweep of plot_fast. Accepted: --resume"
    ):
        run_sweep(page.path, {"number": ["7"]}, output=output)


def test_resume_runs_again_what_another_page_or_code_measured(quick_page, tmp_path, monkeypatch):
    page, output = quick_page, tmp_path / "out"
    run_sweep(page.path, {"number": ["1"]}, output=output)
    page.path.write_text(f"{page.path.read_text()}# changed")
    run_sweep(page.path, {"number": ["1"]}, output=output, resume=True)
    assert page.numbers == ["1", "1"]
    monkeypatch.setattr("ortmeter.sweep.engine.code_version", lambda: "0+changed")
    run_sweep(page.path, {"number": ["1"]}, output=output, resume=True)
    assert page.numbers == ["1", "1", "1"]
    assert len(files_of(output)) == 3  # one for each version
    assert len(load_records("plot_fast", output)) == 1


def test_what_the_page_rejects_fails_its_task_with_its_message(make_page, tmp_path):
    page = make_page()
    result = run_sweep(page.path, {"size": ["1"]}, output=tmp_path / "out")
    told = "plot_fast: error: unrecognized arguments: --size=1"
    assert told in result.failed[0].error
    assert page.runs == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"number": []}}, "number has no value"),
        ({"grid": {"record": ["1"]}}, "record cannot be set: a sweep always records"),
        ({"grid": {"number": "12"}}, r"number: got '12', expected a list"),
        ({"repeat_runs": 0}, "got 0 runs of 1 configurations"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": 1e12}, r"timeout=1000000000000.0. Accepted: positive seconds, at most 9"),
    ],
)
def test_what_is_not_accepted_is_refused_before_anything_starts(
    make_page, tmp_path, change, message
):
    page, asked = make_page(), {"grid": {"number": ["1"]}, "output": tmp_path / "out"}
    with pytest.raises(InvalidArgumentError, match=message):
        run_sweep(page.path, **asked | change)
    assert page.runs == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nothing://127.0.0.1:9"])
def test_no_scheduler_answers(make_page, tmp_path, monkeypatch, address):
    monkeypatch.setattr("ortmeter.sweep.engine._CONNECT_S", 0.2)
    output = tmp_path / "out"
    with pytest.raises(OrtMeterError, match=f"no scheduler answers at {address}"):
        run_sweep(make_page().path, {"number": ["1"]}, scheduler=address, output=output)
    assert not output.exists()


def test_the_page_runs_where_nothing_changes_its_defaults(make_page, tmp_path, monkeypatch):
    for name in ("FAST", "PROVIDER", "RECORD"):
        monkeypatch.setenv(f"ORTMETER_{name}", "1")
    page = make_page(
        "print(sorted(n for n in os.environ if n.startswith('ORTMETER_')), "
        "os.environ['MPLBACKEND'], os.listdir())"
    )
    result = run_sweep(page.path, {"number": ["1"]}, output=tmp_path / "out")
    assert result.outcomes[0].output == "['ORTMETER_MACHINE_LOCK', 'ORTMETER_RESULTS'] agg []\n"


CLIENT = """
import sys
from ortmeter.sweep import run_sweep
run_sweep(sys.argv[1], {"number": [str(i) for i in range(6)]}, output=sys.argv[2], resume=True)
"""


def test_a_sweep_goes_on_after_its_client_was_killed(make_page, tmp_path):
    page, output = make_page("time.sleep(0.2)"), tmp_path / "out"
    with launched("-c", CLIENT, page.path, output, stderr=subprocess.DEVNULL) as client:
        wait_for_start(client, lambda: len(files_of(output)) >= 2)
        client.kill()
        client.wait()
        wait_for_end(page.runs[-1][1])
    done = set(files_of(output))
    assert 2 <= len(done) < 6
    kept = [outcome.task.options["number"] for outcome in load_sweep(output).done]
    result = run_sweep(page.path, {"number": list("012345")}, output=output, resume=True)
    assert len(result.done) == 6
    assert done < set(files_of(output))
    assert len(files_of(output)) == 6
    assert {page.numbers.count(number) for number in kept} == {1}  # no run for what was there
