"""What a worker has, its lock, and the processes of its pages: what they leave, how they end."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import is_alive, launched, wait_for_end, wait_for_start

import ortmeter
from ortmeter.sweep import worker
from ortmeter.sweep.worker import MAX_OUTPUT, Job, code_version, describe_end, machine_lock


def run(page, timeout=30):
    job = Job("plot_fast.py", page.path.read_text(), (), code_version(), timeout)
    return worker.run_job(job)


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


TRY = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_locked(path=None):
    command = [sys.executable, "-c", TRY, path or os.environ["ORTMETER_MACHINE_LOCK"]]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_the_lock_is_that_of_the_temporary_folder_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("ORTMETER_MACHINE_LOCK")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "temporary")
    monkeypatch.setattr(worker.tempfile, "tempdir", str(tmp_path / "link"))
    with machine_lock():
        assert is_locked(str(tmp_path / "temporary"))
    assert not is_locked(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_process_that_inherits_the_lock_keeps_it_when_the_worker_dies():
    held = machine_lock()
    with launched("-c", "import time; time.sleep(60)", pass_fds=(held.__enter__(),)):
        # Closed without being unlocked, as by a death.
        assert not held.__exit__(KeyError, KeyError(), None)
        assert is_locked()
    assert not is_locked()


def test_a_stray_process_does_not_keep_the_lock_of_a_turn_that_is_over():
    with contextlib.ExitStack() as strays:
        with machine_lock() as lock:
            strays.enter_context(launched("-c", "import time; time.sleep(60)", pass_fds=(lock,)))
        assert not is_locked()


def test_a_wait_for_the_lock_is_reported_and_counts_in_the_time_limit(make_page, caplog):
    page = make_page()
    with machine_lock():
        attempt = run(page, timeout=0.3)
    assert attempt.error == "another sweep kept this machine for its time limit of 0.3 s"
    (told,) = caplog.messages
    assert "another user, unlocks" in told
    assert page.runs == []


def test_a_worker_with_other_code_fails_its_task(make_page):
    job = Job("plot_fast.py", make_page().path.read_text(), (), "0+other", None)
    error = worker.run_job(job).error
    assert error == f"the worker has ortmeter {code_version()}, expected 0+other"


def test_the_lock_follows_no_link(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("ORTMETER_MACHINE_LOCK", str(tmp_path / "link"))
    with pytest.raises(OSError, match="symbolic links"), machine_lock():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_both_streams_are_kept_in_order_and_bounded(make_page):
    body = "print('out'); print('err', file=sys.stderr); print('x' * 100_000); print('last')"
    attempt = run(make_page(f"{body}; sys.exit(3)"))
    assert attempt.error == "exit code 3: last"
    assert len(attempt.output) == MAX_OUTPUT
    body = "print('out', flush=True); sys.stderr.buffer.write(b'\\xff\\xfe')"
    short = run(make_page(body))
    assert (short.error, short.output) == ("", "out\n\ufffd\ufffd")
    assert short.record.startswith(b"{")


# What a page starts ends with it, also when it is in a hurry.
CHILDREN = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "time.sleep(10)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_of_the_page_survives(make_page, monkeypatch, tmp_path, end):
    page = make_page(f"{CHILDREN}Path({str(tmp_path / 'started')!r}).touch(); {end}")
    # The time that it has is over when it started what it starts.
    clock = SimpleNamespace(
        perf_counter=time.perf_counter,
        monotonic=lambda: 30 * (tmp_path / "started").exists(),
        sleep=time.sleep,
    )
    monkeypatch.setattr(worker, "time", clock)
    attempt = run(page, timeout=30)
    wait_for_end(int(attempt.output.split()[0]))
    assert not is_alive(page.runs[0][1])


def test_the_page_dies_with_the_process_that_runs_it(make_page):
    page = make_page("time.sleep(60)")
    code = (
        "import sys\n"
        "from ortmeter.sweep import worker\n"
        "text = open(sys.argv[1]).read()\n"
        "worker.run_job(worker.Job('plot_fast.py', text, (), worker.code_version(), None))\n"
    )
    with launched("-c", code, page.path) as parent:
        wait_for_start(parent, lambda: page.runs)
        (_, pid, _), *_ = page.runs
        assert is_alive(pid)
        parent.kill()
        parent.wait()
        wait_for_end(pid)


def test_the_page_holds_the_lock_of_the_machine_and_its_folder_is_removed(make_page):
    # As long as it lives, even if its worker dies.
    held = "print([os.path.realpath(f) for f in Path('/proc/self/fd').iterdir()])"
    attempt = run(make_page(f"{held}; Path('left').write_text('x'); print(Path.cwd())"))
    assert os.environ["ORTMETER_MACHINE_LOCK"] in attempt.output
    assert not Path(attempt.output.strip().rpartition("\n")[2]).exists()


@pytest.mark.parametrize(
    ("code", "output", "told"),
    [
        (3, "\n \n", "exit code 3: no output"),
        (3, "x" * 1000, f"exit code 3: {'x' * 300}"),
        (-9, "", "killed by SIGKILL (the system does this when memory runs out)"),
        (-40, "", "killed by signal 40"),  # for real time: it has no name in Python
    ],
)
def test_the_end_of_a_process_is_told_on_one_line(code, output, told):
    assert describe_end(code, output) == told
