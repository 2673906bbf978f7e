"""Sweeps in one process."""

import dataclasses
import math
import subprocess
from pathlib import Path

import psutil
import pytest
from processes import is_alive, launched, wait_for_end, wait_for_start
from sweep_pages import NUMBERS, files_of

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime.placement import PlacementLog, PlacementWarning
from ortmeter.study.records import load_records
from ortmeter.sweep import (
    cluster,  # noqa: F401 - it keeps what a test replaces in worker
    load_sweep,
    read_tls,
    run_sweep,
)
from ortmeter.sweep.engine import check_address, check_host
from ortmeter.sweep.worker import describe_machine

SEGFAULT = "if args.number == 5: print('about to'); os.kill(os.getpid(), signal.SIGSEGV)"


def test_a_grid_gives_one_record_for_each_configuration_and_run(make_page, tmp_path):
    page, output = make_page(), tmp_path / "out"
    grid = {"number": ["1", "2"], "color": ["red", "blue"]}
    result = run_sweep(page.path, grid, repeat_runs=2, output=output)
    assert str(result) == "8 of 8 done, 0 failed, 0 missing"
    assert page.numbers == ["1"] * 4 + ["2"] * 4
    # Whole grids first, so that an interruption leaves whole grids.
    assert [outcome.task.run for outcome in result.outcomes] == [1] * 4 + [2] * 4
    assert len(files_of(output)) == 8
    for outcome in result.outcomes:
        chosen = {name: outcome.record.configuration[name] for name in grid}
        assert chosen == outcome.task.options
        assert outcome.record.run == outcome.task.run
        assert outcome.file.parent.name == outcome.record.machine == outcome.machine
    assert len(files_of(output)) == 8
    assert [found.run for found in load_records("plot_fast", output)] == [2] * 4
    again = load_sweep(output)
    assert [o.file for o in again.outcomes] == [o.file for o in result.outcomes]


def test_nodes_that_ran_on_the_cpu_in_a_task_are_warned_of_and_recorded(
    make_page, tmp_path, monkeypatch
):
    monkeypatch.setattr("ortmeter.child.told_warnings", set())
    log = PlacementLog()
    page = make_page("fields['on_cpu'] = ['Mod ran on CPU']")
    with pytest.warns(PlacementWarning, match="Mod ran on CPU") as found:
        run_sweep(page.path, {"number": ["1", "2"]}, output=tmp_path / "out")
    assert len(found) == 1
    assert log.messages == ["Mod ran on CPU"]  # a record made after the sweep has it


def test_what_a_page_leaves_in_the_temporary_folder_goes_with_its_task(make_page, tmp_path):
    left = tmp_path / "left"
    body = f"import tempfile; Path({str(left)!r}).write_text(tempfile.mkdtemp())"
    run_sweep(make_page(body).path, {"number": ["1"]}, output=tmp_path / "out")
    assert not Path(left.read_text()).exists()


def test_a_page_that_dies_fails_alone_with_its_output(make_page, tmp_path):
    page = make_page(SEGFAULT)
    result = run_sweep(page.path, {"number": ["4", "5", "6"]}, output=tmp_path / "out")
    assert (len(result.done), len(result.failed)) == (2, 1)
    (failed,) = result.failed
    assert failed.task.options == {"number": "5"}
    assert failed.error == "killed by SIGSEGV"
    assert "about to" in failed.output
    assert "Segmentation fault" in failed.output  # where: faulthandler
    assert len(files_of(tmp_path / "out")) == 2
    assert load_sweep(tmp_path / "out").failed == (failed,)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError('no such size')", "exit code 1: ValueError: no such size"),
        ("sys.exit(0)", "the page wrote 0 records, expected 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("fields.pop('date')", "the page wrote a file that is not a record: not a record"),
        ("fields['date'] = 'yesterday'", "the page wrote a file that is not a record"),
        ("fields['configuration']['provider'] = 'x' * 300", "a record whose names are too long"),
        ("os.kill(os.getpid(), 40)", "killed by signal 40"),
        ("fields['page'] = 'plot_other'", "wrote a record of 'plot_other', expected 'plot_fast'"),
        ("time.sleep(10)", "it exceeded its time limit of 1 s"),
    ],
)
def test_a_page_that_fails_says_why(make_page, tmp_path, body, error):
    page = make_page(body)
    timeout = 1 if "limit of 1 s" in error else 30
    result = run_sweep(page.path, {"number": ["1"]}, output=tmp_path / "out", timeout=timeout)
    (failed,) = result.failed
    assert error in failed.error
    assert files_of(tmp_path / "out") == []
    assert not any(is_alive(pid) for _, pid, _ in page.runs)


def test_resume_runs_what_is_missing_or_failed(make_page, tmp_path):
    page, output = make_page(SEGFAULT), tmp_path / "out"
    run_sweep(page.path, {"number": ["4", "5"]}, output=output)
    run_sweep(page.path, {"number": ["4", "5", "6"]}, output=output, resume=True)
    assert page.numbers == ["4", "5", "5", "6"]
    with pytest.raises(
        InvalidArgumentError, match="already has a sweep of plot_fast. Accepted: --resume"
    ):
        run_sweep(page.path, {"number": ["7"]}, output=output)


def test_resume_runs_again_what_another_page_or_code_measured(make_page, tmp_path, monkeypatch):
    output, grid = tmp_path / "out", {"number": ["1"]}
    page = make_page()
    run_sweep(page.path, grid, output=output)
    page = make_page("fields['data'] = fields['data']  # changed")
    run_sweep(page.path, grid, output=output, resume=True)
    assert page.numbers == ["1", "1"]
    for module in ("engine", "worker"):
        monkeypatch.setattr(f"ortmeter.sweep.{module}.code_version", lambda: "0+changed")
    run_sweep(page.path, grid, output=output, resume=True)
    assert page.numbers == ["1", "1", "1"]
    assert len(files_of(output)) == 3  # one for each version
    assert len(load_records("plot_fast", output)) == 1


def test_a_record_that_was_removed_is_missing(make_page, tmp_path):
    page, output = make_page(), tmp_path / "out"
    result = run_sweep(page.path, {"number": ["1", "2"]}, output=output)
    result.outcomes[0].file.unlink()
    assert [o.state for o in load_sweep(output).outcomes] == ["missing", "done"]
    run_sweep(page.path, {"number": ["1", "2"]}, output=output, resume=True)
    assert page.numbers == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"size": ["1"]}, "got unknown argument --size=1, expected --number, --color"),
        ({"number": ["1", "x"]}, "option --number: got 'x', expected an integer"),
        ({"number": ["-1"]}, "option --number: got '-1'"),
        ({"color": ["red", "green"]}, "option --color: got 'green', expected red or blue"),
        ({"number": ["1", "01"]}, "--number=1 and --number=01 are the same configuration"),
        ({"number": ["1", "1"]}, "--number=1 and --number=1 are the same configuration"),
        ({"number": []}, "number has no value"),
        ({}, "the grid has no value"),
        ({"record": ["1"]}, "record cannot be set: a sweep always records"),
        ({"output": ["x"]}, "output cannot be set: a sweep always records"),
        ({"number": "12"}, r"number: got '12', expected a list"),
        ({"provider": ["cuda:7"]}, "it needs cuda:7 and 1 cores. Workers: 0 "),
        ({"threads": ["4096"]}, "it needs cpu and 4096 cores. Workers: 0 "),
        ({"threads": ["9" * 400]}, "it needs cpu and inf cores. Workers: 0 "),
        ({"provider": ["tpu"]}, "provider='tpu' is not known"),
    ],
)
def test_what_is_not_accepted_is_refused_before_anything_starts(make_page, tmp_path, grid, message):
    page = make_page()
    with pytest.raises(OrtMeterError, match=message):
        run_sweep(page.path, grid, output=tmp_path / "out")
    assert page.runs == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"repeat_runs": 0}, "repeat_runs=0"),
        ({"repeat_runs": 10**11}, "repeat_runs=100000000000 of 1 configurations"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -1.0}, "timeout=-1.0"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": math.inf}, "timeout=inf"),
        ({"timeout": 1e12}, r"timeout=1000000000000.0. Accepted: positive seconds, at most 9"),
        ({"scheduler": "localhost"}, "expected tcp://host:port"),
        ({"scheduler": "tls://127.0.0.1:1"}, "expected tcp://host:port without TLS files"),
    ],
)
def test_limits_are_checked(make_page, tmp_path, limits, message):
    page = make_page()
    with pytest.raises(InvalidArgumentError, match=message):
        run_sweep(page.path, {"number": ["1"]}, output=tmp_path / "out", **limits)
    assert page.runs == []


def test_no_scheduler_answers(make_page, tmp_path, monkeypatch):
    monkeypatch.setattr("ortmeter.sweep.cluster._CONNECT_S", 1)
    with pytest.raises(OrtMeterError, match="no scheduler answers at tcp://127.0.0.1:9"):
        run_sweep(make_page().path, {"number": ["1"]}, scheduler="tcp://127.0.0.1:9")


def test_one_process_opens_no_port(make_page, tmp_path):
    listening = []

    def look(line):  # while the worker is there
        connections = psutil.Process().net_connections()
        listening.append([c for c in connections if c.status == psutil.CONN_LISTEN])

    run_sweep(make_page().path, {"number": ["1"]}, output=tmp_path / "out", tell=look)
    assert listening == [[]]


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
    result = run_sweep(page.path, {"number": NUMBERS[:6]}, output=output, resume=True)
    assert len(result.done) == 6
    assert done < set(files_of(output))
    assert len(files_of(output)) == 6
    assert {page.numbers.count(number) for number in kept} == {1}  # no run for what was there


def test_a_page_writes_nothing_beside_the_output(make_page, tmp_path):
    page = make_page()
    page.path.write_text(page.path.read_text().replace('"plot_fast"', '"../../plot_out"', 1))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgumentError, match=r"plot_fast.py calls itself '../../plot_out'"):
        run_sweep(page.path, {"number": ["1"]}, output=tmp_path / "a" / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_record_with_a_bad_date_stops_no_other_task(make_page, tmp_path):
    page = make_page("if args.number == 1: fields['date'] = '0000-13-45T99:00:00'")
    result = run_sweep(page.path, {"number": ["1", "2"]}, output=tmp_path / "out")
    assert [outcome.state for outcome in result.outcomes] == ["failed", "done"]


def test_lines_tell_what_happens(make_page, tmp_path):
    lines, page = [], make_page(SEGFAULT)
    grids = {"number": ["4"]}, {"number": ["4", "5"]}
    for grid in grids:
        run_sweep(page.path, grid, output=tmp_path / "out", resume=True, tell=lines.append)
    first, again, second = lines
    assert first.startswith("[1/1] done plot_fast number=4, run 1 on ")
    assert again == "1 of 2 done already"
    assert second.startswith("[2/2] failed plot_fast number=5, run 1 on ")
    assert second.endswith(": killed by SIGSEGV")


def other_machine():
    return dataclasses.replace(describe_machine(), code="0+other")


def test_a_worker_that_joined_with_other_code_fails_its_task_only(make_page, tmp_path, monkeypatch):
    monkeypatch.setattr("ortmeter.sweep.worker.describe_machine", other_machine)
    result = run_sweep(make_page().path, {"number": ["1"]}, output=tmp_path / "out")
    assert result.failed[0].error.startswith("the worker has ortmeter 0+other, expected ")
    assert files_of(tmp_path / "out") == []


@pytest.fixture
def files_of_tls(tmp_path):
    files = [tmp_path / name for name in ("ca", "cert", "key")]
    for file in files:
        file.write_text("")
    return files


def test_tls_needs_all_three_files(files_of_tls):
    with pytest.raises(InvalidArgumentError, match="--tls-ca, --tls-key is missing"):
        read_tls(None, files_of_tls[1], "")
    files_of_tls[2].unlink()
    with pytest.raises(InvalidArgumentError, match="key cannot be read"):
        read_tls(*files_of_tls)


def test_dask_refuses_what_is_not_encrypted(files_of_tls):
    security = read_tls(*files_of_tls)
    assert security.require_encryption
    for side in ("client", "scheduler", "worker"):
        config = security.get_tls_config_for_role(side)
        assert [config["ca_file"], config["cert"], config["key"]] == list(map(str, files_of_tls))


@pytest.mark.parametrize("address", ["tcp://a:1", "tcp://192.168.0.1:8786", "tcp://[::1]:8786"])
def test_addresses_without_tls(address):
    check_address(address, None)


@pytest.mark.parametrize(
    "address",
    [
        *("a:1", "tcp://a", "tcp://:1", "tls://a:1", "tcp://a:b", ""),
        *("tcp://a:99999", "tcp://a:0", "tcp://a:65536", "tcp://a:-1", "tcp://a:\uff18"),
        "tcp://a:" + "9" * 5000,
    ],
)
def test_other_addresses_are_refused(address):
    with pytest.raises(InvalidArgumentError, match="expected tcp://host:port without TLS files"):
        check_address(address, None)


def test_tls_is_in_the_address(files_of_tls):
    tls = read_tls(*files_of_tls)
    check_address("tls://a:1", tls)
    with pytest.raises(InvalidArgumentError, match="expected tls://host:port with --tls-ca"):
        check_address("tcp://a:1", tls)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "box1", "", "127.1", "tcp://::1"],  # noqa: S104 - refused
)
def test_an_interface_that_others_reach_needs_tls_or_to_be_called_insecure(host, files_of_tls):
    with pytest.raises(InvalidArgumentError, match=f"--host {host}: .*--tls-ca.*or --insecure"):
        check_host(host, None, insecure=False)
    check_host(host, None, insecure=True)
    check_host(host, read_tls(*files_of_tls), insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_alone_needs_nothing(host):
    check_host(host, None, insecure=False)
