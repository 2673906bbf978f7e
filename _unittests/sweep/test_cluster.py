"""Sweeps over workers reached by tcp on the loopback, which stand for two machines."""

import datetime as dt
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
import trustme
from distributed import Client
from processes import PATIENCE_S, is_alive, launched
from sweep_pages import NUMBERS, Server, cluster, files_of

import ortmeter
from ortmeter.cli import main
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.sweep import load_sweep, read_tls, run_sweep


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Address of a scheduler with two workers."""
    once = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    with cluster(tmp_path_factory.mktemp("locks"), "one", "two", **once) as (address, servers):
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
    with pytest.raises(InvalidArgumentError, match=r"needs cuda:9 .* Workers: one .*; two .*cpu"):
        run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
    assert page.runs == []


DIES_OR_WAITS = """
if args.number == 1: time.sleep(1)  # the results that this worker still has are fetched
if args.number == 1: os.kill(os.getppid(), signal.SIGKILL)
if args.number in (1, 9): time.sleep(60)
"""


@pytest.mark.slow
def test_a_page_that_kills_every_worker_fails_alone(machines, make_page, tmp_path):
    page = make_page(DIES_OR_WAITS)
    grid = {"number": ["0", "1", "2"]}
    result = run_sweep(page.path, grid, scheduler=machines[0], output=tmp_path / "out")
    assert [outcome.state for outcome in result.outcomes] == ["done", "failed", "done"]
    assert result.failed[0].error == "its worker died during the run, 2 times"
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
        version = re.escape(ortmeter.__version__)
        with pytest.raises(OrtMeterError, match=rf"old \(tcp://\S+\) has {version}\+\w+"):
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
    command = ("-m", "dask", "worker", machines[0], "--name", "dask", *DASK)
    variables = {
        "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": str(NO_THREADS),
        "ORTMETER_MACHINE_LOCK": str(tmp_path / "dask.lock"),
    }
    options = ("--host", "127.0.0.1", "--memory-limit", "0", "--no-dashboard")
    environment = {"env": {**os.environ, **variables}, "cwd": tmp_path}
    with launched(*command, *options, stderr=subprocess.DEVNULL, **environment) as process:
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
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_scheduler_that_dies_loses_nothing_that_was_done(machines, make_page, tmp_path):
    page, output = make_page(DIES_OR_WAITS), tmp_path / "out"
    address, (scheduler, *_) = machines  # the last test with these machines
    with pytest.raises(OrtMeterError, match="the scheduler was lost .* continue with --resume"):
        run_sweep(
            page.path,
            {"number": ["0", "9"]},
            scheduler=address,
            output=output,
            tell=lambda line: scheduler.process.kill(),
        )
    assert [outcome.state for outcome in load_sweep(output).outcomes] == ["done", "missing"]


def test_a_scheduler_without_worker_is_told(make_page, tmp_path):
    page, output = make_page(), tmp_path / "out"
    with (
        cluster(tmp_path) as (address, _),
        pytest.raises(OrtMeterError, match="the scheduler has no worker. Start some"),
    ):
        run_sweep(page.path, {"number": ["1"]}, scheduler=address, output=output)
    assert not output.exists()


class Authority(trustme.CA):
    """An authority, and the files of those whom it certifies: authority, certificate, key."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        folder.mkdir()
        self.cert_pem.write_to_path(folder / "ca.pem")

    def files(self, key=None, **dates):
        made = self.issue_cert("localhost", **dates)
        made.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        (key or made.private_key_pem).write_to_path(self.folder / "key.pem")
        return [self.folder / name for name in ("ca.pem", "cert.pem", "key.pem")]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Authority, files and address of a scheduler, and address of its worker."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ours")
    files = authority.files()
    options = [part for pair in zip(TLS_OPTIONS, files, strict=True) for part in pair]
    with cluster(folder, "one", options=options) as (address, (_, worker)):
        yield authority, files, address, worker.address


TLS_OPTIONS = ("--tls-ca", "--tls-cert", "--tls-key")
DAY = dt.timedelta(days=1)


def wrong_files(case, ours, folder):
    """Files of someone who must not be let in."""
    now = dt.datetime.now(dt.UTC)
    copy = Authority(folder / "copy")
    copy._certificate, copy._private_key = ours._certificate, ours._private_key
    ours.cert_pem.write_to_path(folder / "copy" / "ca.pem")
    other = Authority(folder / "other")
    if case == "signed by another authority":
        return [copy.folder / "ca.pem", *other.files()[1:]]
    if case == "signed by itself":
        other.private_key_pem.write_to_path(folder / "own-key.pem")
        return [copy.folder / "ca.pem", other.folder / "ca.pem", folder / "own-key.pem"]
    if case == "another authority is trusted":
        return [other.folder / "ca.pem", *copy.files()[1:]]
    if case == "the authority is no certificate":
        (copy.folder / "ca.pem").write_text("nothing")
        return [copy.folder / "ca.pem", *copy.files()[1:]]
    if case == "the certificate is no certificate":
        ca, cert, key = copy.files()
        cert.write_text("nothing")
        return [ca, cert, key]
    return copy.files(
        **{
            "expired": {"not_before": now - 9 * DAY, "not_after": now - DAY},
            "not yet valid": {"not_before": now + DAY, "not_after": now + 9 * DAY},
            "key of another": {"key": other.private_key_pem},
        }[case]
    )


# What openssl says of it, whoever finds out: this side at once, or the other one.
WRONG = {
    "signed by another authority": "unknown ca",
    "signed by itself": "unknown ca",
    "expired": "certificate expired",
    "not yet valid": "bad certificate",
    "key of another": "KEY_VALUES_MISMATCH",
    "another authority is trusted": "CERTIFICATE_VERIFY_FAILED",
    "the authority is no certificate": "NO_CERTIFICATE_OR_CRL_FOUND",
    "the certificate is no certificate": "PEM",
}


def shake_hands(address, context):
    """Open a connection as openssl does it, wait for the first word of the server."""
    host, port = address.removeprefix("tls://").rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.recv(1)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_certificate_runs_nothing(guarded, make_page, tmp_path, monkeypatch, case):
    monkeypatch.setattr("ortmeter.sweep.cluster._CONNECT_S", 1)
    ours, _, scheduler, worker = guarded
    files, page = wrong_files(case, ours, tmp_path), make_page()
    tls, options = read_tls(*files), {"scheduler": scheduler, "output": tmp_path / "out"}
    with pytest.raises(OrtMeterError, match=f"no scheduler answers at {scheduler}: "):
        run_sweep(page.path, {"number": ["1"]}, tls=tls, **options)
    for address in (scheduler, worker):
        with pytest.raises(ssl.SSLError, match=WRONG[case]):
            shake_hands(address, tls.get_connection_args("client")["ssl_context"])
    assert page.runs == []
    assert not (tmp_path / "out").exists()


def test_without_certificate_nothing_runs(guarded, make_page, tmp_path, monkeypatch):
    monkeypatch.setattr("ortmeter.sweep.cluster._CONNECT_S", 1)
    _, files, *addresses = guarded
    page, context = make_page(), ssl.create_default_context(cafile=files[0])
    context.check_hostname = False
    for address in addresses:
        with pytest.raises(ssl.SSLError, match="certificate required"):
            shake_hands(address, context)
    plain = addresses[0].replace("tls", "tcp")
    with pytest.raises(OrtMeterError, match="no scheduler answers at tcp://"):
        run_sweep(page.path, {"number": ["1"]}, scheduler=plain, output=tmp_path / "out")
    assert page.runs == []
    assert not (tmp_path / "out").exists()


def test_a_worker_with_a_wrong_certificate_does_not_start(guarded, tmp_path):
    ours, _, scheduler, _ = guarded
    files = wrong_files("signed by another authority", ours, tmp_path)
    options = [str(part) for pair in zip(TLS_OPTIONS, files, strict=True) for part in pair]
    done = subprocess.run(
        [sys.executable, "-m", "ortmeter", "worker", scheduler, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("ortmeter worker: it cannot start: ")


def test_a_right_certificate_runs_the_page(guarded, make_page, tmp_path):
    _, files, scheduler, _ = guarded
    page, output = make_page(), tmp_path / "out"
    tls, grid = read_tls(*files), {"number": ["1"]}
    result = run_sweep(page.path, grid, scheduler=scheduler, output=output, tls=tls)
    assert len(result.done) == len(page.runs) == 1
