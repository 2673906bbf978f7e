"""Devices, cores, versions and the lock of a machine."""

import dataclasses
import os
import subprocess
import sys
import threading
import tracemalloc

import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime.environment import Gpu, environment
from ortmeter.sweep import machine
from ortmeter.sweep.machine import (
    code_version,
    describe_machine,
    machine_lock,
    pinned,
    read_cores,
)

NEVER = threading.Event()
GPUS = (Gpu("NVIDIA H200", 1, "1"), Gpu("NVIDIA H200", 1, "1"))


@pytest.mark.parametrize(
    ("status", "gpus", "visible", "devices"),
    [
        ("not usable (no driver)", (), None, ()),
        ("not usable (no library)", GPUS, None, ()),
        ("usable", GPUS, None, ("cuda:0", "cuda:1")),
        ("usable", GPUS, "1", ("cuda:0",)),
        ("usable", (), None, ("cuda:0",)),  # nvidia-smi is missing
    ],
)
def test_each_gpu_is_a_device(monkeypatch, status, gpus, visible, devices):
    found = dataclasses.replace(environment(), providers={"cuda": status}, gpus=gpus)
    monkeypatch.setattr(machine, "_environment", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    described = describe_machine()
    assert described.devices == ("cpu", *devices)
    assert described.resources == {
        **dict.fromkeys(described.devices, 1),
        "cores": len(os.sched_getaffinity(0)),
    }


def test_the_version_of_the_code_follows_the_sources(tmp_path, monkeypatch):
    package = tmp_path / "ortmeter"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    (package / "b.py").write_text("")
    monkeypatch.setattr(ortmeter, "__file__", str(package / "__init__.py"))
    first = code_version()
    assert code_version() == first
    (package / "a.py").write_text("x = 2\n")
    second = code_version()
    (package / "a.py").rename(package / "c.py")
    assert len({first, second, code_version()}) == 3


def test_cores_are_numbers_and_ranges(monkeypatch):
    monkeypatch.setattr(machine, "_affinity", lambda: frozenset(range(16)))
    assert read_cores("0-3, 8") == {0, 1, 2, 3, 8}


@pytest.mark.parametrize("text", ["", "a", "0,", "1-", "-1", "0;1", "3-1", "4096", "0-4096"])
def test_other_cores_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="expected numbers or ranges such as 0-3,8"):
        read_cores(text)


@pytest.mark.parametrize("text", ["0-99999999999", "0-999999999", "9" * 5000, "0,3-1"])
def test_no_list_is_made_of_what_the_machine_does_not_have(text):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="expected numbers or ranges such as 0-3,8"):
            read_cores(text)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_thread_is_pinned_for_a_while():
    before = os.sched_getaffinity(0)
    with pinned(frozenset({min(before)})):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


TRY = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_locked():
    command = [sys.executable, "-c", TRY, os.environ["ORTMETER_MACHINE_LOCK"]]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_the_lock_holds_against_other_processes():
    with machine_lock(NEVER):
        assert is_locked()
    assert not is_locked()


def test_a_process_that_inherits_the_lock_keeps_it_when_the_worker_dies():
    held = machine_lock(NEVER)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    sleeper = subprocess.Popen(command, pass_fds=(held.__enter__(),))
    # Closed without being unlocked, as by a death.
    assert not held.__exit__(KeyError, KeyError(), None)
    assert is_locked()
    sleeper.kill()
    sleeper.wait()
    assert not is_locked()


def test_a_stray_process_does_not_keep_the_lock_of_a_turn_that_is_over():
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with machine_lock(NEVER) as lock:
        stray = subprocess.Popen(command, pass_fds=(lock,))
    assert not is_locked()
    stray.kill()
    stray.wait()


def test_a_wait_for_the_lock_can_be_ended():
    stopped = threading.Event()
    stopped.set()
    with (
        machine_lock(NEVER),
        pytest.raises(OrtMeterError, match="cancelled before it started"),
        machine_lock(stopped),
    ):
        pass


def test_the_lock_follows_no_link(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("ORTMETER_MACHINE_LOCK", str(tmp_path / "link"))
    with pytest.raises(OSError, match="symbolic links"), machine_lock(NEVER):
        pass
    assert not (tmp_path / "elsewhere").exists()
