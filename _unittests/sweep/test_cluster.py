"""Sweeps over workers reached by tcp on the loopback, which stand for two machines."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from distributed import Client
from sweep_pages import NUMBERS, Server, cluster, files_of, is_alive

import ortmeter
from ortmeter.cli import main
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.sweep import load_sweep, read_tls, run_sweep


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Address of a scheduler with two workers."""
    with cluster(tmp_path_factory.mktemp("locks"), "one", "two", retries=1) as (address, servers):
        yield address, servers


# Runs last long enough for both workers to have some.
KILLS_ITS_WORKER = """
time.sleep(0.3)
once = Path({once!r})
if args.number == 5 and not once.exists():
    once.touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""


def test_a_worker_that_is_killed_loses_nothing(machines, make_page, tmp_path):
    page = make_page(KILLS_ITS_WORKER.format(once=str(tmp_path / "once")))
    output = tmp_path / "out"
    result = run_sweep(page.path, {"number": NUMBERS}, scheduler=machines[0], output=output)
    assert str(result) == "12 of 12 done, 0 failed, 0 missing"
    assert len(files_of(output)) == 12
    assert len({outcome.file for outcome in result.outcomes}) == 12
    ran = Counter(page.numbers)
    assert ran.pop("5") == 2
    assert ran == dict.fromkeys(set(NUMBERS) - {"5"}, 1)
    (killed, first), (_, second) = [run[1:] for run in page.runs if run[0] == 5]
    assert first != second  # another worker, or the one that replaced it
    assert not is_alive(killed)


TELL_THREADS = "print(sorted(n for n in os.environ if n.endswith('_NUM_THREADS')))"


def test_workers_choose_no_threads_for_the_page(machines, make_page, tmp_path):
    page = make_page(TELL_THREADS)
    grid = {"number": ["1", "2"]}
    result = run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
    set_here = sorted(name for name in os.environ if name.endswith("_NUM_THREADS"))
    assert [outcome.output for outcome in result.outcomes] == [f"{set_here}\n"] * 2


def test_two_machines_from_the_command_line(machines, make_page, tmp_path):
    page, output = make_page("time.sleep(0.3)"), tmp_path / "out"
    options = ("--grid", "number=0,1,2,3", "--scheduler", machines[0], "--output", str(output))
    assert main(["sweep", str(page.path), *options]) == 0
    assert len(files_of(output)) == 4
    assert len({parent for _, _, parent in page.runs}) == 2


def test_servers_listen_on_this_machine_only(machines):
    _, servers = machines
    for server in servers:
        process = psutil.Process(server.process.pid)
        family = [process, *process.children(recursive=True)]
        found = [c for one in family for c in one.net_connections() if c.status == "LISTEN"]
        assert found
        assert {connection.laddr.ip for connection in found} == {"127.0.0.1"}


def test_a_device_that_no_worker_has_is_refused_by_name(machines, make_page, tmp_path):
    page = make_page()
    grid = {"provider": ["cpu", "cuda:9"]}
    with pytest.raises(InvalidArgumentError, match=r"takes cuda:9 .* Workers: one .*; two .*cpu"):
        run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
    assert page.runs == []


DIES_OR_WAITS = """
if args.number == 1: os.kill(os.getppid(), signal.SIGKILL)
if args.number in (1, 9): time.sleep(60)
"""


@pytest.mark.slow
def test_a_page_that_kills_every_worker_fails_alone(machines, make_page, tmp_path):
    page = make_page(DIES_OR_WAITS)
    grid = {"number": ["0", "1", "2"]}
    result = run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
    assert [outcome.state for outcome in result.outcomes] == ["done", "failed", "done"]
    assert result.failed[0].error == "its worker died while it ran, 2 times"
    assert page.numbers == ["0", "1", "1", "2"]


def test_a_worker_with_other_code_is_refused_by_name(machines, make_page, tmp_path):
    sources = tmp_path / "other" / "ortmeter"
    package = Path(ortmeter.__file__).parent
    shutil.copytree(package, sources, ignore=shutil.ignore_patterns("__pycache__"))
    with (sources / "models.py").open("a") as file:
        file.write("# changed\n")
    page, output = make_page(), tmp_path / "out"
    server = Server("worker", machines[0], "--name", "old", PYTHONPATH=str(sources.parent))
    try:
        with pytest.raises(OrtMeterError, match=r"old \(tcp://\S+\) has 0.1.0\+\w+"):
            run_sweep(page.path, {"number": ["1"]}, scheduler=machines[0], output=output)
    finally:
        server.close()
    assert page.runs == []
    assert not output.exists()


# How dask itself, dask-jobqueue and Kubernetes start a worker.
DASK = ("--worker-class", "ortmeter.sweep.cluster.SweepWorker", "--nthreads", "1")
NO_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"))


@pytest.mark.slow
def test_a_worker_of_dask_takes_its_part(machines, make_page, tmp_path):
    page = make_page(f"{TELL_THREADS}; time.sleep(0.5)")
    command = [sys.executable, "-m", "dask", "worker", machines[0], "--name", "dask", *DASK]
    variables = {
        "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": str(NO_THREADS),
        "ORTMETER_MACHINE_LOCK": str(tmp_path / "dask.lock"),
    }
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--memory-limit", "0", "--no-dashboard"],
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
        cwd=tmp_path,
    )
    try:
        with Client(machines[0]) as client:
            client.wait_for_workers(3)
            addresses = {w["name"]: a for a, w in client.scheduler_info()["workers"].items()}
        grid = {"number": list("0123456789")}
        result = run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
        parents = {parent for _, _, parent in page.runs}
        (worker,) = [p for p in psutil.Process(process.pid).children() if p.pid in parents]
        listening = [c for c in worker.net_connections() if c.status == psutil.CONN_LISTEN]
        assert {f"tcp://{c.laddr.ip}:{c.laddr.port}" for c in listening} == {addresses["dask"]}
        set_here = sorted(name for name in os.environ if name.endswith("_NUM_THREADS"))
        assert {outcome.output for outcome in result.outcomes} == {f"{set_here}\n"}
    finally:
        process.terminate()
        process.wait()


def test_a_scheduler_that_dies_loses_nothing_that_was_done(machines, make_page, tmp_path):
    page, output = make_page(DIES_OR_WAITS), tmp_path / "out"
    address, (scheduler, *_) = machines  # the last test with these machines
    with pytest.raises(OrtMeterError, match="the scheduler was lost .* --resume goes on"):
        run_sweep(
            page.path,
            {"number": ["0", "9"]},
            scheduler=address,
            output=output,
            tell=lambda line: scheduler.process.kill(),
        )
    assert [outcome.state for outcome in load_sweep(output).outcomes] == ["done", "missing"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_lets_in_those_who_have_the_files(make_page, tmp_path, monkeypatch):
    monkeypatch.setattr("ortmeter.sweep.cluster._CONNECT_S", 2)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1")
    names = ("-subj", "/CN=sweep", "-keyout", str(key), "-out", str(cert))
    subprocess.run([*request, *names], check=True, capture_output=True)
    files = ("--tls-ca", cert, "--tls-cert", cert, "--tls-key", key)
    page, output = make_page(), tmp_path / "out"
    with cluster(tmp_path, options=files) as (address, servers):
        assert address.startswith("tls://")
        grid = {"number": ["1"]}
        tls = read_tls(cert, cert, key)
        with pytest.raises(OrtMeterError, match="the scheduler has no worker. Start some"):
            run_sweep(page.path, grid, scheduler=address, output=output, tls=tls)
        assert not output.exists()
        servers.append(Server("worker", address, *files))
        result = run_sweep(page.path, grid, scheduler=address, output=output, tls=tls)
        assert len(result.done) == 1
        plain = address.replace("tls", "tcp")
        with pytest.raises(OrtMeterError, match="no scheduler answers"):
            run_sweep(page.path, grid, scheduler=plain, output=tmp_path / "plain")
    assert load_sweep(output).done
